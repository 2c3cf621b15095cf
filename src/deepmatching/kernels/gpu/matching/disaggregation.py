"""Disaggregation (DA), eq. (5), with its gradient: the kernels behind ``operators.disaggregation``."""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.autograd.function import once_differentiable

from deepmatching.geometry.discretization import Links
from deepmatching.kernels.gpu.indexing import (
    NOTHING,
    cells_block,
    cells_of,
    on_device_of,
    reference_point,
    row_and_column,
    volume_grid,
    warps,
)
from deepmatching.kernels.gpu.matching.aggregation import existing, nearest, on_map, shifted, shifts_of


@triton.jit
def _disaggregate(
    scores, values, choices, rows_up, columns_up, rows, columns, h, w, up, down, left, right, cell_shift,
    SHIFTED: tl.constexpr, RECORD: tl.constexpr, BLOCK: tl.constexpr
):  # fmt: skip
    """Best parent of each child. Parents come in the reverse order of the links that lead from them."""
    pair, i, j = reference_point(rows, columns)
    cell = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = cell < h * w
    y, x = row_and_column(cell, w)
    best = tl.full((BLOCK,), float("-inf"), tl.float32)
    choice = tl.full((BLOCK,), NOTHING, tl.int32)
    for n_y in tl.static_range(2):
        parent_i = shifted(i, -up, -down, 1 - n_y)
        cell_y = y - (1 - 2 * n_y) * cell_shift
        for n_x in tl.static_range(2):
            parent_j = shifted(j, -left, -right, 1 - n_x)
            cell_x = x - (1 - 2 * n_x) * cell_shift
            source = cells_of(
                pair, nearest(parent_i, rows_up), nearest(parent_j, columns_up), rows_up, columns_up, h * w
            )
            on = on_map(cell_y, cell_x, inside, h, w, SHIFTED)
            score = tl.load(scores + source + (cell_y * w + cell_x), mask=on, other=float("-inf"))
            exists = existing(parent_i, rows_up) * existing(parent_j, columns_up)
            score += tl.where(exists > 0, 0.0, float("-inf"))
            better = score > best
            best = tl.where(better, score, best)
            choice = tl.where(better, 2 * (1 - n_y) + (1 - n_x), choice)
    out = cells_of(pair, i, j, rows, columns, h * w)
    tl.store(values + out + cell, best, mask=inside)
    if RECORD:
        tl.store(choices + out + cell, choice.to(tl.uint8), mask=inside)


@triton.jit
def _disaggregate_gradient(
    gradient, choices, out, rows_up, columns_up, rows, columns, h, w, up, down, left, right, cell_shift,
    SHIFTED: tl.constexpr, BLOCK: tl.constexpr
):  # fmt: skip
    """∂Q_{l+1} at a parent: the sum of the gradients of the children that chose it."""
    pair, i, j = reference_point(rows_up, columns_up)
    cell = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = cell < h * w
    y, x = row_and_column(cell, w)
    total = tl.zeros((BLOCK,), tl.float32)
    for side_y in tl.static_range(2):
        child_i = shifted(i, up, down, side_y)
        cell_y = y + (2 * side_y - 1) * cell_shift
        for side_x in tl.static_range(2):
            child_j = shifted(j, left, right, side_x)
            cell_x = x + (2 * side_x - 1) * cell_shift
            source = cells_of(pair, nearest(child_i, rows), nearest(child_j, columns), rows, columns, h * w)
            on = on_map(cell_y, cell_x, inside, h, w, SHIFTED)
            code = tl.load(choices + source + (cell_y * w + cell_x), mask=on, other=255).to(tl.int32)
            chosen = on & (code == 2 * side_y + side_x)
            weight = existing(child_i, rows) * existing(child_j, columns)
            total += weight * tl.load(gradient + source + (cell_y * w + cell_x), mask=chosen, other=0.0)
    tl.store(out + cells_of(pair, i, j, rows_up, columns_up, h * w) + cell, total, mask=inside)


@on_device_of
def best_parent(scores: Tensor, grid: tuple[int, int], links: Links, record: bool = False) -> tuple[Tensor, Tensor]:
    """Q_{l+1/2}, (B, *grid, h, w), from Q_{l+1} and, with ``record``, the number of the link it came by."""
    shape = (scores.shape[0], *grid, *scores.shape[-2:])
    values = scores.new_empty(shape)
    choices = torch.empty(shape if record else 1, dtype=torch.uint8, device=scores.device)
    block = cells_block(shape[-2] * shape[-1])
    _disaggregate[volume_grid(values)](
        scores, values, choices, *scores.shape[1:3], *values.shape[1:], *shifts_of(links),
        SHIFTED=shifts_of(links)[-1] != 0, RECORD=record, BLOCK=block, num_warps=warps(block),
    )  # fmt: skip
    return values, choices


@on_device_of
def best_parent_gradient(gradient: Tensor, choices: Tensor, grid: tuple[int, int], links: Links) -> Tensor:
    """∂Q_{l+1}, (B, *grid, h, w), from ∂Q_{l+1/2} and the recorded links, both (B, H_l, W_l, h, w)."""
    out = gradient.new_empty((gradient.shape[0], *grid, *gradient.shape[-2:]))
    block = cells_block(out.shape[-2] * out.shape[-1])
    _disaggregate_gradient[volume_grid(out)](
        gradient, choices, out, *grid, *gradient.shape[1:], *shifts_of(links),
        SHIFTED=shifts_of(links)[-1] != 0, BLOCK=block, num_warps=warps(block),
    )  # fmt: skip
    return out


class Disaggregation(torch.autograd.Function):
    """:func:`disaggregation`."""

    @staticmethod
    def forward(ctx: Any, scores: Tensor, grid: tuple[int, int], links: Links) -> Tensor:
        values, choices = best_parent(scores.contiguous(), grid, links, record=ctx.needs_input_grad[0])
        ctx.save_for_backward(choices)
        ctx.grid, ctx.links = (scores.shape[1], scores.shape[2]), links
        return values

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        (choices,) = ctx.saved_tensors
        return best_parent_gradient(gradient.contiguous(), choices, ctx.grid, ctx.links), None, None


def disaggregation(scores: Tensor, grid: tuple[int, int], links: Links) -> Tensor:
    """See :func:`deepmatching.network.operators.disaggregation.disaggregation`."""
    return Disaggregation.apply(scores, grid, links)
