"""The geometry of two views that most matches fit, by OpenCV's MAGSAC, which tells right matches from wrong ones.

Points are (N, 2), x and y in pixels. The same points always give the same result.
"""

from dataclasses import dataclass, replace
from typing import Any

import cv2
import numpy as np

from deepmatching.errors import DeepMatchingError, check_number, short_repr

#: Each geometry in words, the fewest matches that leave one, and the probability of success at which the search ends.
_KINDS = {
    "homography": ("a homography", 4, 0.995),
    "fundamental": ("a fundamental matrix", 8, 0.9999),
    "essential": ("an essential matrix", 6, 0.99999),
}
_MAX_ITERATIONS = 10_000  #: largest number of trials of MAGSAC


@dataclass(frozen=True, eq=False)
class TwoViewGeometry:
    """A matrix that relates two views, and the matches that fit it.

    A homography takes (x, y, 1) of the first image to the second. The other matrices give 0 for
    (x1, y1, 1) · matrix · (x0, y0, 1); the essential matrix, for points in units of the focal length. With it, the
    second camera sees the point X of the first one at rotation · X + s · translation, for an unknown s > 0.
    """

    name: str  #: ``"homography"``, ``"fundamental"`` or ``"essential"``
    matrix: np.ndarray  #: (3, 3) float64
    inliers: np.ndarray  #: (N,) bool, the matches that fit the matrix within the threshold
    threshold: float  #: in pixels
    rotation: np.ndarray | None = None  #: (3, 3), of an essential matrix
    translation: np.ndarray | None = None  #: (3,) of length 1, of an essential matrix

    def __repr__(self) -> str:
        return f"<{self.name}: {self.inliers.sum()} of {len(self.inliers)} matches fit within {self.threshold:g} px>"

    def to_json(self) -> dict[str, Any]:
        """Return the matrix and the number of inliers in the types of JSON."""
        parts = {"matrix": self.matrix, "rotation": self.rotation, "translation": self.translation}
        return {
            "geometry": self.name,
            **{name: array.tolist() for name, array in parts.items() if array is not None},
            "inliers": int(self.inliers.sum()),
            "matches": len(self.inliers),
            "threshold": self.threshold,
        }


def find_homography(
    points0: np.ndarray, points1: np.ndarray, threshold: float = 3.0, iterations: int = _MAX_ITERATIONS
) -> TwoViewGeometry:
    """Find the homography of a plane, or of a camera that only turns."""
    points = _check("homography", points0, points1, threshold)
    options: dict[str, Any] = {"maxIters": iterations, "confidence": _KINDS["homography"][2]}
    return _found("homography", cv2.findHomography(*points, cv2.USAC_MAGSAC, threshold, **options), threshold)


def find_fundamental(
    points0: np.ndarray, points1: np.ndarray, threshold: float = 1.0, iterations: int = _MAX_ITERATIONS
) -> TwoViewGeometry:
    """Find the fundamental matrix of a scene that does not move; matches fit within ``threshold`` of their lines."""
    points = _check("fundamental", points0, points1, threshold)
    found = cv2.findFundamentalMat(*points, cv2.USAC_MAGSAC, threshold, _KINDS["fundamental"][2], iterations)
    return _found("fundamental", found, threshold)


def find_essential(
    points0: np.ndarray,
    points1: np.ndarray,
    camera0: np.ndarray,
    camera1: np.ndarray,
    threshold: float = 1.0,
    method: int = cv2.USAC_MAGSAC,
) -> TwoViewGeometry:
    """Find the essential matrix, the rotation and the translation of cameras whose matrices K (3, 3) are known.

    ``method`` is one of OpenCV's. The threshold is in pixels of a camera with the mean of the focal lengths.
    """
    points = _check("essential", points0, points1, threshold)
    cameras = [check_camera(f"K{number}", camera) for number, camera in enumerate((camera0, camera1))]
    # Given points in units of the focal length instead of the cameras, OpenCV's MAGSAC is several times less exact.
    (first, second), (k0, k1) = points, cameras
    options: dict[str, Any] = {"method": method, "prob": _KINDS["essential"][2], "threshold": threshold}
    found = cv2.findEssentialMat(first, second, k0, None, k1, None, **options)
    views = _found("essential", found, threshold)
    rays0, rays1 = (cv2.undistortPoints(p[:, None], k, None)[:, 0] for p, k in zip(points, cameras, strict=True))
    _, rotation, translation, _ = cv2.recoverPose(views.matrix, rays0, rays1, np.eye(3), mask=found[1].copy())
    return replace(views, rotation=rotation, translation=translation[:, 0])


def _check(name: str, points0: np.ndarray, points1: np.ndarray, threshold: float) -> tuple[np.ndarray, np.ndarray]:
    """Return both ends of the matches in double precision; raise if there are too few."""
    check_number("threshold", threshold, above=0, maximum=1e9)
    phrase, fewest, _ = _KINDS[name]
    try:
        ends = np.asarray(points0, np.float64), np.asarray(points1, np.float64)
    except (ValueError, TypeError, RuntimeError, OverflowError):
        raise DeepMatchingError("The points of matches must be arrays of numbers.") from None
    if ends[0].ndim != 2 or ends[0].shape[1] != 2 or ends[0].shape != ends[1].shape:
        raise DeepMatchingError(f"The points of matches must be (N, 2), not {ends[0].shape} and {ends[1].shape}.")
    if len(ends[0]) < fewest:
        raise DeepMatchingError(f"Keep more matches: {phrase} needs at least {fewest}, not {len(ends[0])}.")
    return ends


def check_camera(name: str, camera: np.ndarray) -> np.ndarray:
    """Return a camera matrix (3, 3) in double precision; raise, calling it ``name``, for anything else."""
    try:
        matrix = np.asarray(camera, np.float64)
    except (ValueError, TypeError, RuntimeError, OverflowError):  # not numbers, or not rows of equal length
        matrix = np.zeros(0)
    if matrix.shape != (3, 3) or not np.isfinite(matrix).all() or min(matrix[0, 0], matrix[1, 1]) <= 0:
        wanted = "a 3 x 3 camera matrix with focal lengths above 0, in pixels"
        raise DeepMatchingError(f"{name} must be {wanted}, not {short_repr(camera)}.")
    return matrix


def _found(name: str, found: tuple[Any, Any], threshold: float) -> TwoViewGeometry:
    matrix, mask = found
    if matrix is None or matrix.shape != (3, 3):
        words = f"The matches do not fit {_KINDS[name][0]}"
        raise DeepMatchingError(f"{words}: match other images, or raise the threshold.")
    return TwoViewGeometry(name, matrix, mask.ravel() != 0, threshold)
