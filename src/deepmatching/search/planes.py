"""Planes that matches of sparse features, or doubtful matches of the network, agree on."""

import math
from collections.abc import Iterator

import cv2
import numpy as np

from deepmatching.geometry.homographies import apply
from deepmatching.search.candidates import mean_area
from deepmatching.search.settings import SETTINGS
from deepmatching.search.transformations import is_sound, resized

_ROWS = 1024  #: features that are compared with all others at a time

Ends = tuple[np.ndarray, np.ndarray]  #: (N, 2) each: matches from the first image to the second, in pixels


def planes(points0: np.ndarray, points1: np.ndarray, within: float) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yield homographies by MAGSAC and which matches follow them, each found among those that the ones before leave."""
    left = np.arange(len(points0))
    for _ in range(SETTINGS.max_planes):
        if len(left) < SETTINGS.min_plane_matches:
            return
        matrix, chosen = cv2.findHomography(points0[left], points1[left], cv2.USAC_MAGSAC, within, maxIters=10_000)
        if matrix is None or (follows := chosen.ravel() > 0).sum() < SETTINGS.min_plane_matches:
            return
        middle = np.array([*points0[left[follows]].mean(axis=0), 1.0])
        matrix = matrix / (matrix[2] @ middle)
        if is_sound(matrix, points0[left[follows]]):
            yield matrix, left[follows]
        left = left[~follows]


def sparse_matches(images: tuple[np.ndarray, np.ndarray]) -> Ends:
    """Match the SIFT features of two images (H, W, C), each also as seen from the side (ASIFT).

    They are mutual nearest neighbours that pass the ratio test against features elsewhere.
    """
    area = min(SETTINGS.max_features_area, SETTINGS.features_fraction * mean_area(images))
    (points0, described0), (points1, described1) = (_features(image, area) for image in images)
    if min(len(points0), len(points1)) < 2:
        return np.zeros((0, 2)), np.zeros((0, 2))
    likest, nearest, likest1 = np.zeros(len(points0)), np.zeros(len(points0), int), np.full(len(points1), -1.0)
    for rows in _blocks(len(points0)):
        alike = described0[rows] @ described1.T
        likest[rows], nearest[rows] = alike.max(axis=1), alike.argmax(axis=1)
        likest1 = np.maximum(likest1, alike.max(axis=0))
    mutual = np.flatnonzero(likest == likest1[nearest])
    starts, ends, second = points0[mutual], points1[nearest[mutual]], np.zeros(len(mutual))
    for rows in _blocks(len(mutual)):
        alike = described0[mutual[rows]] @ described1.T
        off = (np.abs(ends[rows, None, axis] - points1[:, axis]) <= SETTINGS.same_feature for axis in (0, 1))
        alike[np.logical_and(*off)] = -1.0
        second[rows] = alike.max(axis=1)
    distances = np.sqrt(np.maximum(2 - 2 * np.stack([likest[mutual], second]), 0))  # descriptors have unit norm
    kept = distances[0] <= SETTINGS.max_ratio * distances[1]
    return starts[kept], ends[kept]


def _blocks(rows: int) -> Iterator[slice]:
    """Yield slices of ``_ROWS`` rows, so that comparing takes little memory."""
    return (slice(start, start + _ROWS) for start in range(0, rows, _ROWS))


def _features(image: np.ndarray, area: float) -> tuple[np.ndarray, np.ndarray]:
    """Return the points of an image's features, (N, 2), and the square roots of their descriptors, (N, 128)."""
    small, frame = resized(image, min(1.0, math.sqrt(area / image[..., 0].size)))
    is_masked = small.shape[2] % 2 == 0
    colours, mask = (small[..., :-1], (small[..., -1] == 1).astype(np.uint8)) if is_masked else (small, None)
    grey = np.ascontiguousarray((colours.mean(axis=2).clip(0, 1) * 255).round().astype(np.uint8))
    sift = cv2.SIFT.create(round(area / SETTINGS.pixels_per_feature), contrastThreshold=0.01)
    detector = cv2.AffineFeature.create(sift)
    views = [(tilt, roll) for tilt, step in SETTINGS.views for roll in np.arange(0, 180, step)]
    detector.setViewParams(*np.array(views).T.tolist())
    keypoints, descriptors = detector.detectAndCompute(grey, mask)
    points = np.array([keypoint.pt for keypoint in keypoints], np.float64).reshape(-1, 2)
    if descriptors is None:
        return points[:0], np.zeros((0, 128), np.float32)
    roots = np.sqrt(descriptors / np.maximum(descriptors.sum(axis=1, keepdims=True), 1e-9))
    return apply(np.linalg.inv(frame), points), roots
