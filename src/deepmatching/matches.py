"""Matches, the result of matching, with adapters for other libraries."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from numbers import Integral
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from deepmatching.errors import DeepMatchingError, check_number, check_size, counted, short_repr
from deepmatching.geometry.agreement import MAX_POINTS, count_agreeing, grid_axis
from deepmatching.geometry.homographies import apply, displacements, inside, resizing
from deepmatching.geometry.two_view import TwoViewGeometry, find_essential, find_fundamental, find_homography
from deepmatching.io import matches as files
from deepmatching.io.arrays import unmasked
from deepmatching.io.files import PathLike
from deepmatching.io.images import check_dense
from deepmatching.io.matches import MatchArrays, Size, from_corners, to_corners
from deepmatching.settings import choose_device

if TYPE_CHECKING:
    from deepmatching.io.images import ImageLike
    from deepmatching.network.operators.decoding import Decoded


#: The fields of matches that are tensors.
_TENSORS = ("keypoints0", "keypoints1", "scores", "confidence", "transformation", "cycle_error", "transformations")

_MAX_SIDE = 2**15  #: longest side of an image in pixels that notebooks show


@dataclass(frozen=True, eq=False)
class Matches:
    """Correspondences between two images."""

    keypoints0: Tensor  #: (N, 2) float32, x and y in the first image, in pixels; pixel centres are integers
    keypoints1: Tensor  #: (N, 2) float32, the corresponding points in the second image
    scores: Tensor  #: (N,) float32, at most L + 1 for L levels, comparable within one pair
    size0: Size | None = None  #: (rows, columns) of the first image, if known
    size1: Size | None = None  #: (rows, columns) of the second image, if known
    #: (N,) float32, the probability that a match is less than 3 pixels off, comparable between pairs; None if the model
    #: does not judge its matches.
    confidence: Tensor | None = None
    transformation: Tensor | None = None  #: (N,) int64, the transformation of each match; None without a search
    #: (K, 3, 3) float32, from (x, y, 1) in the first image to the second; None without a search. Matches may move on.
    transformations: Tensor | None = None
    #: Number of points of the first image that were matched, without those that masks cover; None if unknown.
    reference_points: int | None = None
    cycle_error: Tensor | None = None  #: (N,) float32, pixels from the start, forward and back; None if matched one way

    def __post_init__(self) -> None:
        for name in _TENSORS:  # arrays and lists are accepted too
            if getattr(self, name) is not None or name in _TENSORS[:3]:
                object.__setattr__(self, name, as_tensor(getattr(self, name), name))
        for name in ("size0", "size1"):
            if getattr(self, name) is not None:
                object.__setattr__(self, name, check_size(name, getattr(self, name)))
        n, (number, table) = self.scores.numel(), (self.transformation, self.transformations)
        for name in _TENSORS[:6]:
            shape = (n, 2) if name.startswith("keypoints") else (n,)
            if (tensor := getattr(self, name)) is not None and tensor.shape != shape:
                raise DeepMatchingError(f"{n} matches need {name} of shape {shape}, not {tuple(tensor.shape)}.")
        if (number is None) != (table is None):
            raise DeepMatchingError("Matches need both transformation and transformations, or neither.")
        if number is None or table is None:
            return
        if table.ndim != 3 or table.shape[1:] != (3, 3):
            raise DeepMatchingError(f"Matches need transformations of shape (K, 3, 3), not {tuple(table.shape)}.")
        if not ((number >= 0) & (number < len(table))).all():
            raise DeepMatchingError(f"transformation must name one of the {len(table)} transformations for each match.")

    def __len__(self) -> int:
        return len(self.scores)

    def __repr__(self) -> str:
        text = counted(len(self), "match")
        if self.size0 is not None and self.size1 is not None:
            (rows0, columns0), (rows1, columns1) = self.size0, self.size1
            text += f" between images of {columns0}x{rows0} and {columns1}x{rows1} pixels"
        if len(self):
            length = self.displacements.norm(dim=1)
            text += f"; displacement {length.median():.1f} px (median), {length.max():.1f} px (largest)"
        if self.confidence is not None and len(self):
            text += f"; confidence {self.confidence.mean():.2f} (mean)"
        if self.cycle_error is not None and len(self):
            text += f"; cycle error {self.cycle_error.median():.2f} px (median)"
        return f"<{text}>"

    def _repr_html_(self) -> str:
        """Return the same for notebooks, above a small picture of the displacements."""
        from deepmatching.drawing import draw_displacement, html_picture

        keypoints0, keypoints1, _ = self.numpy()
        rows, columns = self.size0 or [int(side) + 5 for side in keypoints0.max(axis=0, initial=0)[::-1]]
        if not len(self) or max(rows, columns) > _MAX_SIDE:
            return html_picture(repr(self))
        cell = int(np.clip(np.ceil(np.sqrt(1.3 * rows * columns / len(self))), 2, 64))
        picture = draw_displacement(keypoints0, keypoints1, rows, columns, cell, self.certainty.detach().cpu().numpy())
        return html_picture(repr(self), picture)

    def __getitem__(self, chosen: Any) -> Matches:
        """Return some of the matches, chosen by a boolean mask, a slice, indices or one index."""
        if isinstance(chosen, Integral) or getattr(chosen, "ndim", None) == 0:  # Python's, NumPy's or PyTorch's
            chosen = [range(len(self))[int(chosen)]]
        own = {name: getattr(self, name) for name in _TENSORS if name != "transformations"}
        return replace(self, **{name: tensor[chosen] for name, tensor in own.items() if tensor is not None})

    @property
    def displacements(self) -> Tensor:
        """(N, 2), keypoints1 − keypoints0."""
        return self.keypoints1 - self.keypoints0

    @property
    def expected_correct(self) -> float:
        """The number of matches that are expected to be right: the sum of the confidence; NaN without one.

        Matching warns if the :attr:`expected_fraction` is below ``deepmatching.settings.MIN_EXPECTED``.
        """
        return math.nan if self.confidence is None else float(self.confidence.sum())

    @property
    def expected_fraction(self) -> float:
        """The share of the reference points ``in_view`` that are expected to have a right match; NaN if unknown."""
        if not self.reference_points:
            return math.nan
        return self.expected_correct / (self.reference_points * self.in_view)

    @property
    def agreement(self) -> float:
        """How far neighbouring matches agree: the share of the reference points, 0 … 1, whose match does.

        A match agrees if it is at most half the grid's spacing off the median of the at least three matches around it.
        After a search, what counts is the motion beyond the transformations, and points that are ``in_view``. Below
        ``deepmatching.settings.MIN_AGREEMENT`` the matches are probably wrong. NaN for matches that do not start on a
        grid, such as those of other matchers, and for a grid smaller than 3 × 3 or larger than that of any image.
        """
        keypoints0, keypoints1, _ = self.numpy()
        axes = [grid_axis(keypoints0[:, axis], self.size0 and self.size0[1 - axis]) for axis in (0, 1)]
        (column, columns, spacing), (row, rows, _) = axes
        if min(rows, columns) < 3 or rows * columns > MAX_POINTS:
            return math.nan
        moved, counts = torch.zeros(rows, columns, 2), torch.zeros(rows, columns, dtype=torch.bool)
        moved[row, column] = torch.from_numpy(keypoints1 - self._transformed()).float()
        counts[row, column] = True
        points = min(rows * columns, self.reference_points or rows * columns)
        return min(1.0, int(count_agreeing(moved, counts, spacing)) / (points * self.in_view))

    def _transformed(self) -> np.ndarray:
        """Return where the transformations take keypoints0, (N, 2); keypoints0 without a search."""
        points = self.keypoints0.detach().cpu().numpy()
        if self.transformation is None or self.transformations is None:
            return points
        numbers, ends = self.transformation.cpu().numpy(), np.empty_like(points)
        for number, matrix in enumerate(self.transformations.detach().cpu().double().numpy()):
            ends[numbers == number] = apply(matrix, points[numbers == number])
        return ends

    @property
    def in_view(self) -> float:
        """The share of the first image that a search's transformations take into the second, above 0; else 1."""
        if self.transformations is None or self.size0 is None or self.size1 is None:
            return 1.0
        rows, columns = (np.linspace(0, side - 1, 64) for side in self.size0)
        points = np.stack(np.meshgrid(columns, rows), axis=2).reshape(-1, 2)
        table = self.transformations.detach().cpu().double().numpy()
        seen = [inside(apply(matrix, points), self.size1) for matrix in table]
        return max(float(np.any(seen, axis=0).mean()), 1 / len(points))

    @property
    def certainty(self) -> Tensor:
        """(N,), by which matches are ranked: the confidence if there is one, else the scores."""
        return self.scores if self.confidence is None else self.confidence

    @property
    def derivatives(self) -> Tensor:
        """(N, 2, 2), how keypoints1 change with keypoints0, by the transformations; the identity without a search."""
        if self.transformation is None or self.transformations is None:
            return torch.eye(2, device=self.scores.device).expand(len(self), 2, 2)
        matrices = self.transformations[self.transformation]
        mapped = (matrices @ torch.nn.functional.pad(self.keypoints0, (0, 1), value=1.0)[..., None])[..., 0]
        ends, weight = mapped[:, :2] / mapped[:, 2:], mapped[:, 2, None, None]
        return (matrices[:, :2, :2] - ends[..., None] * matrices[:, 2, None, :2]) / weight

    def best(self, n: int) -> Matches:
        """Return the n most confident matches, best first."""
        check_number("n", n, minimum=0, whole=True)
        return self[torch.argsort(self.certainty, descending=True, stable=True)[:n]]

    def filter(self, min_confidence: float | None = None, max_cycle_error: float | None = None) -> Matches:
        """Return the matches with at least this confidence, from 0 to 1, and at most this cycle error, in pixels."""
        kept = torch.ones_like(self.scores, dtype=torch.bool)
        if min_confidence is not None:
            check_number("min_confidence", min_confidence, minimum=0, maximum=1)
            kept &= self._known("confidence", "use a model with one, such as 'compact'") >= min_confidence
        if max_cycle_error is not None:
            check_number("max_cycle_error", max_cycle_error, minimum=0)
            kept &= self._known("cycle_error", "match in both directions (both)") <= max_cycle_error
        return self[kept]

    def _known(self, name: str, advice: str) -> Tensor:
        values: Tensor | None = getattr(self, name)
        if values is None:
            raise DeepMatchingError(f"These matches have no {name.replace('_', ' ')}: {advice}.")
        return values

    def to(self, device: torch.device | str) -> Matches:
        """Return the same matches on another device."""
        there, own = choose_device(device), {name: getattr(self, name) for name in _TENSORS}
        return replace(self, **{name: tensor.to(there) for name, tensor in own.items() if tensor is not None})

    def at_sizes(self, size0: Size, size1: Size) -> Matches:
        """Return the same matches in images that were resized from their sizes to these (rows, columns)."""
        if self.size0 is None or self.size1 is None:
            raise DeepMatchingError("The sizes of these matches' images are not known: give them to Matches.")
        size0, size1 = check_size("size0", size0), check_size("size1", size1)
        if (self.size0, self.size1) == (size0, size1):
            return self
        ends = ((self.keypoints0, self.size0, size0), (self.keypoints1, self.size1, size1))
        keypoints0, keypoints1 = (
            from_corners(to_corners(points) * points.new_tensor([new[1] / old[1], new[0] / old[0]]))
            for points, old, new in ends
        )
        error = None if self.cycle_error is None else self.cycle_error * (size0[1] / self.size0[1])
        own = {"keypoints0": keypoints0, "keypoints1": keypoints1, "size0": size0, "size1": size1}
        moved = replace(self, **own, cycle_error=error)  # type: ignore[arg-type]
        if self.transformations is None:
            return moved
        to0, to1 = (points.new_tensor(resizing(old, new)) for points, old, new in ends)
        return replace(moved, transformations=to1 @ self.transformations @ torch.linalg.inv(to0))

    def numpy(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return keypoints0, keypoints1 and scores as arrays."""
        return tuple(t.detach().cpu().numpy() for t in (self.keypoints0, self.keypoints1, self.scores))  # type: ignore[return-value]

    @classmethod
    def from_decoded(
        cls, decoded: Decoded, size0: Size | None = None, size1: Size | None = None, min_confidence: float = 0.0
    ) -> list[Matches]:
        """Return the matches of each pair of a batch that :func:`selected_mask` selects; waits for a GPU twice."""
        kept = selected_mask(decoded, slice(None), min_confidence)
        pairs, rows, columns = kept.nonzero(as_tuple=True)
        counts, confidence = kept.flatten(1).sum(dim=1).tolist(), decoded.confidence
        points0, points1 = decoded.at_pixel_centres()
        points = (points0[rows, columns], *(values[pairs, rows, columns] for values in (points1, decoded.scores)))
        parts = [values.split(counts) for values in points]
        sure = [None] * len(counts) if confidence is None else confidence[pairs, rows, columns].split(counts)
        grid = len(points0) * points0.shape[1]
        found = zip(*parts, sure, strict=True)
        return [cls(*own, size0, size1, certain, reference_points=grid) for *own, certain in found]  # type: ignore[call-arg, misc]

    def homography(self, threshold: float = 3.0) -> TwoViewGeometry:
        """Find the homography that most matches fit within ``threshold`` pixels, by OpenCV's MAGSAC."""
        return find_homography(*self.numpy()[:2], threshold)

    def fundamental(self, threshold: float = 1.0) -> TwoViewGeometry:
        """Find the fundamental matrix that most matches fit within ``threshold`` pixels, by OpenCV's MAGSAC."""
        return find_fundamental(*self.numpy()[:2], threshold)

    def essential(self, K0: np.ndarray, K1: np.ndarray, threshold: float = 1.0) -> TwoViewGeometry:
        """Find the essential matrix and the motion of cameras with these matrices (3, 3), by OpenCV's MAGSAC."""
        return find_essential(*self.numpy()[:2], K0, K1, threshold)

    def warp(self, image1: ImageLike, threshold: float = 3.0) -> np.ndarray:
        """Return the second image as the first one would show it by :meth:`homography`, uint8 RGBA (H, W, 4).

        Pixels that leave the second image are grey and transparent.
        """
        from deepmatching.drawing import warp
        from deepmatching.io.images import check_matched_size, load_image

        if self.size0 is None:
            raise DeepMatchingError("The size of the first image is not known: give size0 to Matches.")
        check_matched_size(second := load_image(image1, "image1"), self.size1)
        return warp(second, displacements(self.homography(threshold).matrix, self.size0))

    def as_kornia(self) -> dict[str, Tensor]:
        """Return a dictionary like that of kornia's LoFTR."""
        return {
            "keypoints0": self.keypoints0,
            "keypoints1": self.keypoints1,
            "confidence": self.certainty,
            "batch_indexes": torch.zeros(len(self), dtype=torch.long, device=self.scores.device),
        }

    def as_hloc(self) -> dict[str, np.ndarray]:
        """Return keypoints with ``matches0`` and ``matching_scores0``, as in hloc's feature and match files."""
        keypoints0, keypoints1, _ = self.numpy()
        return {
            "keypoints0": keypoints0,
            "keypoints1": keypoints1,
            "matches0": np.arange(len(self), dtype=np.int32),
            "matching_scores0": self.certainty.detach().cpu().numpy(),
        }

    def as_opencv(self) -> tuple[list[Any], list[Any], list[Any]]:
        """Return OpenCV's keypoints of both images, and a ``DMatch`` for each match.

        The distance is 1 − confidence, or minus the score of matches without a confidence: OpenCV wants the smallest.
        """
        import cv2

        keypoints0, keypoints1, scores = (array.tolist() for array in self.numpy())
        distances = [-score for score in scores] if self.confidence is None else (1 - self.confidence).tolist()
        return (
            [cv2.KeyPoint(x, y, 8.0) for x, y in keypoints0],
            [cv2.KeyPoint(x, y, 8.0) for x, y in keypoints1],
            [cv2.DMatch(i, i, distance) for i, distance in enumerate(distances)],
        )

    def _arrays(self) -> MatchArrays:
        own = {name: getattr(self, name) for name in MatchArrays._fields}
        return MatchArrays(**{n: v.detach().cpu().numpy() if isinstance(v, Tensor) else v for n, v in own.items()})  # type: ignore[arg-type]

    def as_text(self, confidence: bool = False) -> str:
        """Return the original program's lines, ``x0 y0 x1 y1 score index``: positions from pixel corners, index 0.

        With ``confidence``, that is a seventh column.
        """
        return files.format_matches(self._arrays(), confidence)

    def as_json(self) -> dict[str, Any]:
        """Return the arrays by name in the types of JSON, as in ``.json`` files."""
        return files.to_json(self._arrays())

    def save(self, path: PathLike, confidence: bool = False) -> None:
        """Write ``.txt`` (the original's format), ``.csv``, ``.json``, ``.npz`` or ``.h5``, depending on the suffix.

        All but ``.txt`` hold the confidence; with ``confidence``, that has it as a seventh column.
        """
        files.write_matches(path, self._arrays(), confidence)

    @classmethod
    def load(cls, path: PathLike) -> Matches:
        """Read a file that :meth:`save` or another matcher wrote; see :func:`deepmatching.io.matches.read_matches`."""
        return cls(**files.read_matches(path)._asdict())

    def draw(
        self,
        image0: ImageLike,
        image1: ImageLike,
        path: PathLike | None = None,
        inliers: np.ndarray | Tensor | None = None,
        *,
        lines: int = 40,
        full_color: float | None = None,
    ) -> np.ndarray:
        """Return a picture of the matches, (rows, columns, 3) uint8 RGB; also written to ``path`` if given.

        Matches of low confidence are pale and have no arrow. With a mask of inliers (N,), the lines of the others are
        grey. ``lines`` is how many lines there are at most, and ``full_color`` the displacement in pixels that gets
        full colour, by default nearly the largest.
        """
        check_number("lines", lines, minimum=0, maximum=10_000, whole=True)
        if full_color is not None:
            check_number("full_color", full_color, above=0)
        from deepmatching.drawing import draw_match_figure, write_image
        from deepmatching.io.images import check_matched_size, load_image

        images = load_image(image0, "image0"), load_image(image1, "image1")
        for image, size in zip(images, (self.size0, self.size1), strict=True):
            check_matched_size(image, size)
        mask = None if inliers is None else as_tensor(inliers, "inliers").cpu().numpy().reshape(-1) != 0
        picture = draw_match_figure(*images, *self.numpy(), self._arrays().confidence, mask, lines, full_color)
        if path is not None:
            write_image(path, picture)
        return picture


def as_tensor(value: Any, name: str) -> Tensor:
    """Return numbers as a dense tensor: whole numbers for ``transformation``, else of floating point."""
    if isinstance(value, np.ndarray):
        value = np.asarray(unmasked(value, name), order="C")
    try:
        tensor = torch.as_tensor(value)
    except (TypeError, ValueError, RuntimeError, OverflowError):
        raise DeepMatchingError(f"The {name} must be numbers, not {short_repr(value)}.") from None
    check_dense(tensor, name)
    if tensor.is_complex() or (name == "transformation" and tensor.is_floating_point()):
        raise DeepMatchingError(f"The {name} cannot be of type {tensor.dtype}.")
    if name == "transformation":
        return tensor.long()
    return tensor if tensor.is_floating_point() else tensor.float()


NO_MATCHES = Matches(torch.zeros(0, 2), torch.zeros(0, 2), torch.zeros(0))


def selected_mask(decoded: Decoded, b: int | slice, min_confidence: float = 0.0) -> Tensor:
    """Return which matches of pair b of a batch, or of several, are given out, (…, H_0, W_0) bool: the verified ones.

    With a ``min_confidence`` above 0 and a network that judges its matches, also others that reach it.
    """
    if decoded.confidence is None or not min_confidence:
        return decoded.verified[b]
    return decoded.verified[b] | ((decoded.confidence[b] >= min_confidence) & torch.isfinite(decoded.scores[b]))
