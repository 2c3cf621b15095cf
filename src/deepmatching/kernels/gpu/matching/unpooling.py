"""Unpooling (UP), eq. (6), with its gradient: the kernels behind ``operators.unpooling``."""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.autograd.function import once_differentiable

from deepmatching.kernels.gpu.indexing import NOTHING, cells_block, on_device_of, row_and_column, volume_grid, warps


@triton.jit
def _unpool(
    coarse, pooled, switches, values, choices, h, w, h_in, w_in, offset,
    REACH: tl.constexpr, ADD: tl.constexpr, RECORD: tl.constexpr, BLOCK: tl.constexpr
):  # fmt: skip
    """Each cell's largest score of the windows that chose it, the first window in raster order on ties."""
    point = tl.program_id(0).to(tl.int64)
    cell = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = cell < h * w
    # Along an axis, window k sees this cell at position t − 2k of its 2·reach + 1.
    y, x = row_and_column(cell, w)
    t_y, t_x = y - offset + REACH, x - offset + REACH
    first_y, first_x = (t_y - 2 * REACH + 1) >> 1, (t_x - 2 * REACH + 1) >> 1
    coarse += point * (h_in * w_in)
    pooled += point * (h_in * w_in)
    switches += point * (h_in * w_in)
    best = tl.full((BLOCK,), float("-inf"), tl.float32)
    choice = tl.full((BLOCK,), NOTHING, tl.int32)
    for n_y in tl.static_range(REACH + 1):
        k_y = first_y + n_y
        d_y = t_y - 2 * k_y
        row = inside & (k_y >= 0) & (k_y < h_in) & (d_y >= 0)
        for n_x in tl.static_range(REACH + 1):
            k_x = first_x + n_x
            d_x = t_x - 2 * k_x
            on = row & (k_x >= 0) & (k_x < w_in) & (d_x >= 0)
            at = k_y * w_in + k_x
            code = d_y * (2 * REACH + 1) + d_x
            chosen = on & (tl.load(switches + at, mask=on, other=255).to(tl.int32) == code)
            score = tl.load(coarse + at, mask=chosen, other=float("-inf"))
            if ADD:
                score += tl.load(pooled + at, mask=chosen, other=0.0).to(tl.float32)
            better = score > best
            best = tl.where(better, score, best)
            choice = tl.where(better, code, choice)
    tl.store(values + point * (h * w) + cell, best, mask=inside)
    if RECORD:
        tl.store(choices + point * (h * w) + cell, choice.to(tl.uint8), mask=inside)


@triton.jit
def _unpool_gradient(
    gradient, choices, switches, result, h, w, h_in, w_in, offset, REACH: tl.constexpr, BLOCK: tl.constexpr
):
    """∂Q_{l+1/2}(k): ∂U_l at the cell that window k chose, if k's was the score that counted there."""
    SIDE: tl.constexpr = 2 * REACH + 1
    point = tl.program_id(0).to(tl.int64)
    window = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = window < h_in * w_in
    code = tl.load(switches + point * (h_in * w_in) + window, mask=inside, other=255).to(tl.int32)
    k_y, k_x = row_and_column(window, w_in)
    y = 2 * k_y + offset - REACH + code // SIDE
    x = 2 * k_x + offset - REACH + code % SIDE
    on = inside & (code != NOTHING)
    at = y * w + x
    counted = on & (tl.load(choices + point * (h * w) + at, mask=on, other=255).to(tl.int32) == code)
    total = tl.load(gradient + point * (h * w) + at, mask=counted, other=0.0)
    tl.store(result + point * (h_in * w_in) + window, total, mask=inside)


@on_device_of
def unpool(
    coarse: Tensor,
    pooled: Tensor | None,
    switches: Tensor,
    window: tuple[int, int],
    offset: int,
    reach: int,
    record: bool = False,
) -> tuple[Tensor, Tensor]:
    """U_l of ``coarse`` + ``pooled`` (if given) and, with ``record``, the position that each cell's score came from."""
    shape = (*coarse.shape[:-2], *window)
    values = coarse.new_empty(shape)
    choices = torch.empty(shape, dtype=torch.uint8, device=coarse.device) if record else switches
    block = cells_block(window[0] * window[1])
    _unpool[volume_grid(values)](
        coarse, coarse if pooled is None else pooled, switches, values, choices, *window, *coarse.shape[-2:], offset,
        REACH=reach, ADD=pooled is not None, RECORD=record, BLOCK=block, num_warps=warps(block),
    )  # fmt: skip
    return values, choices


@on_device_of
def unpool_gradient(gradient: Tensor, choices: Tensor, switches: Tensor, offset: int, reach: int) -> Tensor:
    """∂Q_{l+1/2}, (…, h', w'), from ∂U_l and the choices, (…, h, w), and the switches, (…, h', w')."""
    result = gradient.new_empty(switches.shape)
    block = cells_block(switches.shape[-2] * switches.shape[-1])
    _unpool_gradient[volume_grid(result)](
        gradient, choices, switches, result, *gradient.shape[-2:], *switches.shape[-2:], offset,
        REACH=reach, BLOCK=block, num_warps=warps(block),
    )  # fmt: skip
    return result


class Unpooling(torch.autograd.Function):
    """:func:`unpooling`."""

    @staticmethod
    def forward(ctx: Any, scores: Tensor, switches: Tensor, size: tuple[int, int], offset: int, reach: int) -> Tensor:
        switches = switches.contiguous()
        values, choices = unpool(
            scores.contiguous(), None, switches, size, offset, reach, record=ctx.needs_input_grad[0]
        )
        ctx.save_for_backward(choices, switches)
        ctx.offset, ctx.reach = offset, reach
        return values

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None, None, None]:
        choices, switches = ctx.saved_tensors
        result = unpool_gradient(gradient.contiguous(), choices, switches, ctx.offset, ctx.reach)
        return result, None, None, None, None


def unpooling(scores: Tensor, switches: Tensor, size: tuple[int, int], offset: int = 0, reach: int = 1) -> Tensor:
    """See :func:`deepmatching.network.operators.unpooling.unpooling`."""
    return Unpooling.apply(scores, switches, size, offset, reach)
