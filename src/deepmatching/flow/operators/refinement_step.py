"""One step of variational refinement (see ``deepmatching.flow.refinement``)."""

from __future__ import annotations

import torch
from torch import Tensor

from deepmatching.flow.operators.linear_system import data_term, smoothness_weights
from deepmatching.flow.operators.relaxation import relax
from deepmatching.flow.operators.warping import warp
from deepmatching.kernels.registry import operator


@operator()
@torch.no_grad()
def refinement_step(
    flow: Tensor,
    start: Tensor,
    image0: Tensor,
    image1: Tensor,
    smoothness: Tensor,
    gamma: float,
    hold: float,
    iterations: int,
    omega: float,
) -> None:
    """Warp the second image, linearise the constraints, relax the linear system, and add the increments to the flow.

    Args:
        flow: (2, H, W), changed in place.
        start: (2, H, W), the flow before the first step.
        image0, image1: (C, H, W), (C, H', W'), smoothed, in 0 … 255.
        smoothness: (H, W), α λ.
        gamma: weight of constant gradients.
        hold: how strongly pixels that leave the second image are held at ``start``.
        iterations, omega: of successive over-relaxation.
    """
    mean, difference, inside = warp(image0, image1, flow)
    across, along = smoothness_weights(flow, smoothness)
    matrix, right = data_term(mean, difference, inside, gamma)
    pull = hold * (1 - inside)
    matrix[::2] += pull
    right += pull * (start - flow)
    flow += relax(matrix, right, across, along, flow, iterations, omega)
