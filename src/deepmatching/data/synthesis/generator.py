"""Batches of synthetic pairs."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from deepmatching.data.datasets.pairs import Pair
from deepmatching.data.synthesis.developing import develop
from deepmatching.data.synthesis.layers import render
from deepmatching.data.synthesis.photometry import draw_differences, draw_photometry
from deepmatching.data.synthesis.photos import Photos
from deepmatching.data.synthesis.scene import draw_scene
from deepmatching.data.synthesis.settings import SynthesisSettings
from deepmatching.data.synthesis.transfer import to_device
from deepmatching.errors import DeepMatchingError

#: Shortest side of a frame.
_MIN_SIDE = 16

#: Largest motion in units of the frame's longer side; the background must be that large in memory.
_MAX_MOTION = 5


class Synthesizer:
    """Makes pairs of frames of ``size`` (rows, columns) from ``photos``, on the device of the photos."""

    def __init__(
        self, photos: Photos, size: tuple[int, int] = (256, 320), settings: SynthesisSettings | None = None
    ) -> None:
        self.photos = photos
        self.size = (int(size[0]), int(size[1]))
        self.settings = settings or SynthesisSettings()
        check_size(self.size, self.settings)

    @torch.no_grad()
    def batch(self, count: int, generator: torch.Generator) -> Pair:
        """Make `count` pairs; the same state of `generator` (on the CPU) gives the same pairs."""
        if generator.device.type != "cpu":
            raise DeepMatchingError("Synthetic scenes need a generator on the CPU; pass torch.Generator().")
        device = self.photos.device
        seeds = torch.randint(2**62, (2,), generator=generator).tolist()
        rng = np.random.default_rng(seeds[0])
        # Drawn from a stream of their own: pairs without such effects do not depend on them.
        differences = draw_differences(np.random.default_rng((seeds[0], 1)), count, self.settings)
        scene = draw_scene(rng, self.photos, self.size, count, self.settings, differences.wide)
        photometry = draw_photometry(rng, count, self.settings)
        moved: tuple[Any, Any, Any] = to_device((scene, photometry, differences), device)
        noise = torch.Generator(device).manual_seed(seeds[1])
        with torch.autocast(device.type, enabled=False):
            rendering = render(moved[0], self.photos.texels, self.size)
            frames = develop(rendering, *moved, noise)
        frames = frames.view(rendering.frames.shape)
        return Pair(frames[:, 0], frames[:, 1], rendering.flow, rendering.occluded)


def check_size(size: tuple[int, int], settings: SynthesisSettings) -> None:
    """Raise if frames (rows, columns) are too small for a scene, or motions far too large for the frames."""
    if min(size) < _MIN_SIDE:
        raise DeepMatchingError(
            f"Synthetic frames of {size[1]} x {size[0]} pixels are too small; each side needs at least {_MIN_SIDE}."
        )
    farthest = _MAX_MOTION * max(size)
    if settings.max_displacement > farthest:
        raise DeepMatchingError(
            f"A displacement of up to {settings.max_displacement:g} pixels is far beyond frames of "
            f"{size[1]} x {size[0]}; set max_displacement to {farthest} or less."
        )
