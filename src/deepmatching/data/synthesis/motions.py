"""Motions of camera and objects between the two frames: homographies (…, 3, 3) of pixels, and waves that bend objects.

A layer's point x of frame 0 lies at M(x + w(x)) in frame 1, with w(x) = Σ_k a_k sin(ω_k·x + φ_k).
"""

import itertools
from dataclasses import dataclass
from typing import Generic, TypeVar

import numpy as np
from torch import Tensor

from deepmatching.data.synthesis.settings import SynthesisSettings

#: A scene holds arrays when it is drawn, and tensors when it is rendered.
Numbers = TypeVar("Numbers", np.ndarray, Tensor)

WAVES = 3  # of every layer
_STEEPEST = 0.25  # largest slope Σ|a||ω| of a wave: x = y − w(x) then converges by a factor of 4 a step


@dataclass
class Waves(Generic[Numbers]):
    """w(x) = Σ_k a_k sin(ω_k·x + φ_k)."""

    amplitude: Numbers  #: (…, K, 2)
    frequency: Numbers  #: (…, K, 2), radians per pixel
    phase: Numbers  #: (…, K)


def heavy(rng: np.random.Generator, median: np.ndarray | float, shape: tuple[int, ...]) -> np.ndarray:
    """Draw lengths with a heavy tail: half are below `median`, one in 40 above 10 times as much."""
    return median * np.exp(rng.normal(0, 1.15, shape))


def directed(rng: np.random.Generator, length: np.ndarray) -> np.ndarray:
    """Draw vectors (…, 2) of the given lengths in random directions, more often horizontal ones, as in films."""
    angle = rng.uniform(0, 2 * np.pi, length.shape)
    vector = np.stack([np.cos(angle), np.sin(angle) * rng.uniform(0.3, 1, length.shape)], axis=-1)
    return length[..., None] * vector / np.linalg.norm(vector, axis=-1, keepdims=True)


def linear(angle: np.ndarray, zoom: np.ndarray, stretch: np.ndarray, axis: np.ndarray) -> np.ndarray:
    """Return a rotation by `angle`, zoom, and a stretch by `stretch` along the direction `axis`: (…, 2, 2)."""
    turn, along = rotation(angle), rotation(axis)
    scales = np.stack([zoom * stretch, zoom / stretch], axis=-1)
    return turn @ (along * scales[..., None, :]) @ np.swapaxes(along, -1, -2)


def rotation(angle: np.ndarray) -> np.ndarray:
    cos, sin = np.cos(angle), np.sin(angle)
    return np.stack([np.stack([cos, -sin], -1), np.stack([sin, cos], -1)], -2)


def affine(matrix: np.ndarray, source: np.ndarray, target: np.ndarray) -> np.ndarray:
    """Return x ↦ target + matrix (x − source) as (…, 3, 3)."""
    result = np.zeros((*matrix.shape[:-2], 3, 3))
    result[..., :2, :2] = matrix
    result[..., :2, 2] = target - (matrix @ source[..., None])[..., 0]
    result[..., 2, 2] = 1
    return result


def apply(motion: np.ndarray, points: np.ndarray) -> np.ndarray:
    """Apply homographies (…, 3, 3) to points (…, P, 2)."""
    mapped = points @ np.swapaxes(motion[..., :2], -1, -2) + motion[..., None, :, 2]
    return mapped[..., :2] / mapped[..., 2:]


def reach(motion: np.ndarray, points: np.ndarray) -> np.ndarray:
    """Return the largest displacement along x or y of any of the `points` (…, P, 2): (…)."""
    return np.abs(apply(motion, points) - points).max(axis=(-1, -2))


def limit(motion: np.ndarray, points: np.ndarray, largest: np.ndarray | float) -> np.ndarray:
    """Weaken motions that move one of the `points` by more than `largest` along x or y."""
    for _ in range(3):  # a homography's displacements are only nearly proportional to M − 1
        factor = np.minimum(1, largest / np.maximum(reach(motion, points), 1e-9))[..., None, None]
        motion = np.eye(3) + factor * (motion / motion[..., 2:, 2:] - np.eye(3))
    return motion


