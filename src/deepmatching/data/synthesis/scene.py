"""The contents and the motion of scenes, drawn for a whole batch on the CPU: a few kilobytes of numbers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Generic, TypeVar

import numpy as np

from deepmatching.data.synthesis import camera, motions, placing
from deepmatching.data.synthesis.motions import Waves
from deepmatching.data.synthesis.photos import Photos
from deepmatching.data.synthesis.placing import Windows
from deepmatching.data.synthesis.settings import SynthesisSettings
from deepmatching.data.synthesis.transfer import Numbers

Group = TypeVar("Group", Windows[np.ndarray], Waves[np.ndarray])


@dataclass
class Scene(Generic[Numbers]):
    """K layers, front to back, of n scenes, in front of n backgrounds, which count as layer K.

    A layer is a texture and a mask in a square window of texels. Its placement maps frame 0 to the window, and its
    motion maps frame 0 to frame 1. Coordinates in the window are such that its corner texels are at ±1.
    """

    background: Windows[Numbers]  #: (n,)
    layers: Windows[Numbers]  #: (2, K, n): textures, and masks, which multiply the opacity of the textures
    lookup: Numbers  #: (K + 1, n, 2, 3, 3): from a pixel of either frame to the window, without bending
    motion: Numbers  #: (K + 1, n, 3, 3): from a point of frame 0, after bending, to frame 1
    inverse: Numbers  #: of `motion`
    waves: Waves[Numbers]  #: (K + 1, n, …)
    plain: Numbers  #: (K + 1, n), how much of the detail is missing, from 0 to 1; (0, n) if nothing is plain
    bent: Numbers  #: (m,) indices of the (K + 1) · n layers with nonzero waves
    tile: int  #: side of the layers' windows, in texels
    background_tile: int


def draw_scene(
    rng: np.random.Generator,
    photos: Photos,
    size: tuple[int, int],
    count: int,
    settings: SynthesisSettings,
    wide: np.ndarray | None = None,
) -> Scene[np.ndarray]:
    """Draw `count` scenes for frames of `size` (rows, columns); those with an index in `wide` have a wide baseline."""
    kinds = camera.draw_kinds(rng, count, settings, np.zeros(0, np.int64) if wide is None else wide)
    layers = rng.integers(settings.min_layers, settings.max_layers + 1, count)
    tile, far_tile = placing.layer_tile(size), placing.background_tile(size, settings)
    street = camera.draw_streets(rng, size, kinds.driving, tile)
    slots = int(max(1, layers.max(), (layers[kinds.driving] + camera.PLANES).max(initial=0)))

    background, far_placement = placing.draw_background(rng, photos, size, count, settings)
    objects = placing.draw_layers(rng, photos, size, (count, slots), settings)
    objects.is_present[...] = np.arange(slots) < layers[:, None]
    placing.lay_planes(rng, photos, objects, kinds.driving, street)
    placing.hide(photos, objects.masks, ~objects.is_present)

    support = placing.support(objects, size)
    motion = camera.draw_motion(rng, size, kinds, street, objects.centre, support, settings)
    waves = _draw_bending(rng, size, objects.extent, settings)
    waves.amplitude[kinds.small] *= 0.3
    waves.amplitude[kinds.driving, -camera.PLANES - 1 :] = 0  # streets are flat
    waves.amplitude[:, :slots][~objects.is_present] = 0

    plain = np.zeros((0, count))
    if settings.plain:
        is_plain = rng.uniform(size=(slots + 1, count)) < settings.plain
        plain = is_plain * rng.uniform(0.85, 1, is_plain.shape)

    inverse = np.linalg.inv(motion)
    lookup = np.concatenate(
        [placing.to_window(tile) @ objects.placement, placing.to_window(far_tile) @ far_placement[:, None]], axis=1
    )
    lookup = np.stack([lookup, lookup @ inverse], axis=2)
    return Scene(
        background,
        _stacked(_layer_first(objects.textures), _layer_first(objects.masks)),
        lookup.swapaxes(0, 1),
        motion.swapaxes(0, 1),
        inverse.swapaxes(0, 1),
        _layer_first(waves),
        plain,
        np.flatnonzero(waves.amplitude.any(axis=(2, 3)).T),
        tile,
        far_tile,
    )


def _layer_first(values: Group) -> Group:
    """Return the same dataclass with arrays (K, n, …) instead of (n, K, …)."""
    return type(values)(*(array.swapaxes(0, 1) for array in vars(values).values()))


def _stacked(textures: Windows[np.ndarray], masks: Windows[np.ndarray]) -> Windows[np.ndarray]:
    return Windows(*(np.stack(arrays) for arrays in zip(vars(textures).values(), vars(masks).values(), strict=True)))


def _draw_bending(
    rng: np.random.Generator, size: tuple[int, int], extent: np.ndarray, settings: SynthesisSettings
) -> Waves[np.ndarray]:
    """Draw waves: some layers and backgrounds bend, by waves of about their own size."""
    count, slots = extent.shape
    extent = np.concatenate([extent, np.full((count, 1), 0.6 * max(size))], axis=1)
    bends = rng.uniform(size=extent.shape) < settings.nonrigid
    height = bends * rng.uniform(0.1, 1, extent.shape) ** 2 * settings.bending
    return motions.draw_waves(rng, (count, slots + 1), extent, height)
