"""Accuracy of the matches and of the dense flow of one pair, as the paper, Sintel and KITTI measure it.

Pixel centres are at integer coordinates: column j and row i are at (x, y) = (j, i). Keypoints are (N, 2) arrays of
(x, y). Displacement fields and ground truth are (H, W, 2), NaN where unknown.

The metrics of a pair are given for sets of pixels. ``all`` is every pixel with ground truth, which KITTI and the paper
call OCC. With occlusion masks there are ``noc``, the pixels visible in both images, and ``occ``, the others.
"""

import math
from collections.abc import Sequence
from typing import get_args

import numpy as np

from deepmatching.errors import DeepMatchingError, check_choice, check_number, check_size, check_type
from deepmatching.io.arrays import unmasked
from deepmatching.matches import Matches
from deepmatching.settings import PROPAGATION_RADIUS, THRESHOLDS, Rank

PIXEL_SETS = ("all", "noc", "occ")

PairMetrics = dict[str, dict[str, float]]  #: set of pixels → metric → value


def match_metrics(
    matches: Matches,
    truth: np.ndarray,
    occluded: np.ndarray | None = None,
    spread: float = PROPAGATION_RADIUS,
    rank: Rank = "confidence",
) -> tuple[PairMetrics, np.ndarray]:
    """Return metrics of matches, and the displacement field (H, W, 2) that they :func:`propagate` to.

    * ``acc@T`` in %: pixels with ground truth whose displacement is off by at most T px; a pixel without one is wrong
    * ``epe`` in px: mean end-point error of the matches themselves
    * ``coverage`` in %: pixels with a displacement, whether their ground truth is known or not
    * ``matches``: number of matches that start in the set

    ``occluded`` is (H, W) bool. ``rank`` says which match a pixel takes: that of the highest score, as in the paper, or
    of the highest confidence if there is one.
    """
    check_type("matches", matches, Matches)
    check_type("truth", truth, np.ndarray)
    check_choice("rank", rank, get_args(Rank))
    check_number("spread", spread, minimum=0)
    check_size("The size of the truth", truth.shape[:2])
    keypoints0, keypoints1, scores = matches.numpy()
    if rank == "confidence":
        scores = matches.certainty.detach().cpu().numpy()
    derivatives = None if matches.transformation is None else matches.derivatives.detach().cpu().numpy()
    field = propagate(keypoints0, keypoints1, scores, truth.shape[0], truth.shape[1], spread, derivatives)
    metrics: PairMetrics = {}
    for name, mask in _pixel_sets(occluded).items():
        fractions = accuracy(field, truth, THRESHOLDS, mask)
        known = truth if mask is None else np.where(mask[:, :, None], truth, np.nan)
        starts = len(matches) if mask is None else np.count_nonzero(mask[_nearest_pixels(keypoints0, mask)[:2]])
        metrics[name] = {
            **{f"acc@{threshold}": 100 * fractions[threshold] for threshold in THRESHOLDS},
            "epe": endpoint_error_of_matches(keypoints0, keypoints1, known),
            "coverage": 100 * coverage(field, mask),
            "matches": float(starts),
        }
    return metrics, field


def flow_metrics(
    flow: np.ndarray, truth: np.ndarray, occluded: np.ndarray | None = None, stated: np.ndarray | None = None
) -> PairMetrics:
    """Return :func:`endpoint_metrics` for each set of pixels.

    ``all`` also has ``occlusion`` in %: the average precision of ``stated`` (H, W), how likely each pixel is occluded,
    over the pixels with ground truth; NaN if it is unknown or none is occluded.
    """
    metrics = {name: endpoint_metrics(flow, truth, mask) for name, mask in _pixel_sets(occluded).items()}
    precision = math.nan
    if occluded is not None and stated is not None:
        counted = _comparable(flow, truth, None)
        precision = average_precision(stated[counted], occluded[counted])
    metrics["all"]["occlusion"] = 100 * precision
    return metrics


