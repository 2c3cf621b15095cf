"""How well edges agree with the boundaries that people drew: precision, recall and F on BSDS500.

This is the protocol of the data set. A map is thinned by non-maximum suppression and cut at a series of thresholds.
Each binary map is matched one to one with each annotator's boundaries; pixels may be 0.0075 of the image diagonal
apart. Recall is the fraction of the annotators' pixels that have a partner, summed over annotators. Precision is the
fraction of the map's pixels that have a partner with any annotator.

There is one difference. The original minimises the total distance of the pairs, with such a high penalty for pixels
without a partner that it finds nearly as many pairs as possible. Here the number of pairs is the largest possible;
pairs are formed greedily, the nearest first, and changed only to make more of them. Recall is the same but for those
few pairs. Precision can also differ in which of two pixels got the partner.
"""

from dataclasses import dataclass

import cv2
import numpy as np

from deepmatching.errors import INSTALL_CONTRIB, DeepMatchingError
from edge_network.pixel_pairs import augment

TOLERANCE = 0.0075  #: largest distance of two pixels that may be paired, as a fraction of the diagonal
_RIM = 5  # pixels along the image border where edges are faded out, since filters cause false ones there


def suppress_non_maxima(edges: np.ndarray) -> np.ndarray:
    """Keep an edge map only on its ridges: (H, W) float32 → (H, W) float32, 0 elsewhere.

    A pixel stays if neither point one pixel away across the ridge is more than 1 % higher. The direction across is that
    of the strongest slopes around the pixel (the structure tensor at σ = 2).
    """
    edges = np.ascontiguousarray(edges, np.float32)
    smooth = cv2.sepFilter2D(edges, -1, *(np.array([0.25, 0.5, 0.25]),) * 2, borderType=cv2.BORDER_REFLECT_101)
    x, y = (cv2.Sobel(smooth, cv2.CV_32F, *order) for order in ((1, 0), (0, 1)))
    xx, yy, xy = (cv2.GaussianBlur(product, (0, 0), 2.0) for product in (x * x, y * y, x * y))
    angle = 0.5 * np.arctan2(2 * xy, xx - yy)
    columns, rows = np.meshgrid(*(np.arange(side, dtype=np.float32) for side in edges.shape[::-1]))
    across = (np.cos(angle).astype(np.float32), np.sin(angle).astype(np.float32))
    keep = np.ones(edges.shape, bool)
    for sign in (-1, 1):
        beside = cv2.remap(smooth, columns + sign * across[0], rows + sign * across[1], cv2.INTER_LINEAR)
        keep &= 1.01 * smooth >= beside
    return np.where(keep, smooth * _fade(*edges.shape), 0).astype(np.float32)


def _fade(rows: int, columns: int) -> np.ndarray:
    """Return (H, W): 1 inside, falling to 0 on the rim."""
    y, x = (np.minimum(np.arange(side), np.arange(side)[::-1]) / _RIM for side in (rows, columns))
    return np.minimum(np.minimum(y[:, None], x[None]), 1).astype(np.float32)


def thin(binary: np.ndarray) -> np.ndarray:
    """Thin a bool (H, W) until its lines are one pixel wide (Guo and Hall's algorithm)."""
    if not hasattr(cv2, "ximgproc"):
        raise DeepMatchingError(f"Thinning needs OpenCV's extra modules: {INSTALL_CONTRIB}.")
    return cv2.ximgproc.thinning(binary.astype(np.uint8) * 255, thinningType=cv2.ximgproc.THINNING_GUOHALL) > 0


def pair_pixels(first: np.ndarray, second: np.ndarray, distance: float) -> tuple[np.ndarray, np.ndarray]:
    """As many disjoint pairs as possible of a pixel of ``first`` and one of ``second`` at most ``distance`` away.

    Args:
        first, second: bool (H, W).

    Returns:
        Two bool masks (H, W) of the pixels with a partner.
    """
    reach = int(distance)
    y, x = np.mgrid[-reach : reach + 1, -reach : reach + 1].reshape(2, -1)
    squared = x * x + y * y
    order = np.argsort(squared, kind="stable")
    order = order[squared[order] <= distance * distance]
    padded = [np.pad(pixels, reach) for pixels in (first, second)]  # so that no step leaves the image
    steps = (y[order] * padded[0].shape[1] + x[order]).astype(np.int64)
    flat_first, flat_second = (pixels.ravel() for pixels in padded)

    partner = np.full(flat_second.size, -1, np.int64)
    alone, free = np.flatnonzero(flat_first), flat_second.copy()
    for step in steps:  # nearest first
        found = free[alone + step]
        taken = alone[found] + step
        partner[taken], free[taken] = alone[found], False
        alone = alone[~found]
    augment(alone, flat_second, steps, partner)

    paired_first, paired_second = np.zeros_like(flat_first), partner >= 0
    paired_first[partner[paired_second]] = True
    inside = tuple(slice(reach, reach + side) for side in first.shape)
    return paired_first.reshape(padded[0].shape)[inside], paired_second.reshape(padded[0].shape)[inside]


def count_pixels(
    edges: np.ndarray, boundaries: np.ndarray, thresholds: np.ndarray, tolerance: float = TOLERANCE
) -> np.ndarray:
    """Count the pixels from which precision and recall of one image follow, at each threshold.

    Args:
        edges: (H, W), after :func:`suppress_non_maxima`.
        boundaries: bool (A, H, W).
        thresholds: (T,).

    Returns:
        (T, 4) of int64: the annotators' pixels with a partner, all their pixels, the map's pixels with a partner, all
        its pixels.
    """
    distance = tolerance * float(np.hypot(*edges.shape))
    counts = np.zeros((len(thresholds), 4), np.int64)
    for row, threshold in zip(counts, thresholds, strict=True):
        binary = thin(edges >= threshold)
        with_any = np.zeros_like(binary)
        for boundary in boundaries:
            paired_edges, paired_boundary = pair_pixels(binary, boundary, distance)
            with_any |= paired_edges
            row[:2] += paired_boundary.sum(), boundary.sum()
        row[2:] = with_any.sum(), binary.sum()
    return counts


@dataclass(frozen=True)
class EdgeScores:
    """F at the threshold best for all images (ODS), at each image's best (OIS), and the average precision."""

    ods: float
    ois: float
    ap: float
    threshold: float


def summarise(counts: np.ndarray, thresholds: np.ndarray) -> EdgeScores:
    """Score a data set from the counts of its images, (N, T, 4)."""
    everywhere = counts.sum(axis=0)
    recall, precision, f = _recall_precision_f(everywhere)
    best = int(np.argmax(f))
    best_of_each = np.argmax(_recall_precision_f(counts)[2], axis=1)
    ois = _recall_precision_f(counts[np.arange(len(counts)), best_of_each].sum(axis=0))[2]
    # As in the original: precision over recall, read at every hundredth at which the curve is defined.
    order = np.argsort(recall, kind="stable")
    at = np.linspace(0, 1, 101)
    curve = np.interp(at, recall[order], precision[order], left=0, right=0)
    return EdgeScores(float(f[best]), float(ois), float(curve.sum() / 100), float(thresholds[best]))


def _recall_precision_f(counts: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    recall = counts[..., 0] / np.maximum(counts[..., 1], 1)
    precision = counts[..., 2] / np.maximum(counts[..., 3], 1)
    return recall, precision, 2 * precision * recall / np.maximum(precision + recall, 1e-9)
