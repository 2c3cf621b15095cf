"""Aggregation (AG), eq. (4), with its gradient: the kernels behind ``operators.aggregation``."""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.autograd.function import once_differentiable

from deepmatching.geometry.discretization import Links
from deepmatching.kernels.gpu.indexing import (
    cells_block,
    cells_of,
    on_device_of,
    powered,
    reference_point,
    row_and_column,
    volume_grid,
    warps,
)


def shifts_of(links: Links) -> tuple[int, int, int, int, int]:
    """Row shifts for ε = −1 and +1, column shifts for both, and the cell shift: the links are their combinations."""
    return links[0][0], links[3][0], links[0][1], links[3][1], links[3][2]


@triton.jit
def shifted(index, minus, plus, SIDE: tl.constexpr):
    """Index of the child on side 0 (ε = −1) or 1 (ε = +1) along an axis."""
    if SIDE == 0:
        return index + minus
    else:
        return index + plus


@triton.jit
def existing(index, points):
    """1 if the grid has such a point along an axis, else 0."""
    return tl.where((index >= 0) & (index < points), 1.0, 0.0)


@triton.jit
def nearest(index, points):
    """The nearest point of the grid: a missing point reads from it, with weight 0."""
    return tl.minimum(tl.maximum(index, 0), points - 1)


@triton.jit
def weight_of_child(index, minus, plus, children):
    """1 / (number of existing children along an axis), 1 without children."""
    return 1.0 / tl.maximum(existing(index + minus, children) + existing(index + plus, children), 1.0)


@triton.jit
def on_map(y, x, inside, h, w, SHIFTED: tl.constexpr):
    """Cells that a shift has left on the map; without a shift, all are."""
    if SHIFTED:
        return inside & (y >= 0) & (y < h) & (x >= 0) & (x < w)
    else:
        return inside


@triton.jit
def mean_of_children(
    scores, pair, i, j, y, x, inside, rows, columns, h, w, up, down, left, right, cell_shift, SHIFTED: tl.constexpr
):  # fmt: skip
    """Mean of S_{l+1/2} over the children of point (i, j) on a grid of rows × columns, summed in the links' order."""
    total = tl.zeros_like(y).to(tl.float32)
    whole = weight_of_child(i, up, down, rows) * weight_of_child(j, left, right, columns)
    for side_y in tl.static_range(2):
        child_i = shifted(i, up, down, side_y)
        cell_y = y + (2 * side_y - 1) * cell_shift
        for side_x in tl.static_range(2):
            child_j = shifted(j, left, right, side_x)
            cell_x = x + (2 * side_x - 1) * cell_shift
            source = cells_of(pair, nearest(child_i, rows), nearest(child_j, columns), rows, columns, h * w)
            on = on_map(cell_y, cell_x, inside, h, w, SHIFTED)
            # Weights are powers of two: the sum of the products is the mean to the last bit.
            weight = whole * existing(child_i, rows) * existing(child_j, columns)
            total += weight * tl.load(scores + source + (cell_y * w + cell_x), mask=on, other=0.0).to(tl.float32)
    return total


@triton.jit
def _aggregate(
    scores, out, exponent, rows_out, columns_out, rows, columns, h, w, up, down, left, right, cell_shift,
    SHIFTED: tl.constexpr, POWER: tl.constexpr, BLOCK: tl.constexpr
):  # fmt: skip
    pair, i, j = reference_point(rows_out, columns_out)
    cell = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = cell < h * w
    y, x = row_and_column(cell, w)
    mean = mean_of_children(
        scores, pair, i, j, y, x, inside, rows, columns, h, w, up, down, left, right, cell_shift, SHIFTED
    )
    if POWER:
        mean = powered(mean, exponent)
    tl.store(out + cells_of(pair, i, j, rows_out, columns_out, h * w) + cell, mean, mask=inside)


@triton.jit
def _aggregate_gradient(
    gradient, out, rows_up, columns_up, rows, columns, h, w, up, down, left, right, cell_shift,
    SHIFTED: tl.constexpr, BLOCK: tl.constexpr
):  # fmt: skip
    """∂S_{l+1/2} at a child: the sum over its parents of their gradient times the child's weight in the mean."""
    pair, i, j = reference_point(rows, columns)
    cell = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = cell < h * w
    y, x = row_and_column(cell, w)
    total = tl.zeros((BLOCK,), tl.float32)
    for side_y in tl.static_range(2):
        parent_i = shifted(i, -up, -down, side_y)
        cell_y = y - (2 * side_y - 1) * cell_shift
        weight_y = weight_of_child(parent_i, up, down, rows) * existing(parent_i, rows_up)
        for side_x in tl.static_range(2):
            parent_j = shifted(j, -left, -right, side_x)
            cell_x = x - (2 * side_x - 1) * cell_shift
            weight = weight_y * weight_of_child(parent_j, left, right, columns) * existing(parent_j, columns_up)
            source = cells_of(
                pair, nearest(parent_i, rows_up), nearest(parent_j, columns_up), rows_up, columns_up, h * w
            )
            on = on_map(cell_y, cell_x, inside, h, w, SHIFTED)
            total += weight * tl.load(gradient + source + (cell_y * w + cell_x), mask=on, other=0.0)
    tl.store(out + cells_of(pair, i, j, rows, columns, h * w) + cell, total, mask=inside)


@on_device_of
def aggregate_mean(scores: Tensor, grid: tuple[int, int], links: Links, exponent: float | None = None) -> Tensor:
    """As ``operators.aggregation`` without gradient, and with max(·, 0)^ν of the mean if ``exponent`` is given."""
    out = scores.new_empty((scores.shape[0], *grid, *scores.shape[-2:]))
    block = cells_block(scores.shape[-2] * scores.shape[-1])
    _aggregate[volume_grid(out)](
        scores, out, exponent or 1.0, *grid, *scores.shape[1:], *shifts_of(links),
        SHIFTED=shifts_of(links)[-1] != 0, POWER=exponent is not None, BLOCK=block, num_warps=warps(block),
    )  # fmt: skip
    return out


@on_device_of
def aggregate_gradient(gradient: Tensor, grid: tuple[int, int], links: Links) -> Tensor:
    """∂S_{l+1/2}, (B, *grid, h, w), from ∂ of the means, (B, H_{l+1}, W_{l+1}, h, w)."""
    out = gradient.new_empty((gradient.shape[0], *grid, *gradient.shape[-2:]))
    block = cells_block(out.shape[-2] * out.shape[-1])
    _aggregate_gradient[volume_grid(out)](
        gradient, out, *gradient.shape[1:3], *out.shape[1:], *shifts_of(links),
        SHIFTED=shifts_of(links)[-1] != 0, BLOCK=block, num_warps=warps(block),
    )  # fmt: skip
    return out


class Aggregation(torch.autograd.Function):
    """:func:`aggregation`."""

    @staticmethod
    def forward(ctx: Any, scores: Tensor, grid: tuple[int, int], links: Links) -> Tensor:
        ctx.grid, ctx.links = (scores.shape[1], scores.shape[2]), links
        return aggregate_mean(scores.contiguous(), grid, links)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        return aggregate_gradient(gradient.contiguous(), ctx.grid, ctx.links), None, None


def aggregation(scores: Tensor, grid: tuple[int, int], links: Links) -> Tensor:
    """See :func:`deepmatching.network.operators.aggregation.aggregation`."""
    return Aggregation.apply(scores, grid, links)
