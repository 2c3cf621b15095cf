"""Matching shards of pairs with one matcher, each image described once, and writing them."""

import os
import socket
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property, partial
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import psutil
import torch

from deepmatching.bulk_matching.describing import Described, DescribedImages
from deepmatching.bulk_matching.pairs import Pair
from deepmatching.bulk_matching.storage import MatchedPair, shard_file, write_shard
from deepmatching.errors import DeepMatchingError, OutOfMemoryError
from deepmatching.flow import FlowResult, is_upright, matches_to_flow, preset
from deepmatching.geometry.targets import Decoded, pair_of
from deepmatching.io.addresses import scheme_of
from deepmatching.io.files import PathLike, make_folder
from deepmatching.io.flow import write_flow
from deepmatching.matcher import DeepMatcher
from deepmatching.matches import NO_MATCHES, Matches
from deepmatching.matching import unmasked_matches
from deepmatching.search import doubt, has_failed
from deepmatching.settings import PRESET

FLOW = "flow"  #: Folder of the flow files in that of the run.
#: What a pair may fail with. The others go on.
_FAILURES = (DeepMatchingError, torch.OutOfMemoryError, MemoryError, RuntimeError)

_Work = tuple[Pair, Described, Described]

Finish = Callable[[], list[MatchedPair]]  #: Waits for a GPU, and returns the pairs that it was given.


@dataclass
class _Started:
    """Pairs of equal sizes whose matching has begun, or one that has failed."""

    pairs: list[MatchedPair]  #: their names, without matches
    sizes: tuple[tuple[int, int], tuple[int, int]] = ((0, 0), (0, 0))  #: of the files
    wait: Callable[[], list[Matches]] | None = None  #: waits for a GPU; None for a pair that has failed
    masks: Sequence[tuple[torch.Tensor, torch.Tensor]] = ()  #: of each pair, see :class:`Described`

    @cached_property
    def matches(self) -> list[Matches]:
        """The matches of each pair, in pixels of the files."""
        if self.wait is None:
            return [NO_MATCHES] * len(self.pairs)
        found = [each.at_sizes(*self.sizes) for each in self.wait()]
        self.wait = None
        return [unmasked_matches(each, *masks) for each, masks in zip(found, self.masks, strict=True)]


class ShardReport(NamedTuple):
    """What a worker says about a finished shard."""

    number: int
    pairs: int
    matches: int
    failures: dict[Pair, str]
    described: int  #: images that were described for it
    memory: int  #: bytes that the worker's process holds
    doubtful: int = 0  #: pairs whose matches are probably wrong
    searched: int = 0  #: pairs whose matches come from a search that followed a failed match, see ``Settings.auto``
    unwritten: tuple[MatchedPair, ...] = ()  #: pairs that the worker did not write, as they are part of a shard
    worker: str = ""  #: the host and the process
    seconds: float = 0.0  #: from the shard's arrival at the worker to its end


