"""Forward and back: how far from its start the way of a match ends."""

import cv2
import numpy as np
import torch

from deepmatching.geometry.homographies import affine_fit

NEAREST = 8  #: number of backward matches that the way back is interpolated from
WIDTH = 6.0  #: standard deviation of their weights, in pixels: they lie 8 pixels apart
RIDGE = 3.0  #: how strongly the local affine motion shrinks towards a translation
LEAST = 1e-3  #: the least weight of a backward match, times that of its distance
_EXACT = 4  #: OpenCV's name for a tree that finds the nearest points, not about the nearest
_FARTHEST = 1e6  #: errors are at most this, in pixels, which is also that of matches without a way back


def cycle_errors(
    points0: np.ndarray, points1: np.ndarray, back0: np.ndarray, back1: np.ndarray, certainty: np.ndarray
) -> np.ndarray:
    """Return |p − b(Γ(p))| for each match from p to Γ(p), (N,) float32 in pixels.

    b interpolates the matches from the second image to the first: it is the affine motion that fits best to the ones
    nearest to Γ(p), weighted by their distance, by their ``certainty`` and by how near they are to the median motion.

    Args:
        points0, points1: (N, 2), p and Γ(p).
        back0, back1: (M, 2), matches from the second image to the first: where they start, and where they end.
        certainty: (M,), how far the latter can be trusted.
    """
    if not len(points0) or not len(back0):
        return np.full(len(points0), _FARTHEST, np.float32)
    number = min(NEAREST, len(back0))
    tree = cv2.flann_Index(np.ascontiguousarray(back0, np.float32), {"algorithm": _EXACT})  # type: ignore[attr-defined]
    index, squares = tree.knnSearch(np.ascontiguousarray(points1, np.float32), number, params={"checks": -1})
    motions = (back1.astype(np.float64) - back0)[index]
    offsets = back0[index].astype(np.float64) - points1[:, None]
    apart = np.square(motions - np.median(motions, axis=1, keepdims=True)).sum(axis=2)
    nearness = np.exp((squares.min(axis=1, keepdims=True) - squares) / (2 * WIDTH**2))
    weights = np.maximum(certainty[index], LEAST) * nearness / (1 + apart)
    weights = np.sqrt(weights / weights.max(axis=1, keepdims=True))
    around, moved, counts = map(torch.from_numpy, (offsets, motions, weights))
    ways = affine_fit(around, moved, counts, RIDGE, offset_ridge=1e-9)[:, 2].numpy()
    errors = np.hypot(*(points1 + ways - points0).T)
    return np.minimum(errors, _FARTHEST).astype(np.float32)
