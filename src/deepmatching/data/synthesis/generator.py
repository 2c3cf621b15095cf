"""Batches of synthetic pairs."""

from collections.abc import Callable, Iterator
from dataclasses import fields, is_dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from deepmatching.data.datasets.pairs import Pair
from deepmatching.data.synthesis.effects import develop, draw_differences, draw_photometry
from deepmatching.data.synthesis.layers import render
from deepmatching.data.synthesis.photos import Photos
from deepmatching.data.synthesis.scene import draw_scene
from deepmatching.data.synthesis.settings import SynthesisSettings
from deepmatching.errors import DeepMatchingError

_MIN_SIDE = 16  #: shortest side of a frame
_MAX_MOTION = 5  #: largest motion in units of the frame's longer side; the background must be that large in memory


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
    frames, largest = f"frames of {size[1]} x {size[0]}", settings.max_displacement
    if min(size) < _MIN_SIDE:
        raise DeepMatchingError(f"Synthetic {frames} pixels are too small; each side needs at least {_MIN_SIDE}.")
    if largest > (farthest := _MAX_MOTION * max(size)):
        advice = f"set max_displacement to {farthest} or less"
        raise DeepMatchingError(f"A displacement of up to {largest:g} pixels is far beyond {frames}; {advice}.")


def to_device(values: Any, device: torch.device) -> Any:
    """Return the same structure of dataclasses and tuples with tensors for arrays: float32, or int64 for integers.

    All arrays travel in one copy from pinned memory, without waiting for the device.
    """
    arrays: list[np.ndarray] = []
    _map_arrays(values, arrays.append)
    moved: dict[str, Iterator[Tensor]] = {}
    for kind, dtype in (("f", np.float32), ("i", np.int64)):
        parts = [array.ravel() for array in arrays if _kind(array) == kind]
        flat = torch.from_numpy(np.concatenate([np.zeros(0), *parts]).astype(dtype) if parts else np.zeros(0, dtype))
        flat = flat.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else flat.to(device)
        moved[kind] = iter(flat.split([part.size for part in parts]))
    return _map_arrays(values, lambda array: next(moved[_kind(array)]).view(array.shape))


def _kind(array: np.ndarray) -> str:
    return "f" if array.dtype.kind == "f" else "i"


def _map_arrays(value: Any, function: Callable[[np.ndarray], Any]) -> Any:
    """Return the same structure with the function's results in place of the arrays."""
    if isinstance(value, np.ndarray):
        return function(value)
    if is_dataclass(value) and not isinstance(value, type):
        return type(value)(*(_map_arrays(getattr(value, field.name), function) for field in fields(value)))
    return tuple(_map_arrays(child, function) for child in value) if isinstance(value, tuple) else value
