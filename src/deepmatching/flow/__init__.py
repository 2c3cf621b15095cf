"""From matches to dense optical flow: edge-preserving interpolation and variational refinement."""

from deepmatching.flow.confidence import confidence
from deepmatching.flow.fields import on_device
from deepmatching.flow.interpolation import Interpolation, interpolate
from deepmatching.flow.pipeline import (
    EdgesLike,
    check_pair,
    count_outside,
    decoded_to_flow,
    frames_to_flow,
    is_edge_map,
    matches_to_flow,
    most_levels,
    needs_backward,
    searched_to_flow,
)
from deepmatching.flow.refinement import refine
from deepmatching.flow.result import FlowResult
from deepmatching.flow.settings import (
    PRESETS,
    FlowSettings,
    InterpolationSettings,
    RefinementSettings,
    describe_preset,
    preset,
    suited,
)
from deepmatching.flow.warped_images import is_upright

__all__ = [
    "PRESETS",
    "EdgesLike",
    "FlowResult",
    "FlowSettings",
    "Interpolation",
    "InterpolationSettings",
    "RefinementSettings",
    "check_pair",
    "confidence",
    "count_outside",
    "decoded_to_flow",
    "describe_preset",
    "frames_to_flow",
    "interpolate",
    "is_edge_map",
    "is_upright",
    "matches_to_flow",
    "most_levels",
    "needs_backward",
    "on_device",
    "preset",
    "refine",
    "searched_to_flow",
    "suited",
]
