"""Filters of matches: measures of how far each match can be trusted."""

from __future__ import annotations

import math

import numpy as np
import torch

from deepmatching.flow.operators.geodesic import Cells, Neighbours
from deepmatching.flow.operators.local_models import falloff_weights, weighted_means
from deepmatching.flow.operators.saliency import saliency as operator_saliency

#: Side in pixels of the bins that backward matches are looked up in.
_BIN = 8

#: The least weight of a match that is weighted by its confidence.
LEAST_WEIGHT = 1e-3


def saliency(image: np.ndarray) -> np.ndarray:
    """How much an image (1 or 3, H, W) changes in its least variable direction: (H, W) float32."""
    return operator_saliency(torch.from_numpy(image)).numpy()


def least_confidence(confidence: np.ndarray, asked: float, least_kept: float) -> float:
    """The threshold on confidences (N,): the one asked for, or a lower one that keeps this fraction of the matches."""
    last = max(1, math.ceil(least_kept * len(confidence))) - 1
    return min(asked, float(np.sort(confidence)[::-1][last]))


def first_of_each_pixel(pixels: np.ndarray, scores: np.ndarray | None) -> np.ndarray:
    """The best match of each pixel, the first of equals: (N,) bool, whether a match is kept."""
    order = np.arange(len(pixels)) if scores is None else np.argsort(-scores, kind="stable")
    _, first = np.unique(pixels[order], axis=0, return_index=True)
    stays = np.zeros(len(pixels), dtype=bool)
    stays[order[first]] = True
    return stays


def group_sizes(cells: Cells, displacements: np.ndarray, tolerance: float) -> np.ndarray:
    """The size of each match's group, (S,).

    Neighbours whose displacements differ by less than ``tolerance`` pixels are in the same group. Wrong matches,
    in particular those of occluded pixels, rarely agree with many others.
    """
    starts, others, _ = cells.graph
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
