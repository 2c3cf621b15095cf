"""Edge-preserving interpolation of matches to a dense flow, as in EpicFlow (Revaud et al., CVPR 2015)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from deepmatching.errors import DeepMatchingError
from deepmatching.flow import filters
from deepmatching.flow.operators.geodesic import Cells, Neighbours, cells_of, neighbours_of
from deepmatching.flow.operators.local_models import affine_models, falloff_weights, paint, weighted_means
from deepmatching.flow.settings import InterpolationSettings

#: What to say without a match.
NOTHING = "There are no matches, so there is nothing to interpolate; try an easier pair."

_FAR = 1e6  # pixels; matches that move further are dropped
_STRONGEST_EDGE = 100  # an edge map in 0 … 255 exceeds it


@dataclass(frozen=True, eq=False)
class Interpolation:
    """An interpolated flow and what it was made from.

    Attributes:
        flow: (H, W, 2) float32, x and y in pixels.
        kept: (S,) int64, indices of the matches that passed the filters, the seeds.
        points: (S, 2) float64, where they start.
        cells: which pixels belong to which seed.
        support: (S,), number of neighbours of each seed, itself included.
        spread: (S,) float64, how much these neighbours disagree with the seed's model, in pixels.
        edges: (H, W) float32, the edge strength.
        settings: the settings used.
    """

    flow: np.ndarray
    kept: np.ndarray
    points: np.ndarray
    cells: Cells
    support: np.ndarray
    spread: np.ndarray
    edges: np.ndarray
    settings: InterpolationSettings

    @property
    def neighbours(self) -> Neighbours:
        """The nearest seeds of each seed: computed anew, because they take more memory than the flow."""
        return neighbours_of(self.cells, self.settings.neighbours)

    def differentiable(self, keypoints0: Tensor, keypoints1: Tensor, weights: Tensor | None = None) -> Tensor:
        """The same flow (H, W, 2) as a function of all N matches, for training.

        The choice of matches, their cells and their neighbours are fixed. Gradients reach the positions and weights of
        the seeds.
        """
        kept = torch.from_numpy(self.kept).to(keypoints0.device)
        points = keypoints0[kept].double()
        confidence = None if weights is None else weights[kept].double()
        displacements = keypoints1[kept].double() - points
        return _render(self.cells.label, self.neighbours, points, displacements, confidence, self.settings)[0]


def interpolate(
    keypoints0: Any,
    keypoints1: Any,
    edges: Any,
    image0: Tensor | None = None,
    *,
    scores: Any = None,
    weights: Any = None,
    confidence: Any = None,
    backward: tuple[Any, Any] | None = None,
    settings: InterpolationSettings = InterpolationSettings(),  # noqa: B008 - frozen
) -> Interpolation:
    """Interpolate matches without crossing edges.

    1. Matches are dropped if they are not finite, start outside the image or move by a million pixels. One match per
       pixel is kept.
    2. Filters drop matches of low confidence, or else those that fail the round trip, matches in flat places, matches
       in small groups, and matches that are inconsistent with their neighbours. A filter that would drop all matches is
       skipped.
    3. Every pixel is assigned to its geodesically nearest match, and every match to its nearest neighbours.
    4. A motion model is fitted to the neighbours of each match and moves the pixels assigned to that match.

    Args:
        keypoints0, keypoints1: (N, 2), x and y in pixels; pixel centres are integers.
        edges: (H, W), edge strength from 0 to 1.
        image0: the first image, (1 or 3, H, W) in [0, 1], for the filter of flat places; None skips it.
        scores: (N,), higher is better. Of several matches in a pixel, the one with the highest score is kept; without
            scores, the one with the highest weight. A match whose score is not finite is dropped.
        weights: (N,), weights of the matches; None for equal weights. A match whose weight is not positive and finite
            is dropped.
        confidence: (N,), probability that each match is right; None if unknown. Without ``weights``, it is the weight.
        backward: keypoints (M, 2), (M, 2) of matches from the second image to the first.
        settings: the settings of the interpolation.
    """
    given = _as_edges(edges)
    strength = given ** np.float32(settings.contrast)
    start, end = _as_points(keypoints0, "keypoints0"), _as_points(keypoints1, "keypoints1")
    _check_lengths(start, end)
    score, weight, certainty = (
        _as_numbers(v, n, len(start))
        for v, n in ((scores, "scores"), (weights, "weights"), (confidence, "confidences"))
    )
    kept = _usable(start, end, score, weight, strength.shape)
    judged = certainty if settings.confidence > 0 else None
    if judged is not None:
        kept = kept[judged[kept] >= filters.least_confidence(judged[kept], settings.confidence, settings.least_kept)]
        weight = np.maximum(judged, filters.LEAST_WEIGHT) if weight is None else weight
    if settings.saliency > 0 and image0 is not None:
        column, row = _pixels(start[kept], strength.shape).T
        kept = _unless_empty(
            kept, filters.saliency(_as_image(image0, strength.shape))[row, column] >= settings.saliency
        )
    if backward is not None and settings.backward > 0 and judged is None:
        errors = filters.round_trip_errors(start[kept], end[kept], *_as_backward(*backward))
        kept = _unless_empty(kept, errors < settings.backward)
    kept, cells = _consistent(kept, start, end, strength, settings)
    neighbours = neighbours_of(cells, settings.neighbours)
    points = torch.from_numpy(start[kept])
    importance = None if weight is None else torch.from_numpy(weight[kept])
    displacements = torch.from_numpy(end[kept]) - points
    flow, spread = _render(cells.label, neighbours, points, displacements, importance, settings)
    support = (neighbours.seeds >= 0).sum(axis=1)
    return Interpolation(flow.numpy(), kept, start[kept], cells, support, spread.numpy(), given, settings)


def starts_inside(points: np.ndarray, shape: tuple[int, int]) -> np.ndarray:
    """Which points (N, 2) lie in an image (H, W): (N,) bool. A point up to one pixel outside counts as inside."""
    return np.asarray(((points > -1) & (points < (shape[1], shape[0]))).all(axis=1))


def _usable(
    start: np.ndarray, end: np.ndarray, score: np.ndarray | None, weight: np.ndarray | None, shape: tuple[int, int]
) -> np.ndarray:
    """Step 1: the indices of the matches that remain, in order."""
    if len(start) == 0:
        raise DeepMatchingError(NOTHING)
    reason = f"starts in the image of {shape[1]}x{shape[0]} pixels; give matches of this image"
    with np.errstate(invalid="ignore"):
        usable = starts_inside(start, shape) & (np.abs(end) < _FAR).all(axis=1)
    if usable.any() and score is not None:
        reason, usable = "has a finite score; leave the scores out", usable & np.isfinite(score)
    if usable.any() and weight is not None:
        reason, usable = "has a positive weight; leave the weights out", usable & np.isfinite(weight) & (weight > 0)
    if not usable.any():
        raise DeepMatchingError(f"None of the {len(start)} matches {reason}.")
    kept = np.flatnonzero(usable)
    better = weight if score is None else score
    first = filters.first_of_each_pixel(_pixels(start[kept], shape), None if better is None else better[kept])
    return kept[first]


def _consistent(
    kept: np.ndarray, start: np.ndarray, end: np.ndarray, edges: np.ndarray, settings: InterpolationSettings
) -> tuple[np.ndarray, Cells]:
    """The group and consistency filters: the matches that remain, and their cells."""
    cells = cells_of(edges, _pixels(start[kept], edges.shape))
    stays = np.ones(len(kept), dtype=bool)
    displacements = end[kept] - start[kept]
    if settings.group > 1:
        large = filters.group_sizes(cells, displacements, settings.group_tolerance) >= settings.group
        stays = large if large.any() else stays
    if settings.consistency > 0:
        neighbours = neighbours_of(cells, settings.filter_neighbours + 1)
        error = filters.inconsistency(neighbours, displacements, settings.falloff, stays)
        consistent = stays & (error < settings.consistency)
        stays = consistent if consistent.any() else stays
    if stays.all():
        return kept, cells
    kept = kept[stays]
    return kept, cells_of(edges, _pixels(start[kept], edges.shape))


def _render(
    label: np.ndarray,
    neighbours: Neighbours,
    points: Tensor,
    displacements: Tensor,
    confidence: Tensor | None,
    settings: InterpolationSettings,
) -> tuple[Tensor, Tensor]:
    """Step 4: the flow (H, W, 2), and the spread (S,)."""
    index, distances, cells = (torch.from_numpy(a).to(points.device) for a in (*neighbours, label))
    if confidence is not None:  # only ratios matter, and the ridge is tuned for weights around 1
        confidence = (confidence / confidence.mean()).clamp(min=1e-100)  # whose square does not underflow
    weights = falloff_weights(index, distances, settings.falloff, confidence)
    models, spread = affine_models(index, weights, points, displacements, settings.ridge, settings.wide)
    if settings.model == "mean":
        means = weighted_means(index, weights, displacements)
        models = torch.cat([torch.zeros_like(models[:, :2]), means[:, None]], dim=1)
    return paint(cells, points, models).float(), spread


def _unless_empty(kept: np.ndarray, stays: np.ndarray) -> np.ndarray:
    return kept[stays] if stays.any() else kept


def _pixels(points: np.ndarray, shape: tuple[int, int]) -> np.ndarray:
    """Column and row (N, 2) of the nearest pixel; of two equally near, the right or lower one."""
    return np.clip(np.floor(points + 0.5), 0, (shape[1] - 1, shape[0] - 1)).astype(np.int64)


def _as_array(values: Any) -> np.ndarray:
    if isinstance(values, Tensor):
        values = values.detach().cpu()
    try:
        return np.asarray(values, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise DeepMatchingError("Keypoints, scores and weights must be arrays of numbers.") from error


def _as_points(points: Any, name: str) -> np.ndarray:
    array = _as_array(points)
    if array.size == 0:
        return array.reshape(0, 2)
    if array.ndim != 2 or array.shape[1] != 2:
        raise DeepMatchingError(f"{name} must be an array (N,2) of (x,y), but it has shape {array.shape}.")
    return array


def _as_backward(keypoints0: Any, keypoints1: Any) -> tuple[np.ndarray, np.ndarray]:
    """The finite ones among the matches from the second image to the first."""
    start, end = _as_points(keypoints0, "backward's first"), _as_points(keypoints1, "backward's second")
    _check_lengths(start, end)
    finite = np.isfinite(start).all(axis=1) & np.isfinite(end).all(axis=1)
    return start[finite], end[finite]


def _check_lengths(keypoints0: np.ndarray, keypoints1: np.ndarray) -> None:
    if len(keypoints0) != len(keypoints1):
        raise DeepMatchingError(
            f"There are {len(keypoints0)} keypoints in one image and {len(keypoints1)} in the other, but they must "
            "correspond one to one."
        )


def _as_numbers(values: Any, name: str, number: int) -> np.ndarray | None:
    if values is None:
        return None
    array = _as_array(values).reshape(-1)
    if len(array) != number:
        raise DeepMatchingError(f"There are {number} matches and {len(array)} {name}; each match needs one.")
    return array


def _as_edges(edges: Any) -> np.ndarray:
    if isinstance(edges, Tensor):
        edges = edges.detach().cpu()
    strength = np.ascontiguousarray(edges, dtype=np.float32)
    if strength.ndim != 2 or strength.size == 0:
        raise DeepMatchingError(f"An edge map must be (H,W), but this one has shape {strength.shape}.")
    if not (strength.min() >= 0 and strength.max() <= _STRONGEST_EDGE):
        raise DeepMatchingError("An edge map must not contain NaN, negative or large values; scale it to 0 … 1.")
    return strength


def _as_image(image: Tensor, shape: tuple[int, int]) -> np.ndarray:
    planar = image.detach().cpu().numpy()
    if planar.shape[1:] != shape:
        raise DeepMatchingError(
            f"The first image is {planar.shape[2]}x{planar.shape[1]} pixels, but its edge map {shape[1]}x{shape[0]}; "
            "make the edge map from this image."
        )
    return planar
