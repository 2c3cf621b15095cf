"""Matching shards of pairs with one matcher, each image described once, and writing them."""

from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import psutil
import torch

from deepmatching.bulk_matching.describing import Described, DescribedImages
from deepmatching.bulk_matching.pairs import Pair
from deepmatching.bulk_matching.storage import MatchedPair, shard_file, write_shard
from deepmatching.errors import DeepMatchingError, OutOfMemoryError
from deepmatching.flow import FlowResult, check_pair, is_upright, matches_to_flow, preset
from deepmatching.geometry.targets import Decoded, pair_of
from deepmatching.io.files import PathLike, make_folder
from deepmatching.io.flow import write_flow
from deepmatching.matcher import DeepMatcher
from deepmatching.matches import NO_MATCHES, Matches
from deepmatching.search import doubt
from deepmatching.settings import PRESET

FLOW = "flow"  #: Folder of the flow files in that of the run.
#: What a pair may fail with. The others go on.
_FAILURES = (DeepMatchingError, torch.OutOfMemoryError, MemoryError, RuntimeError)

_Work = tuple[Pair, Described, Described]

Finish = Callable[[], list[MatchedPair]]  #: Waits for a GPU, and returns the pairs that it was given.


class ShardReport(NamedTuple):
    """What a worker says about a finished shard."""

    number: int
    pairs: int
    matches: int
    failures: dict[Pair, str]
    described: int  #: images that were described for it
    memory: int  #: bytes that the worker's process holds
    doubtful: int = 0  #: pairs whose matches are probably wrong
    unwritten: tuple[MatchedPair, ...] = ()  #: pairs that the worker did not write, as they are part of a shard


