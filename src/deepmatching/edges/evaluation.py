"""How well edges agree with the boundaries that people drew: precision, recall and F on BSDS500.

The protocol of the data set. A map is thinned by non-maximum suppression and cut at a series of thresholds. Each binary
map is matched one to one with each annotator's boundaries, pixels up to 0.0075 of the image diagonal apart. Recall is
the share of the annotators' pixels that found a partner, summed over annotators; precision the share of the map's
pixels that found one with any annotator.

One difference: the original assigns pixels at the least total distance, with so high a penalty for pixels without a
partner that it finds nearly as many pairs as possible. Here their number is the largest possible, and which pixel
goes with which is decided greedily, the nearest first, then changed only to make more pairs. Recall is the same but for
those few pairs; precision can also differ in which of two pixels got the partner.
"""

from __future__ import annotations

from dataclasses import dataclass

import cv2
import numpy as np
from numba import njit

from deepmatching.errors import DeepMatchingError

#: Largest distance of two pixels that may be paired, as a share of the diagonal.
TOLERANCE = 0.0075
_RIM = 5  # pixels along the image border where edges are faded out, since filters invent some there


def suppress_non_maxima(edges: np.ndarray) -> np.ndarray:
    """Keep an edge map only on its ridges: (H, W) float32 → (H, W) float32, 0 elsewhere.

    A pixel stays if no point one pixel away across the ridge is more than 1 % higher. Across is the direction of the
    strongest slopes around the pixel (the structure tensor at σ = 2).
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
    """(H, W): 1 inside, falling to 0 on the rim."""
    y, x = (np.minimum(np.arange(side), np.arange(side)[::-1]) / _RIM for side in (rows, columns))
    return np.minimum(np.minimum(y[:, None], x[None]), 1).astype(np.float32)


def thin(binary: np.ndarray) -> np.ndarray:
    """Peel a bool (H, W) until lines are one pixel wide (Guo and Hall's algorithm)."""
    if not hasattr(cv2, "ximgproc"):
        raise DeepMatchingError("Thinning needs OpenCV's extra modules: install opencv-contrib-python-headless.")
    return cv2.ximgproc.thinning(binary.astype(np.uint8) * 255, thinningType=cv2.ximgproc.THINNING_GUOHALL) > 0


def pair_pixels(first: np.ndarray, second: np.ndarray, distance: float) -> tuple[np.ndarray, np.ndarray]:
    """As many disjoint pairs as possible of a pixel of ``first`` and one of ``second`` at most ``distance`` away.

    Args:
        first, second: bool (H, W).

    Returns:
        Which pixels of each have a partner: two bool (H, W).
    """
    reach = int(distance)
    y, x = np.mgrid[-reach : reach + 1, -reach : reach + 1].reshape(2, -1)
    squared = x * x + y * y
    order = np.argsort(squared, kind="stable")
    order = order[squared[order] <= distance * distance]
    offsets = np.stack([y[order], x[order]], axis=1).astype(np.int64)
    return _pair(np.ascontiguousarray(first), np.ascontiguousarray(second), offsets)


@njit(cache=True, nogil=True)
def _pair(first, second, offsets):  # type: ignore[no-untyped-def]
    """Greedy pairs, the nearest first, then augmenting paths from every pixel of ``first`` that was left over."""
    rows, columns = first.shape
    left = np.argwhere(first)
    right_index = np.full((rows, columns), -1, np.int64)
    right = np.argwhere(second)
    for j in range(len(right)):
        right_index[right[j, 0], right[j, 1]] = j
    partner_of_left = np.full(len(left), -1, np.int64)
    partner_of_right = np.full(len(right), -1, np.int64)
    for k in range(len(offsets)):
        for i in range(len(left)):
            if partner_of_left[i] < 0:
                y, x = left[i, 0] + offsets[k, 0], left[i, 1] + offsets[k, 1]
                if 0 <= y < rows and 0 <= x < columns:
                    j = right_index[y, x]
                    if j >= 0 and partner_of_right[j] < 0:
                        partner_of_left[i], partner_of_right[j] = j, i

    # Depth-first search; `chosen` is the right pixel by which each left pixel on the stack was left. What a failed
    # search has seen can never be part of an augmenting path again, so its stamps are left to stand.
    stamp = np.zeros(len(right), np.int64)
    dead = len(left) + 2
    stack, chosen, tried = np.empty((3, len(left) + 1), np.int64)
    seen = np.empty(len(right), np.int64)
    for root in range(len(left)):
        if partner_of_left[root] >= 0:
            continue
        depth, stack[0], tried[0], number = 0, root, 0, 0
        found = False
        while depth >= 0 and not found:
            i = stack[depth]
            descended = False
            while tried[depth] < len(offsets):
                y, x = left[i, 0] + offsets[tried[depth], 0], left[i, 1] + offsets[tried[depth], 1]
                tried[depth] += 1
                if not (0 <= y < rows and 0 <= x < columns):
                    continue
                j = right_index[y, x]
                if j < 0 or stamp[j] == dead or stamp[j] == root + 1:
                    continue
                stamp[j] = root + 1
                seen[number] = j
                number += 1
                chosen[depth] = j
                if partner_of_right[j] < 0:
                    found = True
                else:
                    depth += 1
                    stack[depth], tried[depth] = partner_of_right[j], 0
                    descended = True
                break
            if not descended and not found:
                depth -= 1
        if found:
            for d in range(depth + 1):
                partner_of_left[stack[d]], partner_of_right[chosen[d]] = chosen[d], stack[d]
        else:
            for k in range(number):
                stamp[seen[k]] = dead

    paired_first, paired_second = np.zeros((rows, columns), np.bool_), np.zeros((rows, columns), np.bool_)
    for i in range(len(left)):
        if partner_of_left[i] >= 0:
            paired_first[left[i, 0], left[i, 1]] = True
    for j in range(len(right)):
        if partner_of_right[j] >= 0:
            paired_second[right[j, 0], right[j, 1]] = True
    return paired_first, paired_second


def count_pixels(
    edges: np.ndarray, boundaries: np.ndarray, thresholds: np.ndarray, tolerance: float = TOLERANCE
) -> np.ndarray:
    """What precision and recall of one image are made of, at each threshold.

    Args:
        edges: (H, W), after :func:`suppress_non_maxima`.
        boundaries: bool (A, H, W).
        thresholds: (T,).

    Returns:
        (T, 4) of int64: annotators' pixels with a partner, all of them, the map's pixels with a partner, all of them.
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
class Figures:
    """F at the threshold best for all images (ODS), at each image's best (OIS), and the average precision."""

    ods: float
    ois: float
    ap: float
    threshold: float


def summarise(counts: np.ndarray, thresholds: np.ndarray) -> Figures:
    """Figures of a data set from the counts of its images, (N, T, 4)."""
    everywhere = counts.sum(axis=0)
    recall, precision, f = _recall_precision_f(everywhere)
    best = int(np.argmax(f))
    best_of_each = np.argmax(_recall_precision_f(counts)[2], axis=1)
    ois = _recall_precision_f(counts[np.arange(len(counts)), best_of_each].sum(axis=0))[2]
    # As the original: precision over recall, read off at every hundredth where the curve is defined.
    order = np.argsort(recall, kind="stable")
    at = np.linspace(0, 1, 101)
    curve = np.interp(at, recall[order], precision[order], left=0, right=0)
    return Figures(float(f[best]), float(ois), float(curve.sum() / 100), float(thresholds[best]))


def _recall_precision_f(counts: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    recall = counts[..., 0] / np.maximum(counts[..., 1], 1)
    precision = counts[..., 2] / np.maximum(counts[..., 3], 1)
    return recall, precision, 2 * precision * recall / np.maximum(precision + recall, 1e-9)