class ShardMatcher:
    """Matches shards with one matcher, keeps the descriptors for the next ones, and writes the shards.

    The matches of a pair are those of ``DeepMatcher.match``. They do not depend on the shards that came before.

    Args:
        matcher, images: the folder of the images.
        out: the folder of the run.
        batch_size: consecutive pairs of equal sizes that are matched at once; None for :func:`default_batch`.
        flow: write the flow of each pair, too.
        min_confidence: keep only matches with at least this confidence. The flow uses them all.
        masks: the folder of the masks, see :class:`DescribedImages`.
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
        masks: PathLike | None = None,
        memory: int | None = None,
    ) -> None:
        self.matcher, self.out, self.flow, self.min_confidence = matcher, Path(out), flow, min_confidence
        self.batch_size = default_batch(matcher.device) if batch_size is None else batch_size
        self.images = DescribedImages(matcher, images, flow or matcher.settings.searches, memory, masks)
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
        before, begin = self.images.described, time.perf_counter()
        finish = self.start(pairs, upcoming)
        return self._writer.submit(self._report, number, finish, self.images.described - before, is_whole, begin)

    def _report(self, number: int, finish: Finish, described: int, is_whole: bool, begin: float) -> ShardReport:
        pairs = finish()
        if is_whole:
            write_shard(shard_file(self.out, number), pairs)
        right = [pair.matches for pair in pairs if not pair.failure]
        may_search = self.matcher.settings.leaves_choice and not self.matcher.settings.searches
        return ShardReport(
            number,
            len(pairs),
            sum(map(len, right)),
            {pair.names: pair.failure for pair in pairs if pair.failure},
            described,
            psutil.Process().memory_info().rss,
            sum(bool(pair.doubt) for pair in pairs),
            sum(each.transformation is not None for each in right) if may_search else 0,
            () if is_whole else tuple(pairs),
            f"{socket.gethostname()}:{os.getpid()}",
            time.perf_counter() - begin,
        )

    def start(self, pairs: Sequence[Pair], upcoming: Sequence[Pair] = ()) -> Finish:
        """Match pairs without waiting for a GPU; call the result, in any thread, for their matches, in order.

        The images of ``upcoming`` pairs are read ahead.
        """
        parts: list[_Started] = []
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
        if self.matcher.settings.leaves_choice:
            for part in parts:
                self._search_failed(part)

        def finish() -> list[MatchedPair]:
            found = {done.names: done for part in parts for done in self._finish(part)}
            return [found[pair] for pair in pairs]

        return finish

    def _start_safely(self, batch: list[_Work]) -> list[_Started]:
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
    def _start(self, batch: list[_Work]) -> list[_Started]:
        if self.matcher.settings.searches:
            return [self._search(work) for work in batch]
        parts: list[_Started] = []
        cells, sizes = [(one.cells, two.cells) for _, one, two in batch], _sizes(batch[0])
        geometry, left = self.matcher.geometry(*sizes), iter(batch)
        for decoded in self.matcher.decode_described(cells, *sizes, self.images.may_have_masks):
            works = list(islice(left, len(decoded.points1)))
            copied = _to_cpu(decoded, self.matcher.device)
            if self.flow:
                for n, work in enumerate(works):
                    one, two = work[1].frame, work[2].frame
                    known = geometry, pair_of(decoded, n)
                    flow = self.matcher.flow_between(one, two, known=known, masked=self.images.may_have_masks)
                    self._write_flow(work[0], flow)
            parts.append(_started(works, partial(lambda wait: self.matcher.matches_of(wait(), geometry), copied)))
        return parts

    def _search(self, work: _Work) -> _Started:
        """Match a pair at the transformations of the settings."""
        one, two = work[1].frame, work[2].frame
        assert work[1].image is not None and work[2].image is not None
        matches = self.matcher.match(work[1].image, work[2].image).to("cpu")
        if self.flow:
            if is_upright(matches):  # the flow that the pair has without a search
                result = self.matcher.flow_between(one, two, masked=self.images.may_have_masks)
            else:
                result = matches_to_flow(matches, one.image, two.image, preset(PRESET)).at_size(one.size, two.sizes)
            self._write_flow(work[0], result)
        return _started([work], lambda: [matches])

    def _search_failed(self, part: _Started) -> None:
        """Give pairs with few right matches those of a wide search, as ``DeepMatcher.match`` does. Waits for a GPU."""
        for number, (pair, found) in enumerate(zip(part.pairs, part.matches, strict=True)):
            if pair.failure or not has_failed(self.matcher.settings, found.expected_fraction):
                continue
            with suppress(*_FAILURES):  # the plain matches remain
                first, second = (self.images.load(name) for name in pair.names)
                if (searched := self.matcher.wide_matches(first, second, found.expected_fraction)) is not None:
                    part.matches[number] = searched.to("cpu")
                    if self.flow:
                        self._write_flow(pair.names, self.matcher.flow_of_searched(searched, first, second))

    def _finish(self, part: _Started) -> list[MatchedPair]:
        """Return the pairs with those of their matches that are kept."""
        least, done = self.min_confidence, []
        for pair, found in zip(part.pairs, part.matches, strict=True):
            kept = found if pair.failure or least is None else found.filter(least)
            done.append(replace(pair, matches=kept, doubt="" if pair.failure else doubt(found)))
        return done

    def _write_flow(self, pair: Pair, result: FlowResult) -> None:
        path = flow_file(self.out / FLOW, pair)
        if not scheme_of(path):
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


def _started(works: list[_Work], wait: Callable[[], list[Matches]]) -> _Started:
    """Return pairs that have begun, without keeping their images."""
    pairs = [MatchedPair(pair, NO_MATCHES, (one.orientation, two.orientation)) for pair, one, two in works]
    return _Started(pairs, _sizes(works[0]), wait, [(one.mask, two.mask) for _, one, two in works])


def _failed(pair: Pair, reason: str) -> _Started:
    return _Started([MatchedPair(pair, NO_MATCHES, failure=reason)])


def _reason(error: BaseException) -> str:
    return str(error).splitlines()[0] if str(error) else type(error).__name__
