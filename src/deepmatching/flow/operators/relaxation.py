"""Relaxation of the increments of a flow (see ``deepmatching.flow.refinement``)."""

from __future__ import annotations

import torch
from torch import Tensor


def relax(
    matrix: Tensor, right: Tensor, across: Tensor, along: Tensor, flow: Tensor, iterations: int, omega: float
) -> Tensor:
    """The increments d after some iterations of red-black successive over-relaxation from d = 0.

    Args:
        matrix, right: (3, H, W), (2, H, W), the data term.
        across, along: (H, W), weights between column x and x + 1, and between row y and y + 1.
        flow: (2, H, W).
        omega: ω, between 0 and 2.

    Returns:
        (2, H, W).
    """
    diagonal = _sum_over_neighbours(torch.ones_like(flow[:1]), across, along)[0]
    right = right + _sum_over_neighbours(flow, across, along) - diagonal * flow
    a11, a12, a22 = matrix[0] + diagonal, matrix[1], matrix[2] + diagonal
    determinant = a11 * a22 - a12 * a12
    inverse = torch.where(determinant > 0, 1 / determinant, 0)
    rows, columns = (torch.arange(n, device=flow.device) for n in flow.shape[1:])
    odd = ((rows[:, None] + columns) % 2).bool()
    found = torch.zeros_like(flow)
    for half in range(2 * iterations):
        sums = right + _sum_over_neighbours(found, across, along)
        solution = inverse * torch.stack([a22 * sums[0] - a12 * sums[1], a11 * sums[1] - a12 * sums[0]])
        updated = found + omega * (solution - found)
        found = torch.where(odd if half % 2 else ~odd, updated, found)
    return found


def _sum_over_neighbours(values: Tensor, across: Tensor, along: Tensor) -> Tensor:
    """Σ_n s_n values_n over the four neighbours of each pixel of (C, H, W)."""
    result = torch.zeros_like(values)
    result[:, :, :-1] += across[:, :-1] * values[:, :, 1:]
    result[:, :, 1:] += across[:, :-1] * values[:, :, :-1]
    result[:, :-1] += along[:-1] * values[:, 1:]
    result[:, 1:] += along[:-1] * values[:, :-1]
    return result
