"""Motion of the camera and the objects: the kinds of scenes, and streets seen from a car."""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import numpy as np

from deepmatching.data.synthesis import motions
from deepmatching.data.synthesis.settings import SynthesisSettings

PLANES = 4  # of a street, front to back: left wall, right wall, near ground, far ground
_WIDE = (8, 7, 12, 9)  # factors of turn, zoom, stretch and tilt for a wide baseline
_MAX_TILT = 0.7  # largest change of a plane's depth over the frame, for a wide baseline


@dataclass
class Kinds:
    """Indices of the pairs of each kind."""

    small: np.ndarray
    still: np.ndarray
    driving: np.ndarray
    viewpoint: np.ndarray
    wide: np.ndarray
    count: int


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
    small, still, driving, viewpoint = (
        np.flatnonzero((kind >= low) & (kind < high)) for low, high in itertools.pairwise(edges)
    )
    return Kinds(small, still, driving, viewpoint, wide, count)


def draw_streets(rng: np.random.Generator, size: tuple[int, int], scenes: np.ndarray, tile: int) -> Streets:
    """A ground below the camera, in two pieces, and a wall on each side; each may be missing."""
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
    """From pixels to texels: (u, v) from the window's middle lies at origin + u·axis0 + v·axis1 in space."""
    camera = motions.intrinsics(focal, centre)
    return np.linalg.inv(camera @ np.stack([axis0, axis1, origin], axis=2))


def draw_motion(
    rng: np.random.Generator,
    size: tuple[int, int],
    kinds: Kinds,
    streets: Streets,
    centre: np.ndarray,
    support: np.ndarray,
    settings: SynthesisSettings,
) -> np.ndarray:
    """(n, K + 1, 3, 3): the camera moves the background, and every layer moves with it and by itself."""
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
    shift = motions.directed(rng, strength * motions.heavy(rng, 0.08 * largest, (count, slots)))
    matrix = motions.linear(
        strength * rng.normal(0, 0.12, (count, slots)),
        np.exp(strength * rng.normal(0, 0.08, (count, slots))),
        np.exp(strength * rng.normal(0, 0.04, (count, slots))),
        rng.uniform(0, np.pi, (count, slots)),
    )
    own = motions.affine(matrix, centre, centre + shift)
    layers = motions.limit(camera[:, :slots] @ own, support, largest)
    return np.concatenate([layers, motions.limit(camera[:, slots:], _frame_points(size), largest)], axis=1)


def _camera(rng: np.random.Generator, size: tuple[int, int], kinds: Kinds, largest: float) -> np.ndarray:
    """(n, 3, 3): shift, turn, zoom and tilt."""
    count = kinds.count
    strength = np.ones(count)
    strength[kinds.small], strength[kinds.still] = 0.15, 0.02
    factors = np.repeat(strength[:, None], 4, axis=1)
    factors[kinds.viewpoint], factors[kinds.wide] = 4, _WIDE
    turn, zoom, stretch, tilting = factors.T
    extent = np.array(size[::-1])
    middle = (extent - 1) / 2
    pivot = middle + rng.normal(0, 0.25, (count, 2)) * extent
    shift = motions.directed(rng, strength * motions.heavy(rng, 0.07 * largest, (count,)))
    matrix = motions.linear(
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
    return motions.affine(matrix, pivot, pivot + shift) @ perspective


def _drive(
    rng: np.random.Generator, size: tuple[int, int], streets: Streets, support: np.ndarray, slots: int, largest: float
) -> np.ndarray:
    """(m, K + 1, 3, 3): the camera moves forward, sometimes back; front layers are nearer."""
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
        motion = motions.planes(streets.focal, streets.centre, slowness * turn, slowness * shift, normal)
        reach = np.where(streets.is_present, motions.reach(motion[:, slots - PLANES : slots], support), 0).max(1)
        reach = np.maximum(reach, motions.reach(motion[:, slots], _frame_points(size)))
        slowness = slowness * np.minimum(1, 0.98 * largest / np.maximum(reach, 1e-9))[:, None]
    return motions.planes(streets.focal, streets.centre, slowness * turn, slowness * shift, normal)


def _frame_points(size: tuple[int, int]) -> np.ndarray:
    rows, columns = np.meshgrid(np.linspace(0, size[0] - 1, 3), np.linspace(0, size[1] - 1, 3), indexing="ij")
    return np.stack([columns.ravel(), rows.ravel()], 1)
