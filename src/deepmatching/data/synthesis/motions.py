"""Motions between the two frames: homographies (…, 3, 3) of pixel coordinates, and waves that bend objects.

A layer's point x of frame 0 lies at M(x + w(x)) in frame 1, with w(x) = Σ_k a_k sin(ω_k·x + φ_k).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Generic

import numpy as np

from deepmatching.data.synthesis.transfer import Numbers

WAVES = 3  # of every layer
_STEEPEST = 0.25  # largest slope Σ|a||ω| of a wave: x = y − w(x) then converges by a factor of 4 a step


@dataclass
class Waves(Generic[Numbers]):
    """w(x) = Σ_k a_k sin(ω_k·x + φ_k)."""

    amplitude: Numbers  #: (…, K, 2)
    frequency: Numbers  #: (…, K, 2), radians per pixel
    phase: Numbers  #: (…, K)


def heavy(rng: np.random.Generator, median: np.ndarray | float, shape: tuple[int, ...]) -> np.ndarray:
    """Lengths with a heavy tail: half are below `median`, one in 40 above 10 times as much."""
    return median * np.exp(rng.normal(0, 1.15, shape))


def directed(rng: np.random.Generator, length: np.ndarray) -> np.ndarray:
    """Vectors (…, 2) of the given lengths in random directions, more often horizontal ones, as in films."""
    angle = rng.uniform(0, 2 * np.pi, length.shape)
    vector = np.stack([np.cos(angle), np.sin(angle) * rng.uniform(0.3, 1, length.shape)], axis=-1)
    return length[..., None] * vector / np.linalg.norm(vector, axis=-1, keepdims=True)


def linear(angle: np.ndarray, zoom: np.ndarray, stretch: np.ndarray, axis: np.ndarray) -> np.ndarray:
    """Rotation by `angle`, zoom, and a stretch by `stretch` along the direction `axis`: (…, 2, 2)."""
    turn, along = rotation(angle), rotation(axis)
    scales = np.stack([zoom * stretch, zoom / stretch], axis=-1)
    return turn @ (along * scales[..., None, :]) @ np.swapaxes(along, -1, -2)


def rotation(angle: np.ndarray) -> np.ndarray:
    cos, sin = np.cos(angle), np.sin(angle)
    return np.stack([np.stack([cos, -sin], -1), np.stack([sin, cos], -1)], -2)


def affine(matrix: np.ndarray, source: np.ndarray, target: np.ndarray) -> np.ndarray:
    """x ↦ target + matrix (x − source) as (…, 3, 3)."""
    result = np.zeros((*matrix.shape[:-2], 3, 3))
    result[..., :2, :2] = matrix
    result[..., :2, 2] = target - (matrix @ source[..., None])[..., 0]
    result[..., 2, 2] = 1
    return result


def apply(motion: np.ndarray, points: np.ndarray) -> np.ndarray:
    """(…, 3, 3) on (…, P, 2)."""
    mapped = points @ np.swapaxes(motion[..., :2], -1, -2) + motion[..., None, :, 2]
    return mapped[..., :2] / mapped[..., 2:]


def reach(motion: np.ndarray, points: np.ndarray) -> np.ndarray:
    """The largest displacement along x or y of any of the `points` (…, P, 2): (…)."""
    return np.abs(apply(motion, points) - points).max(axis=(-1, -2))


def limit(motion: np.ndarray, points: np.ndarray, largest: np.ndarray | float) -> np.ndarray:
    """Weaken motions that move one of the `points` by more than `largest` along x or y."""
    for _ in range(3):  # a homography's displacements are only nearly proportional to M − 1
        factor = np.minimum(1, largest / np.maximum(reach(motion, points), 1e-9))[..., None, None]
        motion = np.eye(3) + factor * (motion / motion[..., 2:, 2:] - np.eye(3))
    return motion


def intrinsics(focal: np.ndarray, centre: np.ndarray) -> np.ndarray:
    """K (n, 3, 3) of cameras with focal lengths (n,) and principal points (n, 2), both in pixels."""
    camera = np.zeros((focal.shape[0], 3, 3))
    camera[:, 0, 0] = camera[:, 1, 1] = focal
    camera[:, :2, 2], camera[:, 2, 2] = centre, 1
    return camera


def planes(
    focal: np.ndarray, centre: np.ndarray, turn: np.ndarray, shift: np.ndarray, normal: np.ndarray
) -> np.ndarray:
    """Homographies K (R + t mᵀ) K⁻¹ of planes mᵀX = 1 seen by a camera whose points move to R X + t.

    focal: (n,), centre: (n, 2), turn: rotation vectors (n, 3), small; shift: t (n, 3); normal: m (n, L, 3).
    """
    count = focal.shape[0]
    camera = intrinsics(focal, centre)
    x, y, z = turn.T
    zero = np.zeros_like(x)
    cross = np.stack([zero, -z, y, z, zero, -x, -y, x, zero], axis=1).reshape(count, 3, 3)
    turned = np.eye(3) + cross + cross @ cross / 2
    moved = turned[:, None] + shift[:, None, :, None] * normal[:, :, None, :]
    return camera[:, None] @ moved @ np.linalg.inv(camera)[:, None]


def draw_waves(
    rng: np.random.Generator, shape: tuple[int, ...], size: np.ndarray, height: np.ndarray
) -> Waves[np.ndarray]:
    """Waves that bend objects of the given `size` in pixels by about `height` pixels; both of `shape`."""
    length = size[..., None] * rng.uniform(0.6, 2.0, (*shape, WAVES))
    angle = rng.uniform(0, 2 * np.pi, (2, *shape, WAVES))
    frequency = (2 * np.pi / length)[..., None] * np.stack([np.cos(angle[0]), np.sin(angle[0])], -1)
    weight = rng.uniform(0.2, 1, (*shape, WAVES))
    strength = height[..., None] * weight / weight.sum(-1, keepdims=True)
    slope = (strength * 2 * np.pi / length).sum(-1, keepdims=True)
    strength *= np.minimum(1, _STEEPEST / np.maximum(slope, 1e-9))
    amplitude = strength[..., None] * np.stack([np.cos(angle[1]), np.sin(angle[1])], -1)
    return Waves(amplitude, frequency, rng.uniform(0, 2 * np.pi, (*shape, WAVES)))
