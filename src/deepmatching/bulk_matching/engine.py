"""Matching shards of pairs in this process, each image described once."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

import torch
from torch import Tensor

from deepmatching.bulk_matching.describing import Described, DescribedImages
from deepmatching.bulk_matching.pairs import Pair
from deepmatching.bulk_matching.storage import MatchedPair, Shard
from deepmatching.errors import DeepMatchingError, OutOfMemoryError
from deepmatching.flow import FlowResult, Frame, check_pair, is_upright, matches_to_flow, preset
from deepmatching.geometry.discretization import Geometry
from deepmatching.geometry.targets import pair_of
from deepmatching.io.files import PathLike, make_folder
from deepmatching.io.flow import write_flow
from deepmatching.kernels.cuda_graphs import LARGEST_GRAPH, Replayed
from deepmatching.matcher import DeepMatcher
from deepmatching.matches import NO_MATCHES, Matches
from deepmatching.network.inference import Decoding
from deepmatching.network.memory import Plan, Size
from deepmatching.network.operators.decoding import Decoded
from deepmatching.settings import PRESET

#: What a pair may fail with. The others go on.
_FAILURES = (DeepMatchingError, torch.OutOfMemoryError, MemoryError, RuntimeError)

_Work = tuple[Pair, Described, Described]


class _DecodedBatch:
    """The pairs of a batch, which a GPU may still be working on."""

    def __init__(
        self,
        matcher: DeepMatcher,
        geometry: Geometry,
        pairs: list[tuple[Pair, tuple[Size, Size], tuple[int, int]]],
        min_confidence: float | None,
        decoded: Decoded,
        ready: torch.cuda.Event | None,
    ) -> None:
        self._matcher, self._geometry, self._pairs = matcher, geometry, pairs
        self._min_confidence, self._decoded, self._ready = min_confidence, decoded, ready

    def matches(self) -> list[Matches]:
        """The matches of each pair, at the size that it was matched at."""
        if self._ready is not None:
            self._ready.synchronize()
        return self._matcher.matches_of(self._decoded, self._geometry)

    def __iter__(self) -> Iterator[MatchedPair]:
        for matches, (pair, sizes, orientations) in zip(self.matches(), self._pairs, strict=True):
            found = matches.at_sizes(*sizes)
            kept = found if self._min_confidence is None else found.filter(self._min_confidence)
            yield MatchedPair(pair, kept, orientations)


_Part: TypeAlias = list[MatchedPair] | _DecodedBatch


@dataclass
class StartedShard:
    """A shard whose pairs are all on their way."""

    pairs: list[Pair]
    parts: list[_Part]

    def finish(self) -> Shard:
        """Wait for its matches."""
        found = {done.names: done for part in self.parts for done in part}
        return Shard([found[pair] for pair in self.pairs])


class ShardMatcher:
    """Matches shards with one matcher, and keeps the descriptors for the next ones.

    The matches of a pair are those of ``DeepMatcher.match``. They do not depend on the shards that came before.

    Args:
        matcher: on its device.
        images: folder of the images.
        batch_size: consecutive pairs of equal sizes that are matched at once.
        flow: folder for a flow file per pair; None for matches only.
        memory: bytes for described images, see :class:`DescribedImages`.
        min_confidence: give out only matches with at least this confidence. The flow uses them all.
    """

    def __init__(
        self,
        matcher: DeepMatcher,
        images: PathLike,
        batch_size: int = 1,
        flow: Path | None = None,
        memory: int | None = None,
        min_confidence: float | None = None,
    ) -> None:
        self.matcher, self.batch_size, self.flow, self.min_confidence = matcher, batch_size, flow, min_confidence
        self.images = DescribedImages(
            matcher, images, keep_images=flow is not None or matcher.settings.searches, memory=memory
        )
        self._exponents = matcher.network.exponents.tolist()  # once: reading them waits for a GPU
        self._repeated = Replayed(self._decode_once)

    def match(self, pairs: Sequence[Pair], upcoming: Sequence[Pair] = ()) -> Shard:
        """The matches of a shard's pairs; the images of ``upcoming`` pairs are read ahead."""
        return self.start(pairs, upcoming).finish()

    def start(self, pairs: Sequence[Pair], upcoming: Sequence[Pair] = ()) -> StartedShard:
        """As :meth:`match`, but does not wait for a GPU: the matches of the shard can be had from any thread."""
        started = StartedShard(list(pairs), [])
        batch: list[_Work] = []
        following = [name for pair in (*pairs, *upcoming) for name in pair]
        self.images.expect(following)
        for number, pair in enumerate(pairs):
            self.images.read_ahead(following[2 * number :])
            try:
                work = (pair, self.images[pair[0]], self.images[pair[1]])
            except _FAILURES as error:
                started.parts.append([MatchedPair(pair, NO_MATCHES, failure=_reason(error))])
                continue
            if batch and (len(batch) >= self.batch_size or _shapes(batch[0]) != _shapes(work)):
                started.parts += self._match_batch(batch)
                batch = []
            batch.append(work)
        if batch:
            started.parts += self._match_batch(batch)
        self.images.read_ahead(following[2 * len(pairs) :])
        return started

    def _match_batch(self, batch: list[_Work]) -> list[_Part]:
        """Match pairs of equal sizes. If memory is short, try again without the descriptors that are kept."""
        try:
            return self._decode(batch)
        except _FAILURES as error:
            is_memory = not isinstance(error, DeepMatchingError) or isinstance(error, OutOfMemoryError)
            failure = _reason(error)  # the error itself would keep the arrays of the attempt
        if is_memory:
            self.images.forget()
            if torch.cuda.is_available():
                torch.cuda.empty_cache()
            try:
                return self._decode(batch)
            except _FAILURES as error:
                failure = _reason(error)
        if len(batch) == 1:
            return [[MatchedPair(batch[0][0], NO_MATCHES, failure=failure)]]
        return [part for work in batch for part in self._match_batch([work])]

    @torch.no_grad()
    def _decode(self, batch: list[_Work]) -> list[_Part]:
        matcher = self.matcher
        if matcher.settings.searches:
            return [[self._search(*work)] for work in batch]
        _, first, second = batch[0]
        geometry = matcher.network.geometry(first.shape, second.shape)
        plan = matcher.plan(first.size, second.size, len(batch))
        results: list[_Part] = []
        for start in range(0, len(batch), plan.batch):
            works = batch[start : start + plan.batch]
            cells0, cells1 = (_together([work[side].cells for work in works]) for side in (1, 2))  # type: ignore[union-attr]
            decoded = self._decode_cells(cells0, cells1, geometry, plan)
            pairs = [(pair, (one.size, two.size), (one.orientation, two.orientation)) for pair, one, two in works]
            part = _DecodedBatch(matcher, geometry, pairs, self.min_confidence, *_to_cpu(decoded, matcher.device))
            if self.flow is None:
                results.append(part)
                continue
            for b, (pair, one, two) in enumerate(works):
                self._write_flow(pair, self._flow(one, two, (geometry, pair_of(decoded, b))))
            results.append(list(part))
        return results

    def _decode_cells(self, cells0: Tensor, cells1: Tensor, geometry: Geometry, plan: Plan) -> Decoded:
        """Decode a batch of pairs; on a GPU, without waiting for it."""
        decoding = self.matcher.decoding(plan.tiling)
        is_recorded = cells0.is_cuda and plan.tiling.strips == 1 and plan.needed <= LARGEST_GRAPH
        decode = self._repeated if is_recorded else self._decode_once
        return decode(cells0, cells1, geometry, decoding)

    def _decode_once(self, cells0: Tensor, cells1: Tensor, geometry: Geometry, decoding: Decoding) -> Decoded:
        return self.matcher.network.decode_cells(cells0, cells1, geometry, decoding, self._exponents)

    def _search(self, pair: Pair, first: Described, second: Described) -> MatchedPair:
        """Match a pair at the transformations of the settings."""
        assert first.image is not None and second.image is not None
        matches = self.matcher.match(first.image, second.image).to("cpu")
        if self.flow is not None:
            if is_upright(matches):  # the flow that the pair has without a search
                result = self._flow(first, second)
            else:
                check_pair(first.image, second.image)
                result = matches_to_flow(matches, first.image, second.image, preset(PRESET)).at_size(first.size)
            self._write_flow(pair, result)
        found = matches.at_sizes(first.size, second.size)
        kept = found if self.min_confidence is None else found.filter(self.min_confidence)
        return MatchedPair(pair, kept, (first.orientation, second.orientation))

    def _flow(self, first: Described, second: Described, known: tuple[Geometry, Decoded] | None = None) -> FlowResult:
        """Return the flow from the descriptors of both images, and the matches of the pair if they are known."""
        assert first.image is not None and second.image is not None
        frame0 = Frame(first.image, first.image, first.cells, first.size)
        frame1 = Frame(second.image, second.image, second.cells, second.size)
        return self.matcher.flow_between(frame0, frame1, known=known)

    def _write_flow(self, pair: Pair, result: FlowResult) -> None:
        assert self.flow is not None
        path = flow_file(self.flow, pair)
        make_folder(path.parent)
        write_flow(path, result.flow)


def flow_file(folder: Path, pair: Pair) -> Path:
    """The flow file of a pair; ``/`` in names becomes ``-``, as in hloc."""
    name0, name1 = (name.replace("/", "-") for name in pair)
    return folder / name0 / f"{name1}.flo"


def _shapes(work: _Work) -> tuple[object, ...]:
    return work[1].shape, work[1].size, work[2].shape, work[2].size


def _together(cells: list[Tensor]) -> Tensor:
    """A batch; one pair is not copied."""
    return cells[0] if len(cells) == 1 else torch.cat(cells)


def _to_cpu(decoded: Decoded, device: torch.device) -> tuple[Decoded, torch.cuda.Event | None]:
    """Copied once for a batch, and an event after which the copies are complete; None if they are already."""
    is_cuda = device.type == "cuda"
    copied = Decoded._make(None if tensor is None else tensor.to("cpu", non_blocking=is_cuda) for tensor in decoded)
    if not is_cuda:
        return copied, None
    event = torch.cuda.Event(blocking=True)
    event.record(torch.cuda.current_stream(device))
    return copied, event


def _reason(error: BaseException) -> str:
    return str(error).splitlines()[0] if str(error) else type(error).__name__
