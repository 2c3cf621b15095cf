"""What a user can set of a matcher."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, get_args

import numpy as np
import torch

from deepmatching.defaults import Reciprocal
from deepmatching.errors import DeepMatchingError
from deepmatching.operators.kernels import has_kernels

Radius = int | Literal["full"]

#: Largest displacement in pixels, unless the user says otherwise.
RADIUS = 80


@dataclass(frozen=True)
class Settings:
    """What a user can set; each value is checked here, once.

    Attributes:
        radius: largest displacement along each axis in pixels, or ``"full"`` for no limit; None for 80 pixels, and for
            flow its own (``deepmatching.flow.pipeline.RADIUS``).
        levels: number of times that patches are aggregated, or None for the original's rule.
        downscale: a descriptor cell is 2^downscale pixels wide; None for the model's own (1 for ``hog``).
        reciprocal: how matches are verified, see ``deepmatching.operators.decoding``.
        device: ``"auto"`` (cuda, else mps, else cpu), ``"cpu"``, ``"cuda"``, ``"cuda:1"``, ``"mps"``.
        memory: bytes that matching may use; None for four fifths of what is free. If less is allowed than the work
            takes at once, it is cut into pieces, with the same matches.
        half: correlate and store scores in half precision (CUDA only): faster, and a few matches may differ.
        subpixel: refine matches between the cells of 2 pixels, if the model has learned to; ``hog`` has not.
    """

    radius: Radius | None = None
    levels: int | None = None
    downscale: int | None = None
    reciprocal: Reciprocal = "bins"
    device: str | torch.device = "auto"
    memory: int | None = None
    half: bool = False
    subpixel: bool = True

    def __post_init__(self) -> None:
        if self.radius is not None:
            check_radius(self.radius)
        if self.levels is not None and (not _is_whole(self.levels) or self.levels < 0):
            raise DeepMatchingError(f"levels must be a whole number, 0 or more, not {self.levels!r}.")
        if self.downscale is not None and not (_is_whole(self.downscale) and self.downscale in (0, 1, 2)):
            raise DeepMatchingError(f"downscale must be 0, 1 or 2, not {self.downscale!r}.")
        if self.reciprocal not in get_args(Reciprocal):
            raise DeepMatchingError(
                f"reciprocal must be {', '.join(get_args(Reciprocal)[:-1])} or {get_args(Reciprocal)[-1]}, "
                f"not {self.reciprocal!r}."
            )
        if self.memory is not None and (not _is_whole(self.memory) or self.memory <= 0):
            raise DeepMatchingError(f"memory must be a positive number of bytes, not {self.memory!r}.")
        if self.half and not (choose_device(self.device).type == "cuda" and has_kernels("cuda")):
            raise DeepMatchingError("Half precision needs a CUDA device and Triton: leave it off.")
        choose_device(self.device)


def check_radius(radius: Radius) -> int | None:
    """The radius as :class:`Network` takes it: None for ``"full"``."""
    if radius == "full":
        return None
    if not _is_whole(radius) or int(radius) <= 0:
        raise DeepMatchingError(f"The radius must be a positive number of pixels or 'full', not {radius!r}.")
    return int(radius)


def _is_whole(value: Any) -> bool:
    return isinstance(value, (int, np.integer)) and not isinstance(value, bool)


def choose_device(device: str | torch.device) -> torch.device:
    """The device of that name, checked to be there; ``auto`` prefers cuda, then mps."""
    if device == "auto":
        if torch.cuda.is_available():
            return torch.device("cuda")
        return torch.device("mps" if torch.backends.mps.is_available() else "cpu")
    try:
        chosen = torch.device(device)
    except (RuntimeError, TypeError):
        raise DeepMatchingError(f"Unknown device {str(device)!r}: use auto, cpu, cuda or mps.") from None
    there = {
        "cpu": True,
        "cuda": torch.cuda.is_available() and (chosen.index or 0) < torch.cuda.device_count(),
        "mps": torch.backends.mps.is_available(),
    }
    if not there.get(chosen.type, False):
        raise DeepMatchingError(f"There is no usable device '{chosen}' on this machine: use --device auto or cpu.")
    return chosen
