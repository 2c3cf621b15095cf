"""Does the confidence mean what it says? Ranking and calibration of "the match is right"."""

from __future__ import annotations

import numpy as np


def area_under_roc(scores: np.ndarray, is_right: np.ndarray) -> float:
    """The probability that a right match has a higher score than a wrong one, ties counting half; NaN without both.

    Args:
        scores: (N,), higher for matches that are thought right.
        is_right: (N,) bool.
    """
    right = int(is_right.sum())
    wrong = len(is_right) - right
    if not right or not wrong:
        return float("nan")
    _, inverse, counts = np.unique(scores, return_inverse=True, return_counts=True)
    last = np.cumsum(counts)
    ranks = (last - (counts - 1) / 2)[inverse]  # from 1; ties share their mean rank
    return float((ranks[is_right].sum() - right * (right + 1) / 2) / (right * wrong))


def reliability(confidence: np.ndarray, is_right: np.ndarray, bins: int = 10) -> list[tuple[int, float, float]]:
    """For each of ``bins`` equal intervals of the confidence: number of matches, mean confidence, fraction right.

    The means are NaN for an empty interval.
    """
    place = np.minimum((confidence * bins).astype(np.int64), bins - 1)
    table = []
    for n in range(bins):
        inside = place == n
        count = int(inside.sum())
        nan = float("nan")
        stated, true = (float(values[inside].mean()) if count else nan for values in (confidence, is_right))
        table.append((count, stated, true))
    return table
