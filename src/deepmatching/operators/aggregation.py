"""Aggregation (AG) of four patches into one of twice their side, eq. (4) of the paper without its power."""

from __future__ import annotations

import torch
from torch import Tensor

from deepmatching.operators.kernels import kernel
from deepmatching.operators.shifted_max import ALL, View, overlap


def aggregation_views(
    parents: tuple[int, int],
    children: tuple[int, int],
    window: tuple[int, int],
    links: list[tuple[int, int, int, int]],
) -> list[View]:
    """Views from S_{l+1/2} (``children`` points, ``window`` cells) to S_{l+1} (``parents`` points), one per link."""
    views = []
    for code, shifts in enumerate(links):
        axes = [
            overlap(shift, outputs, sources)
            for shift, outputs, sources in zip(shifts, (*parents, *window), (*children, *window), strict=True)
        ]
        if all(axes):
            out, source = zip(*(axis for axis in axes if axis), strict=True)
            views.append(View(code, (ALL, *out), (ALL, *source)))
    return views


def aggregation(
    scores: Tensor,
    grid: tuple[int, int],
    links: list[tuple[int, int, int, int]],
    children: tuple[Tensor, Tensor],
) -> Tensor:
    """S_{l+1}(q|p)^{1/ν} = mean over the existing children i of S_{l+1/2}(q + 2^l δ_i | p + 2^l δ_i).

    A child that is not on the grid of reference points is missing and is left out of the mean (the paper's 1/4
    holds inside the image). On the absolute lattice, a child's cell that is off the target map counts 0.
    A point without any child scores 0.

    Args:
        scores: S_{l+1/2}, (B, H_l, W_l, h, w).
        grid: (H_{l+1}, W_{l+1}).
        links: the four links down to the children, ``Geometry.links(l)``.
        children: number of existing children along rows (H_{l+1},) and columns (W_{l+1},).

    Returns:
        (B, H_{l+1}, W_{l+1}, h, w).
    """
    if scores.is_cuda and (fast := kernel("differentiable_aggregation", scores)):
        return fast(scores, grid, links)
    window = (scores.shape[-2], scores.shape[-1])
    total = scores.new_zeros(scores.shape[0], *grid, *window)
    for _, parent, child in aggregation_views(grid, (scores.shape[1], scores.shape[2]), window, links):
        total[parent] += scores[child]
    count = torch.outer(*children).clamp(min=1).to(total)
    return total.div_(count[:, :, None, None])
