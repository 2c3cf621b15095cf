"""From matches to refined dense flow, in one call."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from deepmatching.flow.confidence import confidence
from deepmatching.flow.interpolation import Interpolation, interpolate
from deepmatching.flow.presets import FlowSettings, preset
from deepmatching.flow.refinement import refine
from deepmatching.images import ImageLike, load_image


@dataclass(frozen=True, eq=False)
class DenseFlow:
    """A flow and how far to trust it.

    Attributes:
        flow: (H, W, 2) float32, the displacement (x, y) of every pixel of the first image, in pixels.
        confidence: (H, W) float32, the estimated probability that it is less than 3 pixels off.
        interpolation: the flow before refinement, and the matches it comes from.
    """

    flow: np.ndarray
    confidence: np.ndarray
    interpolation: Interpolation


def dense_flow(
    keypoints0: Any,
    keypoints1: Any,
    image0: ImageLike,
    image1: ImageLike,
    edges: Any,
    *,
    scores: Any = None,
    weights: Any = None,
    backward: tuple[Any, Any] | None = None,
    settings: str | FlowSettings = "default",
) -> DenseFlow:
    """Interpolate matches and refine the flow; see :func:`interpolate` and :func:`refine`."""
    chosen = preset(settings)
    first, second = load_image(image0, "image0").detach(), load_image(image1, "image1").detach()
    interpolation = interpolate(
        keypoints0, keypoints1, edges, first,
        scores=scores, weights=weights, backward=backward, settings=chosen.interpolation,
    )  # fmt: skip
    flow = refine(interpolation.flow, first, second, chosen.refinement)
    return DenseFlow(flow, confidence(flow, interpolation, first, second), interpolation)
