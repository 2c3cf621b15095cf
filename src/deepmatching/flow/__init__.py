"""From matches to dense optical flow: edge-preserving interpolation and variational refinement."""

from deepmatching.flow.confidence import confidence
from deepmatching.flow.interpolation import Interpolation, interpolate, starts_inside
from deepmatching.flow.refinement import refine
from deepmatching.flow.settings import PRESETS, FlowSettings, InterpolationSettings, RefinementSettings, preset
from deepmatching.operators.affine import affine_fit

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
