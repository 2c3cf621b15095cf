"""Keypoints that the pairs of an image share, so that tracks run through many images.

Every pair has points of its own. In each image, the points of all pairs are sorted into cells, and the points of a cell
become one keypoint at their mean. The cells are half as wide as the precision of the matches, so no point moves by more
than half of that along either axis, and positions stay between pixels.
"""

from collections.abc import Iterator
from dataclasses import replace
from itertools import chain
from typing import Any, NamedTuple

import numpy as np

from deepmatching.bulk_matching import MatchedPair, RunFolder
from deepmatching.bulk_matching.pairs import Pair
from deepmatching.errors import check_number
from deepmatching.io.images import shrunk_size
from deepmatching.reconstruction.refinement import refine, reverse

_MERGE_AFTER = 200_000  #: Number of points of an image after which equal cells are merged.
#: Cells are counted from this many cells left of and above the image: a match may lie a little outside.
_MARGIN = 2**20


class SharedMatches(NamedTuple):
    """The matches of a pair as pairs of shared keypoints."""

    names: Pair
    indices: np.ndarray  #: (N, 2) int64, each keypoint at most once
    scores: np.ndarray  #: (N,) float32, the confidence of the matches if they have one


class ImageKeypoints(NamedTuple):
    """The keypoints of an image."""

    points: np.ndarray  #: (N, 2) float32 in the upright image, pixel centres are integers; best first
    scores: np.ndarray  #: (N,) float32, the sum of the confidence, or scores, of their matches
    size: tuple[int, int]  #: (rows, columns) of the upright image
    orientation: int  #: of the stored pixels


class SharedKeypoints:
    """The keypoints of all images of a run, and the matches between them.

    Args:
        run: finished or not; pairs that are not matched yet are left out.
        cell: side of the cells that are merged, in pixels of the image; None for half the precision of the matches.
        max_keypoints: keep at most this many keypoints per image, best first; None for all.
        is_refined: refine and complete the matches, see ``deepmatching.reconstruction.refinement``.
        min_confidence: leave out matches with a lower confidence; None for all.
    """

    def __init__(
        self,
        run: RunFolder,
        cell: float | None = None,
        max_keypoints: int | None = None,
        is_refined: bool = True,
        min_confidence: float | None = None,
    ) -> None:
        if cell is not None:
            check_number("The cell", cell, above=0)
        if max_keypoints is not None:
            check_number("max_keypoints", max_keypoints, minimum=1, whole=True)
        self.run, self._is_refined, self._min_confidence = run, is_refined, min_confidence
        self._shards = sorted(run.done)  # once: a run that is still at work finishes more
        self._sizes: dict[str, tuple[tuple[int, int], int]] = {}
        self._starts: dict[str, np.ndarray] = {}  # of the matches from each image
        self.is_searched = False  #: whether some pairs were matched through a search, and so less precisely
        for pair in self._matched():
            self.is_searched |= pair.matches.transformation is not None
            sizes = pair.matches.size0, pair.matches.size1
            for name, size, orientation in zip(pair.names, sizes, pair.orientations, strict=True):
                assert size is not None
                self._sizes[name] = (size, orientation)
            name, starts = pair.names[0], pair.matches.numpy()[0]
            self._starts[name] = np.unique(np.concatenate([self._starts.get(name, starts[:0]), starts]), axis=0)
        width = 0.5 * self._setting("cell", 2)
        cells = {name: _Cells(cell or width * self.scale(name)) for name in self._sizes}
        for pair in self._matched():
            *both, scores = self._points(pair)
            for name, points in zip(pair.names, both, strict=True):
                cells[name].add(points, scores)
        self._cells = cells
        self.images = {
            name: ImageKeypoints(*collected.finish(max_keypoints), *self._sizes[name])
            for name, collected in cells.items()
        }

    def matches(self) -> Iterator[SharedMatches]:
        """Yield the matches of each pair, best first; failed pairs have none and are left out."""
        for pair in self._matched():
            points0, points1, scores = self._points(pair)
            ends = zip(pair.names, (points0, points1), strict=True)
            indices = np.stack([self._cells[name].keypoints_of(points) for name, points in ends], axis=1)
            chosen = np.flatnonzero((indices >= 0).all(axis=1))
            chosen = chosen[np.argsort(-scores[chosen], kind="stable")]
            chosen = chosen[_first_of_each(indices[chosen])]
            yield SharedMatches(pair.names, indices[chosen], scores[chosen].astype(np.float32))

    def precision(self) -> float:
        """Return the side of the cells that matches were found on, in pixels of the image that was reduced most."""
        return self._setting("cell", 2) * max((self.scale(name) for name in self._sizes), default=1.0)

    def _matched(self) -> Iterator[MatchedPair]:
        for pair in chain.from_iterable(map(self.run.read_shard, self._shards)):
            if pair.failure:
                continue
            kept = pair.matches if self._min_confidence is None else pair.matches.filter(self._min_confidence)
            yield replace(pair, matches=kept)

    def scale(self, name: str) -> float:
        """Return the pixels of the image per pixel of the size at which it was matched."""
        size, _ = self._sizes[name]
        return max(size) / max(shrunk_size(size, self._setting("max_size", None)))

    def _setting(self, name: str, otherwise: Any) -> Any:
        return self.run.plan.settings.get(name, otherwise)

    def _points(self, pair: MatchedPair) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return the points of a pair's matches in both images, (N, 2) each, and their scores."""
        keypoints0, keypoints1, _ = (array.astype(np.float64) for array in pair.matches.numpy())
        scores = pair.matches.certainty.numpy().astype(np.float64)
        if not self._is_refined:
            return keypoints0, keypoints1, scores
        step = float(self._setting("step", 8))
        # At the sizes at which the images were matched, displacements change slowly whatever the sizes of the files.
        scale0, scale1 = (self.scale(name) for name in pair.names)
        points0, points1 = keypoints0 / scale0, keypoints1 / scale1
        moved = refine(points0, points1, scores, step) * scale1
        own = self._starts.get(pair.names[1])
        if own is None:
            return keypoints0, moved, scores
        added0, added1, more = reverse(points0, points1, scores, step, own.astype(np.float64) / scale1)
        parts = (keypoints0, added0 * scale0), (moved, added1 * scale1), (scores, more)
        return np.concatenate(parts[0]), np.concatenate(parts[1]), np.concatenate(parts[2])


