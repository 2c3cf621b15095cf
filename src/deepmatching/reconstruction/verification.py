"""Geometric verification of a run's pairs without camera models: OpenCV's MAGSAC on the fundamental matrix."""

import contextlib
from collections.abc import Callable

from deepmatching.bulk_matching import RunFolder
from deepmatching.bulk_matching.pairs import Pair
from deepmatching.errors import DeepMatchingError
from deepmatching.geometry.two_view import find_fundamental
from deepmatching.reconstruction.colmap import MIN_MATCHES
from deepmatching.settings import MIN_CONFIDENCE

#: Distance to the epipolar line up to which a match counts, in pixels of the size at which the images were matched.
_THRESHOLD = 1.5
_MAX_ITERATIONS = 5000  #: Largest number of MAGSAC's trials for a pair.


def verify_pairs(
    run: RunFolder, min_matches: int = MIN_MATCHES, on_pair: Callable[[], object] | None = None
) -> dict[Pair, int]:
    """Return the number of verified matches of the pairs that have at least ``min_matches``.

    Unsure matches do not count, since many of them fit some geometry by chance.
    """
    verified = {}
    max_size = run.plan.settings.get("max_size")
    for pair in run:
        sure = pair.matches if pair.matches.confidence is None else pair.matches.filter(MIN_CONFIDENCE)
        points0, points1, _ = sure.numpy()
        longest = max((*(sure.size0 or (1,)), *(sure.size1 or (1,))))
        scale = max(1.0, longest / max_size) if max_size else 1.0
        with contextlib.suppress(DeepMatchingError):  # too few matches, or none that fit
            inliers = find_fundamental(points0, points1, _THRESHOLD * scale, _MAX_ITERATIONS).inliers
            if (count := int(inliers.sum())) >= min_matches:
                verified[pair.names] = count
        if on_pair is not None:
            on_pair()
    return verified
