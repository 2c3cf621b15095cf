"""From matches to dense optical flow: edge-preserving interpolation and variational refinement."""

from deepmatching.flow.between import picture_between
from deepmatching.flow.confidence import confidence
from deepmatching.flow.edges import EdgesLike, is_edge_map
from deepmatching.flow.interpolation import Interpolation, interpolate
from deepmatching.flow.matching import Frame, Matching
from deepmatching.flow.pipeline import count_outside, flow_between, matches_to_flow, searched_to_flow
from deepmatching.flow.points import PointMatches
from deepmatching.flow.refinement import refine
from deepmatching.flow.result import FlowResult
from deepmatching.flow.settings import (
    PRESETS,
    FlowSettings,
    InterpolationSettings,
    RefinementSettings,
    adapt_to_model,
    describe_preset,
    preset,
)
from deepmatching.flow.warped_images import is_upright

__all__ = [
    "PRESETS",
    "EdgesLike",
    "FlowResult",
    "FlowSettings",
    "Frame",
    "Interpolation",
    "InterpolationSettings",
    "Matching",
    "PointMatches",
    "RefinementSettings",
    "adapt_to_model",
    "confidence",
    "count_outside",
    "describe_preset",
    "flow_between",
    "interpolate",
    "is_edge_map",
    "is_upright",
    "matches_to_flow",
    "picture_between",
    "preset",
    "refine",
    "searched_to_flow",
]
