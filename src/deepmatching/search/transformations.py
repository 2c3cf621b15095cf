"""Transformations between two images: robust fits to matches, what they explain, and images seen through them."""

import math
from dataclasses import dataclass

import cv2
import numpy as np
import torch
from torch import Tensor

from deepmatching.geometry.homographies import Size, apply, inside, jacobians, resizing
from deepmatching.search.settings import SETTINGS

Box = tuple[int, int, int, int]  #: top, left, bottom, right


@dataclass(frozen=True, eq=False)
class Transformation:
    """A transformation, and what it explains.

    Attributes:
        matrix: (3, 3), from pixels of the first image to those of the second.
        points0: (N, 2), starts of the matches that agree, in pixels of the first image.
        points1: (N, 2), their ends in the second image.
        weights: (N,), their confidence, or 1.
        spacing: of their grid, in pixels of the first image.
        visible: number of points of that grid that the transformation takes into the second image.
    """

    matrix: np.ndarray
    points0: np.ndarray
    points1: np.ndarray
    weights: np.ndarray
    spacing: float
    visible: int

    @property
    def support(self) -> float:
        """Return the expected fraction of the visible points whose match is right, 0 … 1."""
        return float(self.weights.sum()) / max(self.visible, 1)

    @property
    def within(self) -> float:
        """Return how far off a match may be that follows the transformation, in pixels of the second image."""
        zooms = np.sqrt(np.abs(np.linalg.det(jacobians(self.matrix, self.points0))))
        return float(0.25 * self.spacing * np.median(zooms)) if len(zooms) else 0.0

    @property
    def area(self) -> float:
        """Return the pixels of the first image that the matches explain."""
        return float(self.weights.sum()) * self.spacing**2


def fit(points0: np.ndarray, points1: np.ndarray, within: float, planar: bool = True) -> np.ndarray | None:
    """Fit the homography or, from few points or unless ``planar``, the affinity that most matches follow; None if none.

    Args:
        within: how far a match that follows it may be off, in pixels of the second image.
    """
    if len(points0) < SETTINGS.min_affine_matches:
        return None
    linear, chosen = cv2.estimateAffine2D(points0, points1, ransacReprojThreshold=within, maxIters=2000)
    if linear is None:
        return None
    matrix, follows = np.vstack([linear, (0.0, 0.0, 1.0)]), int(chosen.sum())
    if planar and follows >= SETTINGS.min_homography_matches:
        homography, chosen = cv2.findHomography(points0, points1, cv2.RANSAC, within, maxIters=2000)
        if homography is not None and int(chosen.sum()) > SETTINGS.homography_advantage * follows:
            found = homography * np.sign(homography[2] @ (*points0[chosen.ravel() > 0].mean(axis=0), 1.0))
            matrix = found if is_sound(found, points0[chosen.ravel() > 0]) else matrix
    return matrix if is_sound(matrix, points0) else None


def is_sound(matrix: np.ndarray, points: np.ndarray) -> bool:
    """Return whether a transformation neither mirrors nor squeezes an image into a line where it explains something."""
    derivatives = jacobians(matrix, points)
    if not np.isfinite(derivatives).all() or not (np.linalg.det(derivatives) > 0).all():
        return False
    zooms = np.linalg.svd(derivatives, compute_uv=False)
    return bool(SETTINGS.min_zoom <= zooms.min() and zooms.max() <= SETTINGS.max_zoom)


def visible_box(matrix: np.ndarray, size0: Size, size1: Size, step: int = 8) -> Box | None:
    """Return the part of the first image that can be seen in the second, in multiples of ``step`` pixels."""
    rows, columns = (np.arange(step / 2, side, step) for side in size0)
    points = np.stack(np.meshgrid(columns, rows), axis=2)
    seen = inside(apply(matrix, points.reshape(-1, 2)), size1).reshape(points.shape[:2])
    if not seen.any():
        return None
    (top, bottom), (left, right) = ((int(n[0]), int(n[-1]) + 1) for n in (np.flatnonzero(seen.any(a)) for a in (1, 0)))
    return top * step, left * step, min(bottom * step, size0[0]), min(right * step, size0[1])


def seen_through(image1: np.ndarray, matrix: np.ndarray, size: Size, at: np.ndarray) -> np.ndarray:
    """Show the second image as the first one would, (H, W, C) of this size.

    Args:
        matrix: from pixels of the result to those of the second image.
        at: a point (x, y) of the result at which the zoom tells how much to reduce the image first.
    """
    zoom = math.sqrt(abs(np.linalg.det(jacobians(matrix, at[None])[0])))
    smaller, frame = resized(image1, min(1.0, 1 / zoom))
    return warped(smaller, np.linalg.inv(frame @ matrix), size)


def pixels_of(image: Tensor) -> np.ndarray:
    """Convert an image (C, H, W) to an array (H, W, C)."""
    return np.ascontiguousarray(image.detach().cpu().numpy().transpose(1, 2, 0))


def tensor_of(pixels: np.ndarray) -> Tensor:
    """Convert an array (H, W[, C]) to an image (C, H, W)."""
    planar = pixels.reshape(*pixels.shape[:2], -1).transpose(2, 0, 1)
    return torch.from_numpy(np.ascontiguousarray(planar))


def resized(pixels: np.ndarray, factor: float, smallest: int = 1) -> tuple[np.ndarray, np.ndarray]:
    """Shrink an image; return it and the transformation to it. Each new pixel is the mean of what it covers."""
    old = pixels.shape[0], pixels.shape[1]
    new = max(smallest, round(old[0] * factor)), max(smallest, round(old[1] * factor))
    if new == old:
        return pixels, np.eye(3)
    smaller = cv2.resize(pixels, (new[1], new[0]), interpolation=cv2.INTER_AREA)
    return smaller.reshape(*new, -1), resizing(old, new)


def warped(pixels: np.ndarray, matrix: np.ndarray, size: Size) -> np.ndarray:
    """Warp an image (H, W, C) into a frame whose point ``matrix`` · p shows its point p, bilinearly."""
    beyond = (SETTINGS.beyond,) * 4
    found = cv2.warpPerspective(pixels, matrix, (size[1], size[0]), flags=cv2.INTER_LINEAR, borderValue=beyond)
    return found.reshape(*size, -1)