class ShardMatcher:
    """Matches shards with one matcher, keeps the descriptors for the next ones, and writes the shards.

    The matches of a pair are those of ``DeepMatcher.match``. They do not depend on the shards that came before.

    Args:
        matcher, images: the folder of the images.
        out: the folder of the run.
        batch_size: consecutive pairs of equal sizes that are matched at once; None for :func:`default_batch`.
        flow: write the flow of each pair, too.
        min_confidence: keep only matches with at least this confidence. The flow uses them all.
        memory: bytes for described images, see :class:`DescribedImages`.
    """

    def __init__(
        self,
        matcher: DeepMatcher,
        images: PathLike,
        out: PathLike,
        batch_size: int | None = None,
        flow: bool = False,
        min_confidence: float | None = None,
        memory: int | None = None,
    ) -> None:
        self.matcher, self.out, self.flow, self.min_confidence = matcher, Path(out), flow, min_confidence
        self.batch_size = default_batch(matcher.device) if batch_size is None else batch_size
        self.images = DescribedImages(matcher, images, flow or matcher.settings.searches, memory)
        self._writer = ThreadPoolExecutor(1, "deepmatching-writer")

    @classmethod
    def load(cls, model: str, settings: dict[str, Any], *arguments: Any) -> "ShardMatcher":
        """Return one with a matcher of its own: arguments can travel to other machines."""
        return cls(DeepMatcher.from_pretrained(model, **settings), *arguments)

    def close(self) -> None:
        """Stop the threads; started shards are written."""
        self.images.close()
        self._writer.shutdown()

    def submit(
        self, number: int, pairs: Sequence[Pair], upcoming: Sequence[Pair] = (), is_whole: bool = True
    ) -> Future[ShardReport]:
        """Match a shard, or a part of it, which is not written; another thread waits for a GPU and writes."""
        before = self.images.described
        finish = self.start(pairs, upcoming)
        return self._writer.submit(self._report, number, finish, self.images.described - before, is_whole)

    def _report(self, number: int, finish: Finish, described: int, is_whole: bool) -> ShardReport:
        pairs = finish()
        if is_whole:
            write_shard(shard_file(self.out, number), pairs)
        right = [pair.matches for pair in pairs if not pair.failure]
        geometries = [self.matcher.geometry(each.size0, each.size1) for each in right]  # type: ignore[arg-type]
        return ShardReport(
            number,
            len(pairs),
            sum(map(len, right)),
            {pair.names: pair.failure for pair in pairs if pair.failure},
            described,
            psutil.Process().memory_info().rss,
            sum(bool(doubt(*each)) for each in zip(right, geometries, strict=True)),
            () if is_whole else tuple(pairs),
        )

    def start(self, pairs: Sequence[Pair], upcoming: Sequence[Pair] = ()) -> Finish:
        """Match pairs without waiting for a GPU; call the result, in any thread, for their matches, in order.

        The images of ``upcoming`` pairs are read ahead.
        """
        parts: list[Finish] = []
        batch: list[_Work] = []
        following = [name for pair in (*pairs, *upcoming) for name in pair]
        self.images.expect(following)
        for number, pair in enumerate(pairs):
            self.images.read_ahead(following[2 * number :])
            try:
                work = (pair, self.images[pair[0]], self.images[pair[1]])
            except _FAILURES as error:
                parts.append(_failed(pair, _reason(error)))
                continue
            if batch and (len(batch) >= self.batch_size or _sizes(batch[0]) != _sizes(work)):
                parts += self._start_safely(batch)
                batch = []
            batch.append(work)
        if batch:
            parts += self._start_safely(batch)
        self.images.read_ahead(following[2 * len(pairs) :])

        def finish() -> list[MatchedPair]:
            found = {done.names: done for part in parts for done in part()}
            return [found[pair] for pair in pairs]

        return finish

    def _start_safely(self, batch: list[_Work]) -> list[Finish]:
        """Match pairs of equal sizes. If memory is short, try again without the descriptors that are kept."""
        for _ in range(2):
            try:
                return self._start(batch)
            except _FAILURES as error:
                failure = _reason(error)  # the error itself would keep the arrays of the attempt
                if isinstance(error, DeepMatchingError) and not isinstance(error, OutOfMemoryError):
                    break
            self.images.forget()
            if torch.cuda.is_available():
                torch.cuda.empty_cache()
        if len(batch) == 1:
            return [_failed(batch[0][0], failure)]
        return [part for work in batch for part in self._start_safely([work])]

    @torch.no_grad()
    def _start(self, batch: list[_Work]) -> list[Finish]:
        if self.matcher.settings.searches:
            return [self._search(work) for work in batch]
        parts: list[Finish] = []
        cells, sizes = [(one.cells, two.cells) for _, one, two in batch], _sizes(batch[0])
        geometry, left = self.matcher.geometry(*sizes), iter(batch)
        for decoded in self.matcher.decode_described(cells, *sizes):
            works = list(islice(left, len(decoded.points1)))
            copied = _to_cpu(decoded, self.matcher.device)
            if self.flow:
                for n, work in enumerate(works):
                    one, two = work[1].frame, work[2].frame
                    self._write_flow(work, self.matcher.flow_between(one, two, known=(geometry, pair_of(decoded, n))))
            parts.append(self._later(works, partial(lambda wait: self.matcher.matches_of(wait(), geometry), copied)))
        return parts

    def _search(self, work: _Work) -> Finish:
        """Match a pair at the transformations of the settings."""
        one, two = work[1].frame, work[2].frame
        matches = self.matcher.match(one.image, two.image).to("cpu")
        if self.flow:
            if is_upright(matches):  # the flow that the pair has without a search
                result = self.matcher.flow_between(one, two)
            else:
                check_pair(one.image, two.image)
                result = matches_to_flow(matches, one.image, two.image, preset(PRESET)).at_size(one.size)
            self._write_flow(work, result)
        return self._later([work], lambda: [matches])

    def _later(self, works: list[_Work], matches: Callable[[], list[Matches]]) -> Finish:
        """Return what gives the pairs their matches later, without keeping their images until then."""
        pairs = [MatchedPair(pair, NO_MATCHES, (one.orientation, two.orientation)) for pair, one, two in works]
        sizes, min_confidence = _sizes(works[0]), self.min_confidence

        def finish() -> list[MatchedPair]:
            found = [each.at_sizes(*sizes) for each in matches()]
            kept = found if min_confidence is None else [each.filter(min_confidence) for each in found]
            return [replace(pair, matches=each) for pair, each in zip(pairs, kept, strict=True)]

        return finish

    def _write_flow(self, work: _Work, result: FlowResult) -> None:
        path = flow_file(self.out / FLOW, work[0])
        make_folder(path.parent)
        write_flow(path, result.flow)


def default_batch(device: torch.device) -> int:
    """Return the number of pairs of equal sizes that a device matches at once."""
    return 16 if device.type == "cuda" else 1


def flow_file(folder: Path, pair: Pair) -> Path:
    """Return the flow file of a pair. ``/`` in names becomes ``%2F``, and ``%`` becomes ``%25``: no two share one."""
    name0, name1 = (name.replace("%", "%25").replace("/", "%2F") for name in pair)
    return folder / name0 / f"{name1}.flo"


def _sizes(work: _Work) -> tuple[tuple[int, int], tuple[int, int]]:
    return work[1].size, work[2].size


def _to_cpu(decoded: Decoded, device: torch.device) -> Callable[[], Decoded]:
    """Copy to the CPU, once for a batch; call the result to wait for the copies."""
    is_cuda = device.type == "cuda"
    copied = Decoded._make(None if tensor is None else tensor.to("cpu", non_blocking=is_cuda) for tensor in decoded)
    event = torch.cuda.Event(blocking=True) if is_cuda else None
    if event is not None:
        event.record(torch.cuda.current_stream(device))

    def wait() -> Decoded:
        if event is not None:
            event.synchronize()
        return copied

    return wait


def _failed(pair: Pair, reason: str) -> Finish:
    return lambda: [MatchedPair(pair, NO_MATCHES, failure=reason)]


def _reason(error: BaseException) -> str:
    return str(error).splitlines()[0] if str(error) else type(error).__name__
