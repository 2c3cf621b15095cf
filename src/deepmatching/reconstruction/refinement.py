"""Matches between two images, refined by their neighbours and completed in the other direction.

Around a point, the matches that agree give a local affine map. It places the point's own match more precisely, and it
gives a match to keypoints of the second image that lie between the matches. Keypoints of an image then have matches in
the images before it as well as after it, which makes tracks longer.
"""

from typing import NamedTuple

import numpy as np
import torch

from deepmatching.geometry.homographies import affine_fit

MAX_DISAGREEMENT = 0.2  #: Matches agree if their displacements differ by less than this many steps of the grid.
_MAX_DISTANCE = 1.7  #: Largest distance of a neighbour, in steps.
_SIGMA = 0.7  #: Standard deviation of the weights of neighbours, in steps.
_MIN_NEIGHBOURS = 3  #: Minimum number of neighbours that agree.
_MAX_NEAREST = 0.9  #: Largest distance to the nearest of them, in steps.
#: Weight of a constant displacement against an affine one: where neighbours lie in a line, an affine map is arbitrary.
_RIDGE = 0.15
_TINY_RIDGE = 1e-9  #: Keeps the fit of a point without neighbours solvable.
#: Bins along each axis that a point looks for neighbours in. A bin is half a step wide and has one match.
_BINS = np.arange(-3, 4)


class Field(NamedTuple):
    """Displacements at points, both (N, 2), in a unit in which neighbouring points are ``step`` apart."""

    points: np.ndarray
    displacements: np.ndarray
    scores: np.ndarray  #: (N,); of two matches in one bin, the better counts
    step: float


def fit(field: Field, points: np.ndarray, own: np.ndarray | None = None) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Fit a local affine map to the matches around each of the ``points`` (M, 2).

    Matches must agree with the displacements ``own`` (M, 2); None for the median of those around the point. Return the
    displacements (M, 2) and scores (M,) of the points, and which of them (M,) enough matches agree on.
    """
    if not len(field.points) or not len(points):
        return np.zeros((len(points), 2)), np.zeros(len(points)), np.zeros(len(points), bool)
    neighbours = _neighbours(field, points)
    there = neighbours >= 0
    offsets = (field.points[neighbours] - points[:, None]) / field.step
    distances = np.hypot(offsets[..., 0], offsets[..., 1])
    there &= distances < _MAX_DISTANCE
    around = field.displacements[neighbours]
    reference = _median(around, there) if own is None else own
    difference = around - reference[:, None]
    agree = there & (np.hypot(difference[..., 0], difference[..., 1]) < MAX_DISAGREEMENT * field.step)
    nearest = np.where(agree, distances, np.inf).min(axis=1)
    weights = agree * np.exp(-(distances**2) / (2 * _SIGMA**2))
    system = [torch.from_numpy(array) for array in (offsets, difference, np.sqrt(weights))]
    models = affine_fit(system[0], system[1], system[2], _RIDGE, _TINY_RIDGE).numpy()
    scores = (weights * field.scores[neighbours]).sum(axis=1) / np.maximum(weights.sum(axis=1), 1e-9)
    is_reliable = (agree.sum(axis=1) >= _MIN_NEIGHBOURS) & (nearest < _MAX_NEAREST)
    return reference + models[:, 2], scores, is_reliable


def refine(points0: np.ndarray, points1: np.ndarray, scores: np.ndarray, step: float) -> np.ndarray:
    """Return the second points (N, 2) of matches, moved to where they and their neighbours agree, if enough do."""
    displacements = points1 - points0
    fitted, _, is_reliable = fit(Field(points0, displacements, scores, step), points0, displacements)
    return points0 + np.where(is_reliable[:, None], fitted, displacements)


def reverse(
    points0: np.ndarray, points1: np.ndarray, scores: np.ndarray, step: float, keypoints1: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Match keypoints (M, 2) of the second image by the matches around them; return points0, points1 and scores."""
    displacements, fitted, kept = fit(Field(points1, points0 - points1, scores, step), keypoints1)
    return (keypoints1 + displacements)[kept], keypoints1[kept], fitted[kept]


def _neighbours(field: Field, points: np.ndarray) -> np.ndarray:
    """Return the matches in the bins around each point, (M, bins) indices, −1 for an empty bin."""
    side = field.step / 2
    origin = field.points.min(axis=0)
    margin = len(_BINS)  # bins of points outside the field are empty
    place = np.floor((field.points - origin) / side).astype(np.int64) + margin
    columns, rows = place.max(axis=0) + margin + 1
    table = np.full((rows, columns), -1, np.int64)
    best_last = np.argsort(field.scores, kind="stable")
    table[place[best_last, 1], place[best_last, 0]] = best_last
    reach = -_BINS[0]
    at = np.floor((points - origin) / side).astype(np.int64) + margin
    x = np.clip(at[:, 0], reach, columns - 1 - reach)
    y = np.clip(at[:, 1], reach, rows - 1 - reach)
    down, across = (bins.ravel() for bins in np.meshgrid(_BINS, _BINS, indexing="ij"))
    return table[y[:, None] + down, x[:, None] + across]


def _median(values: np.ndarray, there: np.ndarray) -> np.ndarray:
    """Return the median (M, 2) over the second axis of values (M, K, 2) where ``there`` (M, K); 0 without any."""
    ordered = np.sort(np.where(there[..., None], values, np.inf), axis=1)
    middle = np.maximum(there.sum(axis=1) - 1, 0) // 2
    found = np.take_along_axis(ordered, middle[:, None, None], axis=1)[:, 0]
    return np.where(np.isfinite(found), found, 0.0)