def endpoint_metrics(flow: np.ndarray, truth: np.ndarray, mask: np.ndarray | None = None) -> dict[str, float]:
    """Return metrics of a flow over the pixels with ground truth, within ``mask`` if given; NaN if there are none.

    The flow must be known wherever the truth is. With e = ‖flow − truth‖:

    * ``epe`` in px: the mean of e
    * ``err@3`` in %: e > 3 px (KITTI 2012, the paper's Err)
    * ``fl`` in %: e > 3 px and e > 5 % of ‖truth‖ (KITTI 2015)
    * ``s0-10``, ``s10-40``, ``s40+`` in px: the mean of e where ‖truth‖ is below 10, 10 to 40, above 40 px (Sintel)
    * ``pixels``, ``pixels s0-10`` …: the number of pixels in these means
    """
    counted = _comparable(flow, truth, mask)
    true = truth[counted].astype(np.float64)
    error = np.hypot(*(flow[counted] - true).T)
    if unknown := np.count_nonzero(~np.isfinite(error)):
        raise DeepMatchingError(f"The flow is unknown (NaN) at {unknown} pixels; it must have a value at each.")
    speed = np.hypot(*true.T)
    metrics = {
        "epe": _mean(error),
        "err@3": 100 * _mean(error > 3),
        "fl": 100 * _mean((error > 3) & (error > 0.05 * speed)),
        "pixels": float(len(error)),
    }
    ranges = {"s0-10": speed < 10, "s10-40": (speed >= 10) & (speed <= 40), "s40+": speed > 40}
    for name, chosen in ranges.items():
        metrics[name], metrics[f"pixels {name}"] = _mean(error[chosen]), float(np.count_nonzero(chosen))
    return metrics


def propagate(
    keypoints0: np.ndarray,
    keypoints1: np.ndarray,
    scores: np.ndarray,
    height: int,
    width: int,
    spread: float = PROPAGATION_RADIUS,
    derivatives: np.ndarray | None = None,
) -> np.ndarray:
    """Spread quasi-dense matches to every pixel: float32 (H, W, 2) displacements.

    A pixel takes the displacement of the match with the highest score at most ``spread`` px away in both x and y, the
    first among equals, and NaN if no match is that near. A match starts at the nearest pixel; halfway between two, at
    the right or lower one. The original's corner x = 4 thus counts as pixel 4 and reaches 17 pixels at a spread of 8,
    as in published results. Matches of a search have ``derivatives`` (N, 2, 2) of their transformations, by which the
    displacement changes from the match to the pixel.
    """
    start, end = _as_points(keypoints0), _as_points(keypoints1)
    scores = np.asarray(scores, np.float64).reshape(-1)
    if not len(start) == len(end) == len(scores):
        raise DeepMatchingError(f"There are {len(start)} and {len(end)} keypoints and {len(scores)} scores.")
    usable = np.isfinite(start).all(axis=1) & np.isfinite(end).all(axis=1)
    # The squares of pixels within reach, clipped to the image: rows top..bottom-1, columns left..right-1.
    size = np.array([width, height])
    centre = np.where(usable[:, None], np.floor(start + 0.5), -np.inf)
    left, top = np.clip(np.ceil(centre - spread), 0, size).astype(np.int64).T
    right, bottom = np.clip(np.floor(centre + spread) + 1, 0, size).astype(np.int64).T

    # Squares are painted from the least to the most confident, so the last coat is the answer.
    order = np.argsort(-scores, kind="stable")[::-1]
    order = order[(right > left)[order] & (bottom > top)[order]]
    owner = np.full((height, width), -1, np.int64)
    if spread < 1:  # squares of one pixel, often all pixels of an image; among equal indices the last counts
        owner[top[order], left[order]] = order
    else:
        squares = np.stack([order, top[order], bottom[order], left[order], right[order]], axis=1)
        for match, row0, row1, column0, column1 in squares.tolist():
            owner[row0:row1, column0:column1] = match

    displacements = np.full((len(start) + 1, 2), np.nan, np.float32)  # the last row serves owner −1
    displacements[:-1] = end - start
    field = displacements[owner]
    if derivatives is not None and len(start):
        rows, columns = np.nonzero(owner >= 0)
        chosen = owner[rows, columns]
        steps = np.stack([columns, rows], axis=1) - start[chosen]
        field[rows, columns] += ((derivatives - np.eye(2))[chosen] @ steps[..., None])[..., 0].astype(np.float32)
    return field


def accuracy(
    field: np.ndarray, truth: np.ndarray, thresholds: Sequence[float] = THRESHOLDS, mask: np.ndarray | None = None
) -> dict[float, float]:
    """Return acc@T: the fraction of pixels with ground truth whose end-point error is at most T px, for every T.

    Pixels count where ``mask`` (H, W), if given, is true. One without a displacement is wrong. NaN if no pixel counts.
    """
    counted = _comparable(field, truth, mask)
    error = np.hypot(*(field[counted].astype(np.float64) - truth[counted]).T)
    return {threshold: _mean(error <= threshold) for threshold in thresholds}


def coverage(field: np.ndarray, mask: np.ndarray | None = None) -> float:
    """Return the fraction of pixels, within ``mask`` (H, W) if given, with a displacement in ``field`` (H, W, 2)."""
    known = np.isfinite(field).all(axis=2)
    return _mean(known.ravel() if mask is None else known[mask.astype(bool)])


