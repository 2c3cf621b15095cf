"""Matching shards of pairs in this process, each image described once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import torch

from deepmatching.bulk_matching.describing import Described, DescribedImages
from deepmatching.bulk_matching.pairs import Pair
from deepmatching.bulk_matching.storage import MatchedPair, Shard
from deepmatching.defaults import PRESET
from deepmatching.errors import DeepMatchingError, OutOfMemoryError
from deepmatching.io.files import PathLike, make_folder
from deepmatching.io.flow import write_flow
from deepmatching.matcher import DeepMatcher
from deepmatching.matches import NO_MATCHES, Matches
from deepmatching.operators.decoding import Decoded

#: What a pair may fail with. The others go on.
_FAILURES = (DeepMatchingError, torch.OutOfMemoryError, MemoryError, RuntimeError)

_Work = tuple[Pair, Described, Described]


class ShardMatcher:
    """Matches shards with one matcher, and keeps the descriptors for the next ones.

    The matches of a pair are those of ``DeepMatcher.match``. They do not depend on the shards that came before.

    Args:
        matcher: on its device.
        images: folder of the images.
        batch_size: consecutive pairs of equal sizes that are matched at once.
        flow: folder for a flow file per pair; None for matches only.
        memory: bytes for described images, see :class:`DescribedImages`.
    """

    def __init__(
        self,
        matcher: DeepMatcher,
        images: PathLike,
        batch_size: int = 1,
        flow: Path | None = None,
        memory: int | None = None,
    ) -> None:
        self.matcher, self.batch_size, self.flow = matcher, batch_size, flow
        keep_images = flow is not None or matcher.settings.searches
        self.images = DescribedImages(matcher, images, keep_images=keep_images, memory=memory)

    def match(self, pairs: Sequence[Pair], upcoming: Sequence[Pair] = ()) -> Shard:
        """The matches of a shard's pairs; the images of ``upcoming`` pairs are read ahead."""
        found: dict[Pair, MatchedPair] = {}
        batch: list[_Work] = []
        following = [name for pair in (*pairs, *upcoming) for name in pair]
        self.images.expect(following)
        for number, pair in enumerate(pairs):
            self.images.read_ahead(following[2 * number :])
            try:
                work = (pair, self.images[pair[0]], self.images[pair[1]])
            except _FAILURES as error:
                found[pair] = _failed(pair, error)
                continue
            if batch and (len(batch) >= self.batch_size or _shapes(batch[0]) != _shapes(work)):
                found.update((done.names, done) for done in self._match_batch(batch))
                batch = []
            batch.append(work)
        if batch:
            found.update((done.names, done) for done in self._match_batch(batch))
        self.images.read_ahead(following[2 * len(pairs) :])
        return Shard([found[pair] for pair in pairs])

    def _match_batch(self, batch: list[_Work]) -> list[MatchedPair]:
        """Match pairs of equal sizes. If memory is short, try again without the descriptors that are kept."""
        try:
            return self._decode(batch)
        except _FAILURES as error:
            is_memory = not isinstance(error, DeepMatchingError) or isinstance(error, OutOfMemoryError)
            failure: Exception = error
        if is_memory:
            self.images.forget()
            if torch.cuda.is_available():
                torch.cuda.empty_cache()
            try:
                return self._decode(batch)
            except _FAILURES as error:
                failure = error
        if len(batch) == 1:
            return [_failed(batch[0][0], failure)]
        return [done for work in batch for done in self._match_batch([work])]

    @torch.no_grad()
    def _decode(self, batch: list[_Work]) -> list[MatchedPair]:
        matcher = self.matcher
        if matcher.settings.searches:
            return [self._search(*work) for work in batch]
        _, first, second = batch[0]
        geometry = matcher.network.geometry(first.shape, second.shape)
        plan = matcher.plan(first.size, second.size, len(batch))
        decoding = replace(matcher.settings.decoding, pieces=plan.pieces)
        results = []
        for start in range(0, len(batch), plan.batch):
            part = batch[start : start + plan.batch]
            cells0, cells1 = (torch.cat([work[side].cells for work in part]) for side in (1, 2))  # type: ignore[union-attr]
            decoded = _on_cpu(matcher.network.decode_cells(cells0, cells1, geometry, decoding))
            for b, (pair, described0, described1) in enumerate(part):
                matches = matcher.matches_of(decoded, b, geometry)
                if self.flow is not None:
                    self._write_flow(pair, described0, described1, matches)
                upright = matches.at_sizes(described0.size, described1.size)
                results.append(MatchedPair(pair, upright, (described0.orientation, described1.orientation)))
        return results

    def _search(self, pair: Pair, first: Described, second: Described) -> MatchedPair:
        """Match a pair at the transformations of the settings."""
        assert first.image is not None and second.image is not None
        matches = self.matcher.match(first.image, second.image).to("cpu")
        if self.flow is not None:
            self._write_flow(pair, first, second, matches)
        upright = matches.at_sizes(first.size, second.size)
        return MatchedPair(pair, upright, (first.orientation, second.orientation))

    def _write_flow(self, pair: Pair, first: Described, second: Described, forward: Matches) -> None:
        """Compute the flow from the descriptors of both images, and write it."""
        from deepmatching.flow import check_pair, matches_to_flow, needs_backward
        from deepmatching.flow import preset as settings_of

        assert self.flow is not None and first.image is not None and second.image is not None
        check_pair(first.image, second.image)
        settings = settings_of(PRESET)
        backward = None
        if needs_backward(settings, self.matcher.network) and not self.matcher.settings.searches:
            geometry = self.matcher.network.geometry(second.shape, first.shape)
            pieces = self.matcher.plan(second.size, first.size).pieces
            decoding = replace(self.matcher.settings.decoding, pieces=pieces)
            decoded = self.matcher.network.decode_cells(second.cells, first.cells, geometry, decoding)
            backward = self.matcher.matches_of(_on_cpu(decoded), 0, geometry)
        result = matches_to_flow(forward, first.image, second.image, settings, None, backward)
        path = flow_file(self.flow, pair)
        make_folder(path.parent)
        write_flow(path, result.at_size(first.size).flow)


def flow_file(folder: Path, pair: Pair) -> Path:
    """The flow file of a pair; ``/`` in names becomes ``-``, as in hloc."""
    name0, name1 = (name.replace("/", "-") for name in pair)
    return folder / name0 / f"{name1}.flo"


def _shapes(work: _Work) -> tuple[object, ...]:
    return work[1].shape, work[1].size, work[2].shape, work[2].size


def _on_cpu(decoded: Decoded) -> Decoded:
    """Copied once for a batch: choosing the verified matches on a GPU would wait for it for each pair."""
    return Decoded._make(None if tensor is None else tensor.cpu() for tensor in decoded)


def _failed(pair: Pair, error: BaseException) -> MatchedPair:
    reason = str(error).splitlines()[0] if str(error) else type(error).__name__
    return MatchedPair(pair, NO_MATCHES, failure=reason)
