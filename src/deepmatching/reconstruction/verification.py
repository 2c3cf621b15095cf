"""Geometric verification of a run's pairs without camera models: OpenCV's USAC on the fundamental matrix."""

from __future__ import annotations

from collections.abc import Callable

import cv2
import numpy as np

from deepmatching.bulk_matching import RunFolder
from deepmatching.bulk_matching.pairs import Pair
from deepmatching.reconstruction.colmap import MIN_MATCHES

#: Distance to the epipolar line up to which a match counts, in pixels of the size at which the images were matched.
_THRESHOLD = 1.5

#: RANSAC ends once it has found the best matrix with this probability.
_CONFIDENCE = 0.9999

#: Largest number of RANSAC's iterations.
_MAX_ITERATIONS = 5000

#: Number of matches that a fundamental matrix needs.
_MIN_MATCHES = 8


def count_inliers(points0: np.ndarray, points1: np.ndarray, threshold: float) -> int:
    """Return the number of matches, (N, 2) and (N, 2), that fit one fundamental matrix within ``threshold`` pixels."""
    if len(points0) < _MIN_MATCHES:
        return 0
    cv2.setRNGSeed(0)
    _, mask = cv2.findFundamentalMat(
        points0.astype(np.float64), points1.astype(np.float64), cv2.USAC_MAGSAC, threshold, _CONFIDENCE, _MAX_ITERATIONS
    )
    return 0 if mask is None else int(np.count_nonzero(mask))


def verify_pairs(
    run: RunFolder, min_matches: int = MIN_MATCHES, on_pair: Callable[[], object] | None = None
) -> dict[Pair, int]:
    """Return the number of verified matches of the pairs that have at least ``min_matches``."""
    verified = {}
    max_size = run.plan.settings.get("max_size")
    for pair in run:
        points0, points1, _ = pair.matches.numpy()
        longest = max((*(pair.matches.size0 or (1,)), *(pair.matches.size1 or (1,))))
        scale = max(1.0, longest / max_size) if max_size else 1.0
        count = count_inliers(points0, points1, _THRESHOLD * scale)
        if count >= min_matches:
            verified[pair.names] = count
        if on_pair is not None:
            on_pair()
    return verified