def intrinsics(focal: np.ndarray, centre: np.ndarray) -> np.ndarray:
    """Return K (n, 3, 3) of cameras with focal lengths (n,) and principal points (n, 2), both in pixels."""
    camera = np.zeros((focal.shape[0], 3, 3))
    camera[:, 0, 0] = camera[:, 1, 1] = focal
    camera[:, :2, 2], camera[:, 2, 2] = centre, 1
    return camera


def planes(
    focal: np.ndarray, centre: np.ndarray, turn: np.ndarray, shift: np.ndarray, normal: np.ndarray
) -> np.ndarray:
    """Return homographies K (R + t mᵀ) K⁻¹ of planes mᵀX = 1 seen by a camera whose points move to R X + t.

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


def draw_waves(rng: np.random.Generator, size: np.ndarray, height: np.ndarray) -> Waves[np.ndarray]:
    """Draw waves that bend objects of the given `size` in pixels by about `height` pixels, an array of that shape."""
    shape = (*size.shape, WAVES)
    length = size[..., None] * rng.uniform(0.6, 2.0, shape)
    angle = rng.uniform(0, 2 * np.pi, (2, *shape))
    frequency = (2 * np.pi / length)[..., None] * np.stack([np.cos(angle[0]), np.sin(angle[0])], -1)
    weight = rng.uniform(0.2, 1, shape)
    strength = height[..., None] * weight / weight.sum(-1, keepdims=True)
    strength *= np.minimum(1, _STEEPEST / np.maximum((strength * 2 * np.pi / length).sum(-1, keepdims=True), 1e-9))
    amplitude = strength[..., None] * np.stack([np.cos(angle[1]), np.sin(angle[1])], -1)
    return Waves(amplitude, frequency, rng.uniform(0, 2 * np.pi, shape))


PLANES = 4  # of a street, front to back: left wall, right wall, near ground, far ground
_WIDE = (8, 7, 12, 9)  # factors of turn, zoom, stretch and tilt for a wide baseline
_MAX_TILT = 0.7  # largest change of a plane's depth over the frame, for a wide baseline


@dataclass
class Kinds:
    """Number of the pairs, and indices of those of each kind."""

    count: int
    wide: np.ndarray
    small: np.ndarray
    still: np.ndarray
    driving: np.ndarray
    viewpoint: np.ndarray


@dataclass
class Streets:
    """Cameras of m driving scenes; lengths in units of the depth of the ground at the lower edge of the frame."""

    focal: np.ndarray  #: (m,)
    centre: np.ndarray  #: (m, 2) principal point
    normal: np.ndarray  #: (m, PLANES, 3): a plane is normalᵀX = 1
    placement: np.ndarray  #: (m, PLANES, 3, 3)
    box: np.ndarray  #: (m, PLANES, 2) texels
    is_present: np.ndarray  #: (m, PLANES)


def draw_kinds(rng: np.random.Generator, count: int, settings: SynthesisSettings, wide: np.ndarray) -> Kinds:
    """Draw the kinds of `count` pairs; those with an index in `wide` have a wide baseline."""
    kind = rng.uniform(size=count)
    kind[wide] = np.nan  # none of the others
    edges = np.cumsum([0, settings.small, settings.still, settings.driving, settings.viewpoint])
    drawn = (np.flatnonzero((kind >= low) & (kind < high)) for low, high in itertools.pairwise(edges))
    return Kinds(count, wide, *drawn)


def draw_streets(rng: np.random.Generator, size: tuple[int, int], scenes: np.ndarray, tile: int) -> Streets:
    """Draw a ground below the camera, in two pieces, and a wall on each side; each may be missing."""
    count, largest = len(scenes), tile - 4.0  # texels
    rows, columns = size
    focal = columns * rng.uniform(0.55, 1.1, count)
    centre = np.array([columns - 1, rows - 1]) * (0.5 + rng.normal(0, 0.06, (count, 2)))
    below = rows - 1 - centre[:, 1]  # pixels from the horizon to the lower edge, where the depth is 1
    height = below / focal
    normal, placement = np.zeros((count, PLANES, 3)), np.zeros((count, PLANES, 3, 3))
    box = np.zeros((count, PLANES, 2))
    density, zero = rng.uniform(0.8, 1.3, (PLANES, count)), np.zeros(count)
    horizon = below * rng.uniform(0.15, 0.25, count)  # where the ground ends, in pixels below the horizon
    middle = np.sqrt(horizon * below * 1.15)
    for plane, (far, near) in ((2, (middle, 1.15 * below)), (3, (horizon, 1.15 * middle))):  # they overlap
        # At `far` pixels from the horizon there are `density` texels per pixel in both directions.
        across, along = density[plane] * far / height, density[plane] * far**2 / (focal * height)
        depth = focal * height / np.stack([near, far])
        origin = np.stack([zero, height, depth.mean(0)], 1)
        axes = np.stack([1 / across, zero, zero], 1), np.stack([zero, zero, -1 / along], 1)
        placement[:, plane] = _placement(focal, centre, origin, *axes)
        normal[:, plane, 1] = 1 / height
        box[:, plane] = np.stack([np.full(count, largest), along * (depth[1] - depth[0])], 1)
    for plane, side in ((0, -1.0), (1, 1.0)):
        beside = centre[:, 0] if side < 0 else columns - 1 - centre[:, 0]  # pixels to this edge of the frame
        distance = rng.uniform(0.8, 1.6, count) * beside / focal
        far, near = rng.uniform(0.25, 0.5, count) * beside, 1.1 * beside
        across, along = density[plane] * far / distance, density[plane] * far**2 / (focal * distance)
        depth = focal * distance / np.stack([near, far])
        top = rng.uniform(0.5, 3.0, count) * height
        sides = np.minimum(np.stack([along * (depth[1] - depth[0]), across * (top + height)], 1), largest)
        origin = np.stack([side * distance, height - sides[:, 1] / across / 2, depth.mean(0)], 1)
        axes = np.stack([zero, zero, -side / along], 1), np.stack([zero, 1 / across, zero], 1)
        placement[:, plane] = _placement(focal, centre, origin, *axes)
        normal[:, plane, 0] = side / distance
        box[:, plane] = sides
    is_present = rng.uniform(size=(count, PLANES)) < np.array([0.6, 0.6, 0.9, 0.9])
    return Streets(focal, centre, normal, placement, box, is_present)


def _placement(
    focal: np.ndarray, centre: np.ndarray, origin: np.ndarray, axis0: np.ndarray, axis1: np.ndarray
) -> np.ndarray:
    """Return the map from pixels to texels: (u, v) from a window's middle lies at origin + u·axis0 + v·axis1."""
    return np.linalg.inv(intrinsics(focal, centre) @ np.stack([axis0, axis1, origin], axis=2))