class _Cells:
    """The points of an image, collected in cells of a side c, and the keypoints that they become."""

    def __init__(self, side: float) -> None:
        self.side = side
        # Of the points that are merged: a number per cell, and sums of x, y, 1 and the score; the others.
        self._keys, self._sums = np.zeros(0, np.int64), np.zeros((0, 4))
        self._new: list[tuple[np.ndarray, np.ndarray]] = []

    def add(self, points: np.ndarray, scores: np.ndarray) -> None:
        self._new.append((self._keys_of(points), np.column_stack([points, np.ones(len(points)), scores])))
        if sum(len(keys) for keys, _ in self._new) > _MERGE_AFTER:
            self._merge()

    def _merge(self) -> None:
        keys, sums = (np.concatenate(parts) for parts in zip((self._keys, self._sums), *self._new, strict=True))
        self._keys, places = np.unique(keys, return_inverse=True)
        self._sums = np.stack([np.bincount(places, column, len(self._keys)) for column in sums.T], axis=1)
        self._new = []

    def finish(self, limit: int | None) -> tuple[np.ndarray, np.ndarray]:
        """Return the keypoints, best first, and their scores."""
        self._merge()
        best = np.argsort(-self._sums[:, 3], kind="stable")[:limit]
        self._numbers = np.full(len(self._keys), -1, np.int64)
        self._numbers[best] = np.arange(len(best))
        points = (self._sums[best, :2] / self._sums[best, 2:3]).astype(np.float32)
        return points, self._sums[best, 3].astype(np.float32)

    def keypoints_of(self, points: np.ndarray) -> np.ndarray:
        """Return the keypoint of each point that was added, −1 for those that were dropped."""
        return self._numbers[np.searchsorted(self._keys, self._keys_of(points))]

    def _keys_of(self, points: np.ndarray) -> np.ndarray:
        """Return a number per cell: round((k + ½) / c) along both axes."""
        cells = np.round((points + 0.5) / self.side).astype(np.int64) + _MARGIN
        return (cells[:, 1] << 32) + cells[:, 0]


def _first_of_each(indices: np.ndarray) -> np.ndarray:
    """Return the rows (N, 2), ascending, that are the first with their number in both columns."""
    first, second = (np.unique(column, return_index=True)[1] for column in indices.T)
    return np.intersect1d(first, second)
