"""What a worker does: match a shard and write it. It is the same in this process and on a cluster."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import psutil
import torch

from deepmatching.bulk_matching.engine import ShardMatcher, StartedShard
from deepmatching.bulk_matching.pairs import Pair
from deepmatching.bulk_matching.storage import shard_file
from deepmatching.matcher import DeepMatcher

#: Folder of the flow files in that of the run.
FLOW = "flow"


@dataclass(frozen=True)
class Job:
    """What a worker needs to know; it travels to other machines."""

    images: str
    out: str
    model: str
    settings: dict[str, Any]
    batch_size: int | None = None
    flow: bool = False
    min_confidence: float | None = None


class ShardReport(NamedTuple):
    """What a worker says about a finished shard."""

    number: int
    pairs: int
    matches: int
    failures: dict[Pair, str]
    described: int  #: images that were described for it
    memory: int  #: bytes that the worker's process holds


def default_batch(device: torch.device) -> int:
    """Pairs of equal sizes that a device matches at once."""
    return 16 if device.type == "cuda" else 1


class Worker:
    """Matches shards and writes them; one per process."""

    def __init__(self, job: Job, matcher: DeepMatcher | None = None) -> None:
        self.out = Path(job.out)
        matcher = matcher or DeepMatcher.from_pretrained(job.model, **job.settings)
        batch_size = default_batch(matcher.device) if job.batch_size is None else job.batch_size
        flow = self.out / FLOW if job.flow else None
        self.shards = ShardMatcher(matcher, job.images, batch_size, flow, min_confidence=job.min_confidence)

        self._writer = ThreadPoolExecutor(1, "deepmatching-writer")

    def run(self, number: int, pairs: Sequence[Pair], upcoming: Sequence[Pair] = ()) -> ShardReport:
        """Match a shard and write it."""
        return self.start(number, pairs, upcoming).result()

    def start(self, number: int, pairs: Sequence[Pair], upcoming: Sequence[Pair] = ()) -> Future[ShardReport]:
        """Match a shard; another thread waits for the matches of a GPU and writes them."""
        before = self.shards.images.described
        started = self.shards.start(pairs, upcoming)
        return self._writer.submit(self._finish, number, started, self.shards.images.described - before)

    def _finish(self, number: int, started: StartedShard, described: int) -> ShardReport:
        shard = started.finish()
        shard.write(shard_file(self.out, number))
        return ShardReport(
            number,
            len(shard.pairs),
            sum(len(pair.matches) for pair in shard),
            {pair.names: pair.failure for pair in shard if pair.failure},
            described,
            psutil.Process().memory_info().rss,
        )

    def close(self) -> None:
        """Stop the threads; shards that were started are written."""
        self.shards.images.close()
        self._writer.shutdown()