def draw_motion(
    rng: np.random.Generator,
    size: tuple[int, int],
    kinds: Kinds,
    streets: Streets,
    centre: np.ndarray,
    support: np.ndarray,
    settings: SynthesisSettings,
) -> np.ndarray:
    """Draw (n, K + 1, 3, 3): the camera moves the background, and every layer moves with it and by itself."""
    count, slots = centre.shape[:2]
    largest = settings.max_displacement
    camera = np.repeat(_camera(rng, size, kinds, largest)[:, None], slots + 1, axis=1)
    strength = np.ones((count, 1))
    strength[kinds.small] = 0.15
    strength = strength * rng.choice([0.05, 1.0], (count, slots), p=[0.3, 0.7])
    if len(kinds.driving):
        camera[kinds.driving] = _drive(rng, size, streets, support[kinds.driving, -PLANES:], slots, largest)
        strength[kinds.driving] *= 0.3
        strength[kinds.driving, -PLANES:] = 0
    shift = directed(rng, strength * heavy(rng, 0.08 * largest, (count, slots)))
    matrix = linear(
        strength * rng.normal(0, 0.12, (count, slots)),
        np.exp(strength * rng.normal(0, 0.08, (count, slots))),
        np.exp(strength * rng.normal(0, 0.04, (count, slots))),
        rng.uniform(0, np.pi, (count, slots)),
    )
    layers = limit(camera[:, :slots] @ affine(matrix, centre, centre + shift), support, largest)
    return np.concatenate([layers, limit(camera[:, slots:], _frame_points(size), largest)], axis=1)


