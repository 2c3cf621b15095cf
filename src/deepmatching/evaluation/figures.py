"""The figures of one pair: of its matches, as the paper measures them, and of a dense flow.

Each is given for sets of pixels. ``all``: every pixel with ground truth, what KITTI and the paper call OCC. Where
a data set says which pixels are visible in both images, also ``noc``: those (NOC), and ``occ``: only the others.
"""

from __future__ import annotations

import numpy as np

from deepmatching.errors import DeepMatchingError
from deepmatching.evaluation.metrics import accuracy, coverage, endpoint_error_of_matches, propagate
from deepmatching.matches import Matches

THRESHOLDS = (2, 5, 10)
PIXEL_SETS = ("all", "noc", "occ")

#: Set of pixels → figure → value.
PairFigures = dict[str, dict[str, float]]


def match_figures(
    matches: Matches, truth: np.ndarray, occluded: np.ndarray | None = None, spread: float = 8
) -> tuple[PairFigures, np.ndarray]:
    """Figures of matches, and the displacements (H, W, 2) that every pixel takes from them.

    * ``acc@T`` in %: pixels with ground truth that take a displacement off by at most T px; without one it is wrong
    * ``epe`` in px: mean error of the matches themselves
    * ``coverage`` in %: pixels, with ground truth or not, that take a displacement
    * ``matches``: how many start there

    Args:
        matches: of the pair.
        truth: (H, W, 2), NaN where unknown.
        occluded: (H, W) bool; None where the data set does not say.
        spread: a pixel takes the displacement of the most confident match at most so many px away along either axis.
    """
    keypoints0, keypoints1, scores = matches.numpy()
    height, width = truth.shape[:2]
    field = propagate(keypoints0, keypoints1, scores, height, width, spread)
    figures: PairFigures = {}
    for name, mask in _pixel_sets(occluded).items():
        shares = accuracy(field, truth, THRESHOLDS, mask)
        known = truth if mask is None else np.where(mask[:, :, None], truth, np.nan)
        figures[name] = {
            **{f"acc@{threshold}": 100 * shares[threshold] for threshold in THRESHOLDS},
            "epe": endpoint_error_of_matches(keypoints0, keypoints1, known),
            "coverage": 100 * coverage(field, mask),
            "matches": float(len(matches) if mask is None else _count(keypoints0, mask)),
        }
    return figures, field


def flow_figures(flow: np.ndarray, truth: np.ndarray, occluded: np.ndarray | None = None) -> PairFigures:
    """:func:`flow_metrics` for each set of pixels."""
    return {name: flow_metrics(flow, truth, mask) for name, mask in _pixel_sets(occluded).items()}


def flow_metrics(flow: np.ndarray, truth: np.ndarray, mask: np.ndarray | None = None) -> dict[str, float]:
    """Figures of a dense flow over the pixels with ground truth and, if it is given, ``mask``; NaN if there are none.

    With e = ‖flow − truth‖:

    * ``epe`` in px: the mean of e
    * ``err@3`` in %: e > 3 px (KITTI 2012, the paper's Err)
    * ``fl`` in %: e > 3 px and e > 5 % of ‖truth‖ (KITTI 2015)
    * ``s0-10``, ``s10-40``, ``s40+`` in px: the mean of e where ‖truth‖ is below 10, 10 to 40, above 40 px (Sintel)
    * ``pixels``, ``pixels s0-10`` …: how many pixels these are means over

    Args:
        flow: (H, W, 2), known wherever it is compared.
        truth: (H, W, 2), NaN where unknown.
        mask: (H, W) bool.
    """
    flow, truth = np.asarray(flow), np.asarray(truth)
    if flow.shape != truth.shape:
        raise DeepMatchingError(
            f"The flow is {flow.shape} and the ground truth {truth.shape}; both must have the size of the first image."
        )
    counted = np.isfinite(truth).all(axis=2)
    if mask is not None:
        counted &= mask
    true = truth[counted].astype(np.float64)
    error = np.hypot(*(flow[counted] - true).T)
    if not np.isfinite(error).all():
        unknown = int(np.count_nonzero(~np.isfinite(error)))
        raise DeepMatchingError(
            f"The flow is unknown (NaN) at {unknown} pixels; a dense flow must have a value at each."
        )
    speed = np.hypot(*true.T)
    figures = {
        "epe": _mean(error),
        "err@3": 100 * _mean(error > 3),
        "fl": 100 * _mean((error > 3) & (error > 0.05 * speed)),
        "pixels": float(len(error)),
    }
    ranges = {"s0-10": speed < 10, "s10-40": (speed >= 10) & (speed <= 40), "s40+": speed > 40}
    for name, chosen in ranges.items():
        figures[name], figures[f"pixels {name}"] = _mean(error[chosen]), float(np.count_nonzero(chosen))
    return figures


def _pixel_sets(occluded: np.ndarray | None) -> dict[str, np.ndarray | None]:
    return {"all": None} if occluded is None else {"all": None, "noc": ~occluded, "occ": occluded}


def _count(points: np.ndarray, mask: np.ndarray) -> int:
    """How many of the points (N, 2) are nearest to a pixel of the mask."""
    column, row = np.floor(points + 0.5).astype(np.int64).T
    inside = (column >= 0) & (column < mask.shape[1]) & (row >= 0) & (row < mask.shape[0])
    return int(np.count_nonzero(mask[row[inside], column[inside]]))


def _mean(values: np.ndarray) -> float:
    return float(values.mean()) if len(values) else float("nan")
