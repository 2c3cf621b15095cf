"""Max pooling (MP), eq. (3), with its gradient: the kernels behind ``operators.max_pooling``."""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.autograd.function import once_differentiable

from deepmatching.kernels.gpu.indexing import (
    NOTHING,
    cells_block,
    on_device_of,
    powered,
    row_and_column,
    volume_grid,
    warps,
)


@triton.jit
def _pool(
    scores, values, switches, exponent, h, w, h_out, w_out, offset,
    REACH: tl.constexpr, POWER: tl.constexpr, BLOCK: tl.constexpr
):  # fmt: skip
    """Each window's first maximum in raster order. ν is applied to the maximum alone: the power is monotone."""
    point = tl.program_id(0).to(tl.int64)
    cell = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = cell < h_out * w_out
    k_y, k_x = row_and_column(cell, w_out)
    y, x = 2 * k_y + offset - REACH, 2 * k_x + offset - REACH
    source = scores + point * (h * w)
    best = tl.full((BLOCK,), float("-inf"), tl.float32)
    choice = tl.full((BLOCK,), NOTHING, tl.int32)
    for dy in tl.static_range(2 * REACH + 1):
        row = inside & (y + dy >= 0) & (y + dy < h)
        for dx in tl.static_range(2 * REACH + 1):
            on = row & (x + dx >= 0) & (x + dx < w)
            score = tl.load(source + ((y + dy) * w + x + dx), mask=on, other=float("-inf"))
            better = score > best
            best = tl.where(better, score, best)
            choice = tl.where(better, dy * (2 * REACH + 1) + dx, choice)
    if POWER:
        best = tl.where(choice == NOTHING, float("-inf"), powered(best, exponent))
    tl.store(values + point * (h_out * w_out) + cell, best, mask=inside)
    tl.store(switches + point * (h_out * w_out) + cell, choice.to(tl.uint8), mask=inside)


@triton.jit
def _pool_gradient(gradient, switches, result, h, w, h_out, w_out, offset, REACH: tl.constexpr, BLOCK: tl.constexpr):
    """∂S_l(k): the sum of ∂S_{l+1/2} over the windows whose switch is k."""
    point = tl.program_id(0).to(tl.int64)
    cell = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = cell < h * w
    # Along an axis, window k sees this cell at position t − 2k of its 2·reach + 1.
    y, x = row_and_column(cell, w)
    t_y, t_x = y - offset + REACH, x - offset + REACH
    first_y, first_x = (t_y - 2 * REACH + 1) >> 1, (t_x - 2 * REACH + 1) >> 1
    gradient += point * (h_out * w_out)
    switches += point * (h_out * w_out)
    total = tl.zeros((BLOCK,), tl.float32)
    for n_y in tl.static_range(REACH + 1):
        k_y = first_y + n_y
        d_y = t_y - 2 * k_y
        row = inside & (k_y >= 0) & (k_y < h_out) & (d_y >= 0)
        for n_x in tl.static_range(REACH + 1):
            k_x = first_x + n_x
            d_x = t_x - 2 * k_x
            on = row & (k_x >= 0) & (k_x < w_out) & (d_x >= 0)
            at = k_y * w_out + k_x
            code = tl.load(switches + at, mask=on, other=255).to(tl.int32)
            chosen = on & (code == d_y * (2 * REACH + 1) + d_x)
            total += tl.load(gradient + at, mask=chosen, other=0.0)
    tl.store(result + point * (h * w) + cell, total, mask=inside)


@on_device_of
def pool(
    scores: Tensor, pooled: tuple[int, int], offset: int, reach: int, exponent: float | None = None
) -> tuple[Tensor, Tensor]:
    """As ``operators.max_pooling`` without gradient, and with max(·, 0)^ν of the result if ``exponent`` is given."""
    shape = (*scores.shape[:-2], *pooled)
    values = scores.new_empty(shape)
    switches = torch.empty(shape, dtype=torch.uint8, device=scores.device)
    pool_into(scores, values, switches, offset, reach, exponent)
    return values, switches


def pool_into(
    scores: Tensor, values: Tensor, switches: Tensor, offset: int, reach: int, exponent: float | None = None
) -> None:
    """:func:`pool` into given contiguous volumes."""
    block = cells_block(values.shape[-2] * values.shape[-1])
    _pool[volume_grid(values)](
        scores, values, switches, exponent or 1.0, *scores.shape[-2:], *values.shape[-2:], offset,
        REACH=reach, POWER=exponent is not None, BLOCK=block, num_warps=warps(block),
    )  # fmt: skip


@on_device_of
def pool_gradient(gradient: Tensor, switches: Tensor, window: tuple[int, int], offset: int, reach: int) -> Tensor:
    """∂S_l, (…, h, w), from ∂S_{l+1/2} and the switches, both (…, h', w')."""
    result = gradient.new_empty((*gradient.shape[:-2], *window))
    block = cells_block(window[0] * window[1])
    _pool_gradient[volume_grid(result)](
        gradient, switches, result, *window, *gradient.shape[-2:], offset,
        REACH=reach, BLOCK=block, num_warps=warps(block),
    )  # fmt: skip
    return result


class MaxPooling(torch.autograd.Function):
    """:func:`max_pooling`."""

    @staticmethod
    def forward(ctx: Any, scores: Tensor, pooled: tuple[int, int], offset: int, reach: int) -> tuple[Tensor, Tensor]:
        values, switches = pool(scores.contiguous(), pooled, offset, reach)
        ctx.save_for_backward(switches)
        ctx.mark_non_differentiable(switches)
        ctx.window, ctx.offset, ctx.reach = (scores.shape[-2], scores.shape[-1]), offset, reach
        return values, switches

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor, _: Tensor) -> tuple[Tensor, None, None, None]:
        (switches,) = ctx.saved_tensors
        result = pool_gradient(gradient.contiguous(), switches, ctx.window, ctx.offset, ctx.reach)
        return result, None, None, None


def max_pooling(scores: Tensor, pooled: tuple[int, int], offset: int = 0, reach: int = 1) -> tuple[Tensor, Tensor]:
    """See :func:`deepmatching.network.operators.max_pooling.max_pooling`."""
    return MaxPooling.apply(scores, pooled, offset, reach)