def _camera(rng: np.random.Generator, size: tuple[int, int], kinds: Kinds, largest: float) -> np.ndarray:
    """Draw (n, 3, 3): shift, turn, zoom and tilt."""
    count = kinds.count
    strength = np.ones(count)
    strength[kinds.small], strength[kinds.still] = 0.15, 0.02
    factors = np.repeat(strength[:, None], 4, axis=1)
    factors[kinds.viewpoint], factors[kinds.wide] = 4, _WIDE
    turn, zoom, stretch, tilting = factors.T
    extent = np.array(size[::-1])
    middle = (extent - 1) / 2
    pivot = middle + rng.normal(0, 0.25, (count, 2)) * extent
    shift = directed(rng, strength * heavy(rng, 0.07 * largest, (count,)))
    matrix = linear(
        turn * rng.normal(0, 0.05, count),
        np.exp(zoom * rng.normal(0, 0.06, count)),
        np.exp(stretch * rng.normal(0, 0.02, count)),
        rng.uniform(0, np.pi, count),
    )
    tilt = tilting[:, None] * rng.normal(0, 0.03, (count, 2))
    tilt[kinds.wide] = tilt[kinds.wide].clip(-_MAX_TILT, _MAX_TILT)
    tilt = tilt / extent.max()
    perspective = np.tile(np.eye(3), (count, 1, 1))
    perspective[:, 2, :2], perspective[:, 2, 2] = tilt, 1 - tilt @ middle
    return affine(matrix, pivot, pivot + shift) @ perspective


def _drive(
    rng: np.random.Generator, size: tuple[int, int], streets: Streets, support: np.ndarray, slots: int, largest: float
) -> np.ndarray:
    """Draw (m, K + 1, 3, 3): the camera moves forward, sometimes back; front layers are nearer."""
    count = len(streets.focal)
    turn = rng.normal(0, 1, (count, 3)) * np.array([0.003, 0.012, 0.003])
    speed = rng.uniform(0.03, 0.55, count) * np.where(rng.uniform(size=count) < 0.85, -1, 1)
    shift = np.stack([*(0.15 * speed * rng.normal(0, 1, (2, count))), speed], 1)
    depth = np.sort(rng.uniform(1.3, 5.0, (count, slots)), axis=1)
    normal = np.zeros((count, slots + 1, 3))
    normal[:, :slots, 2] = 1 / depth
    normal[:, slots - PLANES : slots] = streets.normal
    normal[:, slots, 2] = 1 / rng.uniform(4, 12, count)
    # One factor for the whole scene: pieces of the same ground must stay together.
    slowness = np.ones((count, 1))
    for _ in range(2):
        motion = planes(streets.focal, streets.centre, slowness * turn, slowness * shift, normal)
        farthest = np.where(streets.is_present, reach(motion[:, slots - PLANES : slots], support), 0).max(1)
        farthest = np.maximum(farthest, reach(motion[:, slots], _frame_points(size)))
        slowness = slowness * np.minimum(1, 0.98 * largest / np.maximum(farthest, 1e-9))[:, None]
    return planes(streets.focal, streets.centre, slowness * turn, slowness * shift, normal)


def _frame_points(size: tuple[int, int]) -> np.ndarray:
    rows, columns = np.meshgrid(np.linspace(0, size[0] - 1, 3), np.linspace(0, size[1] - 1, 3), indexing="ij")
    return np.stack([columns.ravel(), rows.ravel()], 1)