def endpoint_error_of_matches(keypoints0: np.ndarray, keypoints1: np.ndarray, truth: np.ndarray) -> float:
    """Return the mean end-point error of the matches themselves in px, by the nearest pixel of ``truth`` (H, W, 2).

    Bilinear interpolation would mix two motions at an occlusion boundary. Matches without ground truth are ignored.
    """
    start, end = _as_points(keypoints0), _as_points(keypoints1)
    row, column, inside = _nearest_pixels(start, truth)
    error = np.hypot(*(end[inside] - start[inside] - truth[row, column]).T)
    return _mean(error[np.isfinite(error)])


def area_under_roc(scores: np.ndarray, is_right: np.ndarray) -> float:
    """Return the probability that a correct match scores above a wrong one, ties counting half; NaN without both."""
    right = int(is_right.sum())
    wrong = len(is_right) - right
    if not right or not wrong:
        return float("nan")
    _, inverse, counts = np.unique(scores, return_inverse=True, return_counts=True)
    ranks = (np.cumsum(counts) - (counts - 1) / 2)[inverse]  # from 1; ties share their mean rank
    return float((ranks[is_right].sum() - right * (right + 1) / 2) / (right * wrong))


def average_precision(scores: np.ndarray, is_positive: np.ndarray) -> float:
    """Return Σ_n (R_n − R_{n−1}) P_n over all thresholds, from high to low, of precision P and recall R.

    A score without any knowledge has the share of the positives. NaN if there are none.
    """
    if not is_positive.any():
        return float("nan")
    order = np.argsort(-scores, kind="stable")
    ordered, found = scores[order], np.cumsum(is_positive[order])
    last = np.append(ordered[1:] != ordered[:-1], True)  # equal scores pass a threshold together
    gained, precision = np.diff(found[last], prepend=0), found[last] / (np.flatnonzero(last) + 1)
    return float((gained * precision).sum() / found[-1])


def reliability(confidence: np.ndarray, is_right: np.ndarray, bins: int = 10) -> list[tuple[int, float, float]]:
    """Return number, mean confidence and correct fraction of matches, by equal intervals of it; NaN for empty ones."""
    place = np.minimum((confidence * bins).astype(np.int64), bins - 1)
    return [(int((place == n).sum()), _mean(confidence[place == n]), _mean(is_right[place == n])) for n in range(bins)]


def _pixel_sets(occluded: np.ndarray | None) -> dict[str, np.ndarray | None]:
    if occluded is None:
        return {"all": None}
    occluded = unmasked(occluded, "mask")
    if occluded.dtype != bool:
        raise DeepMatchingError(f"The mask of occluded pixels must be of type bool, not {occluded.dtype}.")
    return {"all": None, "noc": ~occluded, "occ": occluded}


def _nearest_pixels(points: np.ndarray, image: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return rows and columns of the pixels nearest to the points (N, 2), and which of the points lie in the image."""
    with np.errstate(invalid="ignore"):
        column, row = np.floor(points + 0.5).T
        inside = (column >= 0) & (column < image.shape[1]) & (row >= 0) & (row < image.shape[0])
    return row[inside].astype(np.int64), column[inside].astype(np.int64), inside


def _comparable(field: np.ndarray, truth: np.ndarray, mask: np.ndarray | None) -> np.ndarray:
    """Return the pixels (H, W) at which a field can be compared with the truth; raises if the shapes do not fit."""
    field, truth = unmasked(field, "displacements"), unmasked(truth, "ground truth")
    if field.shape != truth.shape or truth.ndim != 3 or truth.shape[2] != 2:
        raise DeepMatchingError(
            f"The displacements are {field.shape} and the ground truth is {truth.shape}; "
            "both must be (H, W, 2) of the size of the first image."
        )
    known = np.isfinite(truth).all(axis=2)
    mask = None if mask is None else unmasked(mask, "mask")
    if mask is not None and mask.shape != known.shape:
        raise DeepMatchingError(f"The mask is {mask.shape} and the field {known.shape}; make them equal.")
    return known if mask is None else known & mask.astype(bool)


def _as_points(points: np.ndarray) -> np.ndarray:
    points = np.asarray(points, np.float64)
    if points.size and points.shape[1:] != (2,):
        raise DeepMatchingError(f"Keypoints must be an array (N, 2) of (x, y), but these are {points.shape}.")
    return points.reshape(-1, 2)


def _mean(values: np.ndarray) -> float:
    return float(values.mean()) if len(values) else float("nan")
