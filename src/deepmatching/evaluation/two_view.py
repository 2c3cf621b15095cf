"""How exactly matches of photographs give the geometry of the two views, where no displacement of pixels is known.

The matches of a pair determine a homography, a fundamental or an essential matrix, depending on what is known of the
pair. Its error is in pixels of images whose longer side is at most 1024 pixels, or in degrees.
"""

import math
from collections.abc import Callable
from dataclasses import replace
from functools import partial

import cv2
import numpy as np

from deepmatching.data.datasets.pairs import Entry, Pose, read_homography, read_points
from deepmatching.errors import DeepMatchingError
from deepmatching.evaluation.results import LIMITS
from deepmatching.geometry.homographies import Size, apply, centre, inside, resizing
from deepmatching.geometry.two_view import find_essential
from deepmatching.io.images import shrunk_size
from deepmatching.matches import Matches

_MAX_SIZE = 1024  #: longer side of the images in whose pixels errors and MAGSAC's thresholds are
_MIN_CONFIDENCE = 0.5  #: matches above this confidence determine the geometry
_MIN_MATCHES = 30  #: number of the most confident matches that always do
_MAX_MATCHES = 20_000  #: largest number of matches that do, evenly spaced; methods that match every pixel have more
_GRID = 7  #: points along each side of the grid on which homographies are compared


def two_view_metrics(matches: Matches, entry: Entry, size0: Size, size1: Size) -> dict[str, float]:
    """Return AUC@T of one pair, in %, and its error; NaN and 0 % if the matches determine no geometry."""
    small0, small1 = shrunk_size(size0, _MAX_SIZE), shrunk_size(size1, _MAX_SIZE)
    to0, to1 = resizing(size0, small0), resizing(size1, small1)
    measure: Callable[[Matches], float]
    if entry.homography is not None:
        measure = partial(homography_error, truth=to1 @ read_homography(entry.homography) @ np.linalg.inv(to0))
    elif entry.points is not None:
        ends0, ends1 = read_points(entry.points)
        measure = partial(epipolar_error, points=(apply(to0, ends0), apply(to1, ends1)))
    else:
        assert entry.pose is not None
        measure = partial(pose_error, pose=Pose(to0 @ entry.pose.K0, to1 @ entry.pose.K1, entry.pose.T_0to1))
    try:
        error = measure(replace(_select(matches), size0=size0, size1=size1).at_sizes(small0, small1))
    except DeepMatchingError:
        error = math.nan
    aucs = {f"auc@{limit}": 100 * max(0.0, 1 - (math.inf if math.isnan(error) else error) / limit) for limit in LIMITS}
    return {**aucs, "error": error}


def _select(matches: Matches) -> Matches:
    """Return the matches that determine the geometry: the confident ones, or all without a confidence."""
    if matches.confidence is not None:
        matches = matches.best(max(_MIN_MATCHES, int((matches.confidence > _MIN_CONFIDENCE).sum())))
    return matches[:: 1 + len(matches) // _MAX_MATCHES]


def homography_error(matches: Matches, truth: np.ndarray) -> float:
    """Return the median distance of the ends of a 7 × 7 grid of points, of those that end inside the second image."""
    assert matches.size0 is not None and matches.size1 is not None
    rows, columns = (np.linspace(0, side - 1, _GRID) for side in matches.size0)
    grid = np.stack(np.meshgrid(columns, rows), axis=2).reshape(-1, 2)
    middle = np.array([*centre(matches.size0), 1.0])  # which both take to a point on this side of the horizon
    with np.errstate(divide="ignore", invalid="ignore"):
        ends, found = (apply(m / (m[2] @ middle), grid) for m in (truth, matches.homography().matrix))
    return _median(np.hypot(*(found - ends)[inside(ends, matches.size1)].T))


def epipolar_error(matches: Matches, points: tuple[np.ndarray, np.ndarray]) -> float:
    """Return the median distance of corresponding points to their epipolar lines, the mean of both images."""
    matrix = matches.fundamental().matrix
    first, second = (np.column_stack([ends, np.ones(len(ends))]) for ends in points)
    lines1, lines0 = first @ matrix.T, second @ matrix
    product = np.abs((second * lines1).sum(axis=1))
    return _median(sum(product / np.hypot(lines[:, 0], lines[:, 1]) for lines in (lines0, lines1)) / 2)


def pose_error(matches: Matches, pose: Pose) -> float:
    """Return the larger angle, in degrees, between true and found rotation, and between the translations' lines."""
    # By RANSAC as in the published tables, not by MAGSAC.
    found = find_essential(*matches.numpy()[:2], pose.K0, pose.K1, method=cv2.RANSAC)
    assert found.rotation is not None and found.translation is not None
    rotation, translation = pose.T_0to1[:3, :3], pose.T_0to1[:3, 3]
    cosines = [
        (np.trace(found.rotation.T @ rotation) - 1) / 2,
        abs(found.translation @ translation) / np.linalg.norm(translation),
    ]
    return float(np.degrees(np.arccos(np.clip(cosines, -1, 1))).max())


def _median(distances: np.ndarray) -> float:
    """Return the median, where NaN is far; NaN if that is far or there are none."""
    median = float(np.median(np.nan_to_num(distances, nan=np.inf))) if len(distances) else math.nan
    return median if math.isfinite(median) else math.nan
