"""From matches to dense optical flow: edge-preserving interpolation and variational refinement."""

from deepmatching.flow.affine import affine_fit
from deepmatching.flow.confidence import confidence
from deepmatching.flow.interpolation import Interpolation, interpolate, starts_inside
from deepmatching.flow.presets import PRESETS, FlowSettings, InterpolationSettings, RefinementSettings, preset
from deepmatching.flow.refinement import refine

__all__ = [
    "PRESETS",
    "FlowSettings",
    "Interpolation",
    "InterpolationSettings",
    "RefinementSettings",
    "affine_fit",
    "confidence",
    "interpolate",
    "preset",
    "refine",
    "starts_inside",
]
