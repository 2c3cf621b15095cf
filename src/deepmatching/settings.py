"""The settings of a matcher."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, Literal, get_args

import torch

from deepmatching.checks import check_choice, check_number, radius_in_pixels, rotations_in_degrees, scales_to_try
from deepmatching.defaults import MOST_BYTES, RECIPROCAL, ROTATIONS, SCALES, Pooling, Reciprocal
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
        levels: number of times that patches are aggregated, or None for the original's rule, which flow may limit.
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
        search: try rotations and scales of the second image, at a reduced size first, see ``deepmatching.search``.
        rotations: those to try: degrees, or a number of evenly spaced ones. None for
            ``deepmatching.defaults.ROTATIONS`` with ``search``, else for 0.
        scales: zooms of the second image to try. None for ``deepmatching.defaults.SCALES`` with ``search``, else for 1.
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
    search: bool = False
    rotations: int | Sequence[float] | None = None
    scales: Sequence[float] | None = None

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
        if self.rotations is not None:
            rotations_in_degrees(self.rotations)
        if self.scales is not None:
            scales_to_try(self.scales)
        device = choose_device(self.device)
        if self.half and not (device.type == "cuda" and has_kernels("cuda")):
            raise DeepMatchingError("Half precision needs a CUDA device and Triton: leave it off.")

    @classmethod
    def of(cls, **settings: Any) -> Settings:
        """These settings; raises if there is none of such a name."""
        known = [field.name for field in fields(cls)]
        for name in settings:
            if name not in known:
                raise DeepMatchingError(f"There is no setting '{name}': use {', '.join(known)}.")
        return cls(**settings)

    @property
    def searches(self) -> bool:
        """Whether rotations and scales are tried."""
        return self.search or self.rotations is not None or self.scales is not None

    def without_search(self) -> Settings:
        """The same settings for plain matching."""
        return replace(self, search=False, rotations=None, scales=None)

    def describe(self) -> dict[str, Any]:
        """The settings that results depend on, as JSON can hold them."""
        left_out = ["device", "memory"]
        if not self.searches:  # older runs, which do not name them, can be continued
            left_out += ["search", "rotations", "scales"]
        if not self.pooling:
            left_out.append("pooling")
        values = {field.name: getattr(self, field.name) for field in fields(self) if field.name not in left_out}
        return {name: list(value) if isinstance(value, tuple) else value for name, value in values.items()}

    @property
    def transformations(self) -> list[tuple[float, float]]:
        """The rotations, in degrees, and zooms that are searched: only (0, 1) without a search."""
        if self.search and self.rotations is None and self.scales is None:
            return default_transformations()
        rotations = rotations_in_degrees(
            (ROTATIONS if self.search else 1) if self.rotations is None else self.rotations
        )
        scales = scales_to_try((SCALES if self.search else (1,)) if self.scales is None else self.scales)
        return [(rotation, scale) for scale in scales for rotation in rotations]

    @property
    def decoding(self) -> Decoding:
        """The options of inference among these settings."""
        return Decoding(self.reciprocal, self.half, self.subpixel)


def default_transformations() -> list[tuple[float, float]]:
    """The rotations and zooms of a search in which nothing else is said; every second zoom turned by half a step."""
    rotations, step = rotations_in_degrees(ROTATIONS), 180.0 / ROTATIONS
    middle = SCALES.index(1.0)
    return [(r + step * ((n - middle) % 2), scale) for n, scale in enumerate(SCALES) for r in rotations]


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
