"""How good a set of matches is: the paper's acc@T and its companions.

Pixel centres are at integer coordinates: the pixel in column j and row i is at (x,y) = (j,i).
Keypoints are (N,2) arrays of (x,y); match n goes from keypoints0[n] to keypoints1[n].
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from deepmatching.errors import DeepMatchingError


def propagate(
    keypoints0: np.ndarray,
    keypoints1: np.ndarray,
    scores: np.ndarray,
    height: int,
    width: int,
    radius: float = 8,
) -> np.ndarray:
    """Spread quasi-dense matches to every pixel: float32 (H,W,2) displacements.

    A pixel takes the displacement of the most confident match at most `radius` px away from it in both x
    and y (L∞ distance), the first of equals, and NaN where there is none. A match starts at the pixel nearest
    to it; between two, at the right or lower one, so that the original's corner x = 4 counts as pixel 4 (and
    reaches 17 pixels at radius 8), as in published figures.
    """
    start, end = _as_points(keypoints0), _as_points(keypoints1)
    scores = np.asarray(scores, np.float64).reshape(-1)
    if not len(start) == len(end) == len(scores):
        raise DeepMatchingError(
            f"There are {len(start)} and {len(end)} keypoints and {len(scores)} scores; each match needs one of each."
        )
    usable = np.isfinite(start).all(axis=1) & np.isfinite(end).all(axis=1)
    # The squares of pixels within reach, clipped to the image: rows top..bottom-1, columns left..right-1.
    size = np.array([width, height])
    reach = np.where(usable[:, None], np.floor(start + 0.5), -np.inf)
    left, top = np.clip(np.ceil(reach - radius), 0, size).astype(np.int64).T
    right, bottom = np.clip(np.floor(reach + radius) + 1, 0, size).astype(np.int64).T

    # Painted from the least to the most confident, the last coat is the answer.
    best_first = np.argsort(-scores, kind="stable")
    owner = np.full((height, width), -1, np.int64)
    visible = best_first[(right > left)[best_first] & (bottom > top)[best_first]]
    squares = np.stack([visible, top[visible], bottom[visible], left[visible], right[visible]], axis=1)
    if radius < 1:  # squares of one pixel, often all pixels of an image; of equal indices the last counts
        owner[squares[::-1, 1], squares[::-1, 3]] = squares[::-1, 0]
        squares = squares[:0]
    for match, row0, row1, column0, column1 in squares[::-1].tolist():
        owner[row0:row1, column0:column1] = match

    displacements = np.full((len(start) + 1, 2), np.nan, np.float32)  # the last row serves owner −1
    displacements[:-1] = end - start
    return displacements[owner]


def accuracy(
    displacement: np.ndarray,
    flow_gt: np.ndarray,
    thresholds: Sequence[float] = (2, 5, 10),
    mask: np.ndarray | None = None,
) -> dict[float, float]:
    """acc@T: the fraction of ground-truth pixels whose end-point error is at most T px, for every T.

    `displacement` and `flow_gt` are (H,W,2). Pixels count where `flow_gt` is finite and `mask` (H,W), if
    given, is true; a pixel without a match (NaN) is wrong. NaN if no pixel counts.
    """
    displacement, flow_gt = _as_field(displacement), _as_field(flow_gt)
    if displacement.shape != flow_gt.shape:
        raise DeepMatchingError(
            f"The displacements are {displacement.shape} and the ground truth is {flow_gt.shape}; "
            "both must have the size of the first image."
        )
    counted = _counted(np.isfinite(flow_gt).all(axis=2), mask)
    error = np.hypot(*(displacement[counted].astype(np.float64) - flow_gt[counted]).T)
    if not len(error):
        return dict.fromkeys(thresholds, float("nan"))
    return {threshold: float(np.mean(error <= threshold)) for threshold in thresholds}


def coverage(displacement: np.ndarray, mask: np.ndarray | None = None) -> float:
    """The fraction of pixels (those where `mask` (H,W) is true) with a finite displacement (H,W,2)."""
    known = np.isfinite(_as_field(displacement)).all(axis=2)
    counted = _counted(np.ones_like(known), mask)
    return float(known[counted].mean()) if counted.any() else float("nan")


def endpoint_error_of_matches(keypoints0: np.ndarray, keypoints1: np.ndarray, flow_gt: np.ndarray) -> float:
    """Mean end-point error in px of the matches themselves, against the nearest pixel of `flow_gt` (H,W,2).

    The nearest pixel, not bilinear interpolation, which would mix both motions at an occlusion boundary.
    Matches without ground truth are ignored; NaN if there are no others.
    """
    start, end = _as_points(keypoints0), _as_points(keypoints1)
    if len(start) != len(end):
        raise DeepMatchingError(f"There are {len(start)} keypoints in one image and {len(end)} in the other.")
    flow_gt = _as_field(flow_gt)
    height, width = flow_gt.shape[:2]
    with np.errstate(invalid="ignore"):
        column, row = np.floor(start + 0.5).T
        inside = (column >= 0) & (column < width) & (row >= 0) & (row < height)
    truth = flow_gt[row[inside].astype(np.int64), column[inside].astype(np.int64)]
    error = np.hypot(*(end[inside] - start[inside] - truth).T)
    error = error[np.isfinite(error)]
    return float(error.mean()) if len(error) else float("nan")


def _as_points(points: np.ndarray) -> np.ndarray:
    points = np.asarray(points, np.float64)
    if points.size == 0:
        return points.reshape(0, 2)
    if points.ndim != 2 or points.shape[1] != 2:
        raise DeepMatchingError(f"Keypoints must be an array (N,2) of (x,y), but these are {points.shape}.")
    return points


def _as_field(field: np.ndarray) -> np.ndarray:
    field = np.asarray(field)
    if field.ndim != 3 or field.shape[2] != 2:
        raise DeepMatchingError(f"A displacement field must be (H,W,2), but this one is {field.shape}.")
    return field


def _counted(valid: np.ndarray, mask: np.ndarray | None) -> np.ndarray:
    if mask is None:
        return valid
    mask = np.asarray(mask)
    if mask.shape != valid.shape:
        raise DeepMatchingError(f"The mask is {mask.shape} and the field {valid.shape}; make them equal.")
    return valid & mask.astype(bool)
