"""Geometric verification of a run's pairs without camera models: OpenCV's MAGSAC on the fundamental matrix."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from deepmatching.bulk_matching import RunFolder
from deepmatching.bulk_matching.pairs import Pair
from deepmatching.errors import DeepMatchingError
from deepmatching.geometry.two_view import find_fundamental
from deepmatching.reconstruction.colmap import MIN_MATCHES

#: Distance to the epipolar line up to which a match counts, in pixels of the size at which the images were matched.
_THRESHOLD = 1.5

#: Largest number of MAGSAC's trials for a pair.
_MAX_ITERATIONS = 5000


def count_inliers(points0: np.ndarray, points1: np.ndarray, threshold: float) -> int:
    """Return the number of matches, (N, 2) and (N, 2), that fit one fundamental matrix within ``threshold`` pixels."""
    try:
        return int(find_fundamental(points0, points1, threshold, _MAX_ITERATIONS).inliers.sum())
    except DeepMatchingError:  # too few matches, or none that fit
        return 0


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
