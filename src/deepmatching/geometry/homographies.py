"""Transformations of the plane, from pixels of the first image to pixels of the second: 3 × 3 matrices.

Pixel centres are at integer coordinates. A point (x, y) goes to (X/W, Y/W) with (X, Y, W) = matrix · (x, y, 1).
"""

import math

import numpy as np
import torch
from torch import Tensor

Size = tuple[int, int]  #: rows and columns


def apply(matrix: np.ndarray, points: np.ndarray) -> np.ndarray:
    """Return the points (N, 2) where a transformation takes these points; NaN beyond its horizon."""
    mapped = np.asarray(points, np.float64) @ matrix[:, :2].T + matrix[:, 2]
    weight = mapped[:, 2:]
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(weight > 0, mapped[:, :2] / weight, np.nan)


def displacements(matrix: np.ndarray, size: Size) -> np.ndarray:
    """Return how a transformation moves each pixel of an image, (H, W, 2) float32; NaN beyond its horizon."""
    starts = np.indices(size)[::-1].reshape(2, -1).T
    return (apply(matrix, starts) - starts).reshape(*size, 2).astype(np.float32)


def jacobians(matrix: np.ndarray, points: np.ndarray) -> np.ndarray:
    """Return the derivative of a transformation at points, (N, 2, 2): row by coordinate, column by x and y."""
    mapped = np.asarray(points, np.float64) @ matrix[:, :2].T + matrix[:, 2]
    weight = mapped[:, 2, None, None]
    return (matrix[:2, :2] - mapped[:, :2, None] / weight * matrix[2, :2]) / weight


def rotation_and_zoom(jacobian: np.ndarray) -> tuple[float, float]:
    """Return the rotation in degrees, −180 … 180, and the zoom of the similarity nearest to a 2 × 2 matrix.

    Rotations are counted as the axes turn: from x to y, which is clockwise on a screen.
    """
    (a, b), (c, d) = np.asarray(jacobian, np.float64).tolist()
    return math.degrees(math.atan2(c - b, a + d)), math.sqrt(abs(a * d - b * c))


def similarity(rotation: float, zoom: float, centre0: np.ndarray, centre1: np.ndarray) -> np.ndarray:
    """Return the turn by ``rotation`` degrees and the zoom that take one point, ``centre0``, to another."""
    cos, sin = zoom * math.cos(math.radians(rotation)), zoom * math.sin(math.radians(rotation))
    linear = np.array([[cos, -sin], [sin, cos]])
    matrix = np.eye(3)
    matrix[:2, :2], matrix[:2, 2] = linear, np.asarray(centre1) - linear @ np.asarray(centre0)
    return matrix


def resizing(old: Size, new: Size) -> np.ndarray:
    """Return the transformation of an image that is resized: corners stay corners."""
    y, x = (to / of for to, of in zip(new, old, strict=True))
    return np.array([[x, 0, (x - 1) / 2], [0, y, (y - 1) / 2], [0, 0, 1.0]])


def centre(size: Size) -> np.ndarray:
    """Return the middle (x, y) of an image."""
    return np.array([(size[1] - 1) / 2, (size[0] - 1) / 2])


def inside(points: np.ndarray, size: Size) -> np.ndarray:
    """Return which of the points (N, 2) lie in the area that an image's pixels cover, (N,) bool."""
    with np.errstate(invalid="ignore"):
        within: np.ndarray = (points >= -0.5) & (points < (size[1] - 0.5, size[0] - 0.5))
    return within[:, 0] & within[:, 1]


def affine_fit(offsets: Tensor, values: Tensor, weights: Tensor, ridge: float = 0, offset_ridge: float = 0) -> Tensor:
    """Return the affine maps A x + b that fit values best, (…, 3, C): the derivatives along x and y (Aᵀ), and b.

    Minimises Σ_k w_k² |values_k − (A offsets_k + b)|² + ridge |A|² + offset_ridge |b|² by the normal
    equations, with offsets (…, K, 2), values (…, K, C) and weights (…, K). Points of weight 0 do not count. At least
    one weight must be positive; without a ridge, those of three points that are not on a line. A tiny
    ``offset_ridge`` lets all weights be 0.
    """
    rows = torch.cat([offsets, torch.ones_like(offsets[..., :1])], dim=-1)
    weighted = rows * weights.square()[..., None]
    normal = weighted.transpose(-1, -2) @ rows
    normal = normal + torch.diag(normal.new_tensor([ridge, ridge, offset_ridge]))
    return torch.linalg.solve(normal, weighted.transpose(-1, -2) @ values)
