"""From matches that agree to transformations: robust fits, and the regions that a transformation explains."""

from __future__ import annotations

import math
from dataclasses import dataclass

import cv2
import numpy as np
import torch

from deepmatching.geometry.homographies import Size, apply, inside, jacobians
from deepmatching.network.network import Network
from deepmatching.search.candidates import agreeing, for_small_images, reduced_area
from deepmatching.search.warping import resized, tensor_of, warped

#: Images on which a transformation is checked and refined have so many times the pixels of those on which all are
#: tried; the second, for a first look at a candidate, most of which are wrong.
CHECKED, FIRST = 4.0, 1.6

#: Largest displacement that a transformation may leave on images of so many pixels, in pixels.
RADIUS, RADIUS_AREA = 48, 40_000

#: Matches that a fit needs: an affinity, a homography.
FEWEST, ENOUGH = 6, 24

#: Smallest and largest zoom of a transformation that is believed, along any direction.
ZOOMS = 0.1, 10.0

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
        """The expected share of the visible points whose match is right, 0 … 1."""
        return float(self.weights.sum()) / max(self.visible, 1)

    @property
    def within(self) -> float:
        """How far off a match may be that follows the transformation, in pixels of the second image."""
        zooms = np.sqrt(np.abs(np.linalg.det(jacobians(self.matrix, self.points0))))
        return float(0.25 * self.spacing * np.median(zooms)) if len(zooms) else 0.0

    @property
    def area(self) -> float:
        """Pixels of the first image that the matches explain."""
        return float(self.weights.sum()) * self.spacing**2


def fit(points0: np.ndarray, points1: np.ndarray, within: float, planar: bool = True) -> np.ndarray | None:
    """The homography or, from few points or unless ``planar``, the affinity that most matches follow; None if none.

    Args:
        within: how far a match that follows it may be off, in pixels of the second image.
    """
    if len(points0) < FEWEST:
        return None
    linear, chosen = cv2.estimateAffine2D(points0, points1, ransacReprojThreshold=within, maxIters=2000)
    if linear is None:
        return None
    matrix, follows = np.vstack([linear, (0.0, 0.0, 1.0)]), int(chosen.sum())
    if planar and follows >= ENOUGH:
        homography, chosen = cv2.findHomography(points0, points1, cv2.RANSAC, within, maxIters=2000)
        if homography is not None and int(chosen.sum()) > 1.05 * follows:
            found = homography * np.sign(homography[2] @ (*points0[chosen.ravel() > 0].mean(axis=0), 1.0))
            matrix = found if _is_sound(found, points0[chosen.ravel() > 0]) else matrix
    return matrix if _is_sound(matrix, points0) else None


def _is_sound(matrix: np.ndarray, points: np.ndarray) -> bool:
    """Whether a transformation neither mirrors nor squeezes an image into a line where it explains something."""
    derivatives = jacobians(matrix, points)
    if not np.isfinite(derivatives).all() or not (np.linalg.det(derivatives) > 0).all():
        return False
    zooms = np.linalg.svd(derivatives, compute_uv=False)
    return bool(ZOOMS[0] <= zooms.min() and zooms.max() <= ZOOMS[1])


def visible_box(matrix: np.ndarray, size0: Size, size1: Size, step: int = 8) -> Box | None:
    """The part of the first image that a transformation takes into the second, in multiples of ``step`` pixels."""
    rows, columns = (np.arange(step / 2, side, step) for side in size0)
    points = np.stack(np.meshgrid(columns, rows), axis=2)
    seen = inside(apply(matrix, points.reshape(-1, 2)), size1).reshape(points.shape[:2])
    if not seen.any():
        return None
    (top, bottom), (left, right) = ((int(n[0]), int(n[-1]) + 1) for n in (np.flatnonzero(seen.any(a)) for a in (1, 0)))
    return top * step, left * step, min(bottom * step, size0[0]), min(right * step, size0[1])


def seen_through(image1: np.ndarray, matrix: np.ndarray, size: Size, at: np.ndarray) -> np.ndarray:
    """The second image as the first one would show it, (H, W, C) of this size.

    Args:
        matrix: from pixels of the result to those of the second image.
        at: a point (x, y) of the result at which the zoom tells how much to reduce the image first.
    """
    zoom = math.sqrt(abs(np.linalg.det(jacobians(matrix, at[None])[0])))
    smaller, frame = resized(image1, min(1.0, 1 / zoom))
    return warped(smaller, np.linalg.inv(frame @ matrix), size)


@torch.no_grad()
def check(
    images: tuple[np.ndarray, np.ndarray],
    network: Network,
    matrix: np.ndarray,
    radius: int | None = None,
    times: float = CHECKED,
) -> Transformation | None:
    """Match again at a reduced size, with the second image seen through the transformation; None if it shows nothing.

    Args:
        radius: largest displacement in pixels of the first image, if it is smaller than that at the reduced size.
        times: pixels of the reduced images, as a multiple of those on which all transformations are tried.
    """
    size0, size1 = images[0].shape[:2], images[1].shape[:2]
    box = visible_box(matrix, size0, size1)
    if box is None or min(box[2] - box[0], box[3] - box[1]) < 32:
        return None
    area = times * reduced_area(images)
    part = images[0][box[0] : box[2], box[1] : box[3]]
    factor = min(1.0, math.sqrt(area / part[..., 0].size))
    reduced, frame = resized(part, factor, 32)
    size = reduced.shape[:2]
    shift = np.array([[1, 0, -box[1]], [0, 1, -box[0]], [0, 0, 1.0]])
    back = np.linalg.inv(frame @ shift)  # from the reduced part to the first image
    middle = np.array([(size[1] - 1) / 2, (size[0] - 1) / 2])
    other = seen_through(images[1], matrix @ back, size, middle)
    largest = RADIUS * math.sqrt(area / RADIUS_AREA)
    limit = largest if radius is None else min(largest, radius * factor)
    network = for_small_images(network, max(1, round(limit / 8)) * 8)  # whole cells of any descriptor
    device = network.exponents.device
    first, second = (tensor_of(pixels)[None].to(device) for pixels in (reduced, other))
    geometry = network.geometry(size, size)
    decoded = network.decode(first, second, geometry=geometry)
    start, end, weights, _ = agreeing(decoded, np.eye(3), size)
    starts = decoded.points0.cpu().numpy().reshape(-1, 2) - 0.5
    visible = int(inside(apply(matrix @ back, starts), size1).sum())
    points1 = apply(matrix @ back, end)
    seen = inside(points1, size1)
    return Transformation(
        matrix, apply(back, start)[seen], points1[seen], weights[seen], geometry.alpha / factor, visible
    )
