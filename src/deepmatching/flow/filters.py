"""Filters of matches: measures of how far each match can be trusted."""

from __future__ import annotations

import cv2
import numpy as np
import torch

from deepmatching.operators.geodesic import Graph, Neighbours
from deepmatching.operators.local_models import falloff_weights, weighted_means

_WHITE = np.array([0.950456, 1.0, 1.088754])
_XYZ = np.array([[0.412453, 0.357580, 0.180423], [0.212671, 0.715160, 0.072169], [0.019334, 0.119193, 0.950227]])

#: Rows of saliency computed at a time, and the rows around a pixel that affect it: 3 + 4 for the Gaussians, 1 for the
#: gradient.
_STRIP, _REACH = 64, 8

#: Side in pixels of the bins that backward matches are looked up in.
_BIN = 8


def saliency(image: np.ndarray) -> np.ndarray:
    """How much an image changes in its least variable direction: (H, W) float32.

    The square root of the smallest eigenvalue of the structure tensor of the Lab channels. Gradients (−½, 0, ½) are
    taken after smoothing by 0.8 pixels and averaged with a Gaussian of 1 pixel. The original's threshold, 0.045, is for
    Lab of the RGB values without gamma correction, as a comparison with its output shows.

    Args:
        image: (1 or 3, H, W) float32 in [0, 1].
    """
    height = image.shape[1]
    result = np.empty(image.shape[1:], dtype=np.float32)
    for top in range(0, height, _STRIP):  # in strips, because the intermediate steps take 30 numbers per pixel
        first, end = max(0, top - _REACH), min(height, top + _STRIP)
        result[top:end] = _saliency(image[:, first : min(height, end + _REACH)])[top - first :][: end - top]
    return result


def _saliency(image: np.ndarray) -> np.ndarray:
    rgb = np.ascontiguousarray(np.broadcast_to(image, (3, *image.shape[1:])).transpose(1, 2, 0), dtype=np.float32)
    lab = cv2.GaussianBlur(_lab(rgb), (0, 0), 0.8, borderType=cv2.BORDER_REPLICATE)
    difference = np.array([[-0.5, 0, 0.5]], dtype=np.float32)
    x, y = (cv2.filter2D(lab, -1, kernel, borderType=cv2.BORDER_REPLICATE) for kernel in (difference, difference.T))
    tensor = np.stack([(x * x).sum(axis=2), (x * y).sum(axis=2), (y * y).sum(axis=2)], axis=2)
    xx, xy, yy = np.moveaxis(cv2.GaussianBlur(tensor, (0, 0), 1.0, borderType=cv2.BORDER_REPLICATE), 2, 0)
    smallest = (xx + yy - np.sqrt((xx - yy) ** 2 + 4 * xy * xy)) / 2
    return np.sqrt(np.maximum(smallest, 0))


def _lab(rgb: np.ndarray) -> np.ndarray:
    """CIE Lab of (H, W, 3), taken as linear RGB."""
    xyz = cv2.transform(rgb, _XYZ / _WHITE[:, None])
    x, y, z = np.moveaxis(np.where(xyz > 0.008856, np.cbrt(xyz), 7.787 * xyz + 16 / 116), 2, 0)
    return np.stack([116 * y - 16, 500 * (x - y), 200 * (y - z)], axis=2).astype(np.float32)


def first_of_each_pixel(pixels: np.ndarray, scores: np.ndarray | None) -> np.ndarray:
    """The best match of each pixel, the first of equals: (N,) bool, whether a match is kept."""
    order = np.arange(len(pixels)) if scores is None else np.argsort(-scores, kind="stable")
    _, first = np.unique(pixels[order], axis=0, return_index=True)
    stays = np.zeros(len(pixels), dtype=bool)
    stays[order[first]] = True
    return stays


def group_sizes(graph: Graph, displacements: np.ndarray, tolerance: float) -> np.ndarray:
    """The size of each match's group, (S,).

    Neighbours whose displacements differ by less than ``tolerance`` pixels are in the same group. Wrong matches,
    in particular those of occluded pixels, rarely agree with many others.
    """
    starts, others, _ = graph
    source = np.repeat(np.arange(len(displacements)), np.diff(starts))
    agree = np.hypot(*(displacements[source] - displacements[others]).T) < tolerance
    source, others = source[agree], others[agree]
    group = np.arange(len(displacements))
    while True:  # each match takes the lowest group around it, then the group of the match with that number
        lowest = group.copy()
        np.minimum.at(lowest, source, group[others])
        lowest = lowest[lowest]
        if np.array_equal(lowest, group):
            return np.bincount(group, minlength=len(group))[group]
        group = lowest


def inconsistency(
    neighbours: Neighbours, displacements: np.ndarray, falloff: float, voters: np.ndarray | None = None
) -> np.ndarray:
    """The distance of each displacement to the weighted mean of its neighbours' and its own, (S,) in pixels.

    Args:
        voters: (S,) bool, the matches that count in the means; None for all. The result of the others is undefined.
    """
    index = torch.from_numpy(neighbours.seeds)
    confidence = None if voters is None else torch.from_numpy(np.where(voters, 1.0, 1e-9))
    weights = falloff_weights(index, torch.from_numpy(neighbours.distances), falloff, confidence)
    means = weighted_means(index, weights, torch.from_numpy(displacements)).numpy()
    return np.hypot(*(means - displacements).T)


def round_trip_errors(
    keypoints0: np.ndarray, keypoints1: np.ndarray, backward0: np.ndarray, backward1: np.ndarray
) -> np.ndarray:
    """The round-trip error of each match, (N,) in pixels: how far from its start the way forward and back ends.

    The way back is the best of the backward matches in the 3 × 3 bins around the target, one per bin. The error is ∞ if
    these bins are empty.

    Args:
        keypoints0, keypoints1: (N, 2), matches from the first image to the second.
        backward0, backward1: (M, 2), matches from the second image to the first.
    """
    errors = np.full(len(keypoints0), np.inf)
    if len(backward0) == 0 or len(keypoints0) == 0:
        return errors
    numbers = _number(np.floor(backward0 / _BIN))
    order = np.argsort(numbers, kind="stable")
    numbers, back = numbers[order], (backward1 - backward0)[order]
    forward, home = keypoints1 - keypoints0, np.floor(keypoints1 / _BIN)
    for step in np.ndindex(3, 3):
        wanted = _number(home + np.array(step) - 1)
        last = np.searchsorted(numbers, wanted, side="right") - 1  # of several in a bin, the last
        error = np.hypot(*(forward + back[last]).T)
        errors = np.minimum(errors, np.where(numbers[last] == wanted, error, np.inf))
    return errors


def _number(bins: np.ndarray) -> np.ndarray:
    """A unique integer for each bin (N, 2); bins far outside the image are clipped."""
    column, row = np.clip(bins, -(2**30), 2**30).astype(np.int64).T
    return column * 2**32 + row
