"""The settings of a matcher."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

import torch

from deepmatching.checks import check_choice, check_number, radius_in_pixels
from deepmatching.defaults import MOST_BYTES, RECIPROCAL, Pooling, Reciprocal
from deepmatching.errors import DeepMatchingError
from deepmatching.inference import Decoding
from deepmatching.operators.kernels import has_kernels

Radius = int | Literal["full"]


@dataclass(frozen=True)
class Settings:
    """What a user can set. Every value is checked here, once.

    Attributes:
        radius: largest displacement along each axis in pixels, or ``"full"`` for no limit. None for the default:
            ``deepmatching.defaults.RADIUS``, and ``FLOW_RADIUS`` for flow.
        levels: number of times that patches are aggregated, or None for the original's rule.
        downscale: a descriptor cell is 2^downscale pixels wide. None for the model's own value (1 for ``hog``).
        reciprocal: how matches are verified, see ``deepmatching.operators.decoding``.
        device: ``"auto"`` (cuda, else mps, else cpu), ``"cpu"``, ``"cuda"``, ``"cuda:1"``, ``"mps"``.
        memory: bytes that matching may use, with its images and the libraries that it loads. None for four fifths of
            the free memory. With less than one pass needs, the scores are computed in pieces and the matches are the
            same. Images and descriptors are not cut; what does not fit even so is refused.
        half: correlate and store scores in half precision (CUDA only). Faster; a few matches may differ.
        subpixel: move matches between the cells of 2 pixels, if the model has learned to (``hog`` has not).
        max_size: images whose longer side exceeds this many pixels are matched at a reduced size. Matches and flow are
            those of the original size all the same, but coarser. None for no limit.
        bit_depth: bits in use of 16-bit images, such as 12; None for all 16.
        pooling: ``"hard"``, or ``"soft"``, which is slower and needs several times the memory (docs/soft_pooling.md).
            None for the way in which the model was trained: hard for the models of the package.
    """

    radius: Radius | None = None
    levels: int | None = None
    downscale: int | None = None
    reciprocal: Reciprocal = RECIPROCAL
    device: str | torch.device = "auto"
    memory: int | None = None
    half: bool = False
    subpixel: bool = True
    max_size: int | None = None
    bit_depth: int | None = None
    pooling: Pooling | None = None

    def __post_init__(self) -> None:
        if self.radius is not None:
            radius_in_pixels(self.radius)
        if self.levels is not None:
            check_number("levels", self.levels, least=0, whole=True)
        if self.downscale is not None:
            check_number("downscale", self.downscale, least=0, most=2, whole=True)
        check_choice("reciprocal", self.reciprocal, get_args(Reciprocal))
        if self.memory is not None:
            check_number("memory, in bytes,", self.memory, least=1, most=MOST_BYTES, whole=True)
        if self.max_size is not None:
            check_number("max_size", self.max_size, least=16, whole=True)
        if self.bit_depth is not None:
            check_number("bit_depth", self.bit_depth, least=8, most=16, whole=True)
        if self.pooling is not None:
            check_choice("pooling", self.pooling, get_args(Pooling))
        device = choose_device(self.device)
        if self.half and not (device.type == "cuda" and has_kernels("cuda")):
            raise DeepMatchingError("Half precision needs a CUDA device and Triton: leave it off.")

    @property
    def decoding(self) -> Decoding:
        """The options of inference among these settings."""
        return Decoding(self.reciprocal, self.half, self.subpixel)


def choose_device(device: str | torch.device) -> torch.device:
    """The device of that name, checked to be present; ``auto`` prefers cuda, then mps."""
    if device == "auto":
        if torch.cuda.is_available():
            return torch.device("cuda")
        return torch.device("mps" if torch.backends.mps.is_available() else "cpu")
    try:
        chosen = torch.device(device)
    except (RuntimeError, TypeError):
        raise DeepMatchingError(f"Unknown device {str(device)!r}: use auto, cpu, cuda or mps.") from None
    is_present = {
        "cpu": True,
        "cuda": torch.cuda.is_available() and (chosen.index or 0) < torch.cuda.device_count(),
        "mps": torch.backends.mps.is_available(),
    }
    if not is_present.get(chosen.type, False):
        raise DeepMatchingError(f"There is no usable device '{chosen}' on this machine: use --device auto or cpu.")
    return chosen
