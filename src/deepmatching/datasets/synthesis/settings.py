"""What scenes look like and how they move: every probability and strength of the generator."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Any

from deepmatching.errors import DeepMatchingError


@dataclass(frozen=True)
class SynthesisSettings:
    """Shares and probabilities are in [0, 1]; strengths are the largest values drawn; lengths are in pixels."""

    # Scene
    max_displacement: float = 80.0  #: largest |x| and |y| of the motion, up to the rounding of its model
    min_layers: int = 1  #: things in front of the background
    max_layers: int = 10
    cutouts: float = 0.5  #: share of the layers that are cut-outs; the others are pieces of photographs
    soft: float = 0.1  #: share of layers and backgrounds that are out of focus
    # Motion: the kinds of scenes; what is left over of 1 moves as in Flying Chairs
    small: float = 0.15  #: all displacements a few pixels
    still: float = 0.12  #: the background rests
    driving: float = 0.3  #: the camera moves forward
    viewpoint: float = 0.12  #: strong zoom, rotation and perspective
    nonrigid: float = 0.35  #: of the layers bend
    bending: float = 6.0  #: pixels by which they bend
    # Light, both frames alike
    grey: float = 0.25
    colour: float = 0.8  #: of the pairs change in brightness, contrast, gamma, saturation and white balance
    # Light, between the frames
    change: float = 0.35  #: of the pairs have frames of different brightness and colour
    lighting: float = 0.25  #: smooth light and shade that does not move with things
    shadow: float = 0.1  #: shadows with an outline
    fog: float = 0.1
    # Camera
    motion_blur: float = 0.2
    blur: float = 0.15
    max_blur: float = 1.2  #: standard deviation
    sharpen: float = 0.1
    noise: float = 0.4
    max_noise: float = 0.02  #: standard deviation, white being 1
    compression: float = 0.15

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if isinstance(value, bool) or not isinstance(value, int | float) or not value >= 0:
                raise DeepMatchingError(f"The setting '{field.name}' must be a number of at least 0, not {value!r}.")
            if field.name in _SHARES and value > 1:
                raise DeepMatchingError(f"The setting '{field.name}' is a share and must be at most 1, not {value}.")
        if not self.max_displacement > 0:
            raise DeepMatchingError("The setting 'max_displacement' must be above 0 pixels.")
        if self.min_layers > self.max_layers or self.min_layers != int(self.min_layers):
            raise DeepMatchingError("'min_layers' and 'max_layers' must be whole numbers, the first not the larger.")
        if self.small + self.still + self.driving + self.viewpoint > 1:
            raise DeepMatchingError("The shares 'small', 'still', 'driving' and 'viewpoint' must not exceed 1 in sum.")


_SHARES = (
    *("cutouts", "soft", "small", "still", "driving", "viewpoint", "nonrigid", "grey", "colour", "change", "lighting"),
    *("shadow", "fog", "motion_blur", "blur", "sharpen", "noise", "compression"),
)

#: ``chairs``: affine motions of cut-outs and background, unchanged light, as in Flying Chairs. ``default``: all of it.
PRESETS: dict[str, SynthesisSettings] = {
    "default": SynthesisSettings(),
    "chairs": replace(SynthesisSettings(), **dict[str, Any]({**dict.fromkeys(_SHARES, 0.0), "cutouts": 1.0})),
}
