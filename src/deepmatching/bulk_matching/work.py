"""What a worker does: match a shard and write it. It is the same in this process and on a cluster."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import psutil

from deepmatching.bulk_matching.engine import ShardMatcher
from deepmatching.bulk_matching.pairs import Pair
from deepmatching.bulk_matching.storage import shard_file
from deepmatching.matcher import DeepMatcher

#: Folder of the flow files in that of the run.
FLOW = "flow"

#: Pairs of equal sizes that a GPU matches at once.
_BATCH = {"cpu": 1, "mps": 1, "cuda": 16}


@dataclass(frozen=True)
class Job:
    """What a worker needs to know; it travels to other machines."""

    images: str
    out: str
    model: str
    settings: dict[str, Any]
    batch_size: int | None = None
    flow: bool = False


class ShardReport(NamedTuple):
    """What a worker says about a finished shard."""

    number: int
    pairs: int
    matches: int
    failures: dict[Pair, str]
    described: int  #: images that were described for it
    memory: int  #: bytes that the worker's process holds


class Worker:
    """Matches shards and writes them; one per process."""

    def __init__(self, job: Job, matcher: DeepMatcher | None = None) -> None:
        self.out = Path(job.out)
        matcher = matcher or DeepMatcher.from_pretrained(job.model, **job.settings)
        batch_size = _BATCH.get(matcher.device.type, 1) if job.batch_size is None else job.batch_size
        self.shards = ShardMatcher(matcher, job.images, batch_size, self.out / FLOW if job.flow else None)

    def run(self, number: int, pairs: Sequence[Pair], upcoming: Sequence[Pair] = ()) -> ShardReport:
        """Match a shard and write it."""
        before = self.shards.images.described
        shard = self.shards.match(pairs, upcoming)
        shard.write(shard_file(self.out, number))
        return ShardReport(
            number,
            len(shard.pairs),
            sum(len(pair.matches) for pair in shard),
            {pair.names: pair.failure for pair in shard if pair.failure},
            self.shards.images.described - before,
            psutil.Process().memory_info().rss,
        )

    def close(self) -> None:
        """Stop the threads that read images."""
        self.shards.images.close()
