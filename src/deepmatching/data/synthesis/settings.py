"""Settings of the generator: the probability and the strength of every effect."""

from dataclasses import dataclass, fields
from typing import Any

from deepmatching.errors import DeepMatchingError, check_number


@dataclass(frozen=True)
class SynthesisSettings:
    """Probabilities and fractions are in [0, 1]; strengths are the largest values drawn; lengths are in pixels."""

    # Scene
    max_displacement: float = 80.0  #: largest |x| and |y| of the motion, approximately
    min_layers: int = 1  #: objects in front of the background
    max_layers: int = 10
    cutouts: float = 0.5  #: fraction of layers that are cut-outs; the others are pieces of photographs
    soft: float = 0.1  #: fraction of layers and backgrounds that are out of focus
    plain: float = 0.0  #: fraction of layers and backgrounds that are nearly featureless, as sky and walls are
    # Motion: fractions of the kinds of scenes; the remainder moves as in Flying Chairs
    small: float = 0.15  #: all displacements are a few pixels
    still: float = 0.12  #: the background does not move
    driving: float = 0.3  #: the camera moves forward
    viewpoint: float = 0.12  #: strong zoom, rotation and perspective
    nonrigid: float = 0.35  #: fraction of layers that bend
    bending: float = 6.0  #: by this many pixels
    # Light, the same in both frames
    grey: float = 0.25
    colour: float = 0.8  #: changed brightness, contrast, gamma, saturation and white balance
    # Light, different between the frames
    change: float = 0.35  #: brightness and colour differ between the frames
    lighting: float = 0.25  #: smooth light and shade that do not move with the objects
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
    # Two photographs of a place, taken at other times by other cameras
    photographs: float = 0.0  #: fraction of pairs; those below are fractions of these pairs
    wide: float = 0.6  #: wide baselines: rotation, zoom and perspective, all strong
    relit: float = 0.6  #: frames in a light of their own: exposure, colour temperature, sun, shadow, haze, night
    sensor: float = 0.4  #: frames with inverted, non-linear or mixed colours, which may differ between layers
    styled: float = 0.25  #: frames reduced to their local contrast, flat areas or edges
    grain: float = 0.25  #: frames with strong noise and speckle

    def __post_init__(self) -> None:
        check_number("The setting 'max_displacement'", self.max_displacement, above=0)
        for name, value in vars(self).items():
            is_count, largest = name in ("min_layers", "max_layers"), None if name in _STRENGTHS else 1
            check_number(f"The setting '{name}'", value, minimum=0, maximum=largest, whole=is_count)
        if self.min_layers > self.max_layers:
            raise DeepMatchingError("The setting 'min_layers' must not be larger than 'max_layers'.")
        if self.small + self.still + self.driving + self.viewpoint > 1:
            raise DeepMatchingError("The sum of 'small', 'still', 'driving' and 'viewpoint' must not exceed 1.")


_STRENGTHS = ("max_displacement", "min_layers", "max_layers", "bending", "max_blur", "max_noise")
_FRACTIONS: dict[str, Any] = {field.name: 0.0 for field in fields(SynthesisSettings) if field.name not in _STRENGTHS}
#: ``chairs``: affine motions of cut-outs and background in constant light, as in Flying Chairs.
PRESETS = {"default": SynthesisSettings(), "chairs": SynthesisSettings(**{**_FRACTIONS, "cutouts": 1.0})}
