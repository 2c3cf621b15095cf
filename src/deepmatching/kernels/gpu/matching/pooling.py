"""Max pooling (MP), eq. (3), and unpooling (UP), eq. (6), with their gradients."""

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.autograd.function import once_differentiable

from deepmatching.kernels.gpu.indexing import NOTHING, block_of_cells, fetch, launch_on_volume, powered


@triton.jit
def window_over(position, offset, windows, N: tl.constexpr, REACH: tl.constexpr):
    """Return along an axis the Nth window that may see a cell, where it sees the cell, and whether it does."""
    t = position - offset + REACH  # window k sees the cell at place t − 2k of its 2·reach + 1
    k = ((t - 2 * REACH + 1) >> 1) + N
    place = t - 2 * k
    return k, place, (k >= 0) & (k < windows) & (place >= 0)


@triton.jit
def _pool(
    scores, values, switches, exponent, h, w, h_out, w_out, offset,
    REACH: tl.constexpr, POWER: tl.constexpr, BLOCK: tl.constexpr
):  # fmt: skip
    """Find each window's first maximum in raster order. ν is applied to it alone: the power is monotone."""
    point = tl.program_id(0).to(tl.int64)
    cell, k_y, k_x, inside = block_of_cells(h_out, w_out, BLOCK)
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
def _unpool(
    coarse, pooled, switches, values, choices, h, w, h_in, w_in, offset,
    SUM: tl.constexpr, REACH: tl.constexpr, ADD: tl.constexpr, RECORD: tl.constexpr, BLOCK: tl.constexpr
):  # fmt: skip
    """Find each cell's largest score of the windows that chose it, the first window in raster order on ties.

    With ``SUM``, add up the scores instead: from ∂S_{l+1/2}, this gives ∂S_l.
    """
    point = tl.program_id(0).to(tl.int64)
    cell, y, x, inside = block_of_cells(h, w, BLOCK)
    coarse += point * (h_in * w_in)
    pooled += point * (h_in * w_in)
    switches += point * (h_in * w_in)
    best = tl.full((BLOCK,), 0.0 if SUM else float("-inf"), tl.float32)
    choice = tl.full((BLOCK,), NOTHING, tl.int32)
    for n_y in tl.static_range(REACH + 1):
        k_y, d_y, row = window_over(y, offset, h_in, n_y, REACH)
        for n_x in tl.static_range(REACH + 1):
            k_x, d_x, column = window_over(x, offset, w_in, n_x, REACH)
            on = inside & row & column
            at = k_y * w_in + k_x
            code = d_y * (2 * REACH + 1) + d_x
            chosen = on & (tl.load(switches + at, mask=on, other=255).to(tl.int32) == code)
            if SUM:
                best += fetch(coarse + at, chosen)
            else:
                score = tl.load(coarse + at, mask=chosen, other=float("-inf"))
                if ADD:
                    score += fetch(pooled + at, chosen).to(tl.float32)
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
    """Store ∂Q_{l+1/2}(k): ∂U_l at the cell that window k chose, if k's was the score that counted there."""
    SIDE: tl.constexpr = 2 * REACH + 1
    point = tl.program_id(0).to(tl.int64)
    window, k_y, k_x, inside = block_of_cells(h_in, w_in, BLOCK)
    code = tl.load(switches + point * (h_in * w_in) + window, mask=inside, other=255).to(tl.int32)
    y = 2 * k_y + offset - REACH + code // SIDE
    x = 2 * k_x + offset - REACH + code % SIDE
    on = inside & (code != NOTHING)
    at = y * w + x
    counted = on & (tl.load(choices + point * (h * w) + at, mask=on, other=255).to(tl.int32) == code)
    total = fetch(gradient + point * (h * w) + at, counted)
    tl.store(result + point * (h_in * w_in) + window, total, mask=inside)


def pool(
    scores: Tensor, pooled: tuple[int, int], offset: int, reach: int, exponent: float | None = None
) -> tuple[Tensor, Tensor]:
    """Pool as ``operators.max_pooling`` without gradient, and apply max(·, 0)^ν if ``exponent`` is given."""
    values = scores.new_empty((*scores.shape[:-2], *pooled))
    switches = torch.empty_like(values, dtype=torch.uint8)
    pool_into(scores, values, switches, offset, reach, exponent)
    return values, switches


def pool_into(
    scores: Tensor, values: Tensor, switches: Tensor, offset: int, reach: int, exponent: float | None = None
) -> None:
    """Do :func:`pool` into given contiguous volumes."""
    launch_on_volume(
        _pool, values, scores, values, switches, exponent or 1.0, *scores.shape[-2:], *values.shape[-2:], offset,
        REACH=reach, POWER=exponent is not None,
    )  # fmt: skip


def unpool(
    coarse: Tensor, pooled: Tensor | None, switches: Tensor, window: tuple[int, int], offset: int, reach: int,
    record: bool = False, total: bool = False,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Return U_l of ``coarse`` (+ ``pooled``) and, with ``record``, the position that each cell's score came from.

    With ``total``, return the sum of the scores that come back to each cell in place of their maximum.
    """
    values = coarse.new_empty((*coarse.shape[:-2], *window))
    choices = torch.empty_like(values, dtype=torch.uint8) if record else switches
    launch_on_volume(
        _unpool, values, coarse, coarse if pooled is None else pooled, switches, values, choices,
        *window, *coarse.shape[-2:], offset, SUM=total, REACH=reach, ADD=pooled is not None, RECORD=record,
    )  # fmt: skip
    return values, choices


class MaxPooling(torch.autograd.Function):
    """:func:`max_pooling`."""

    @staticmethod
    def forward(ctx: Any, scores: Tensor, pooled: tuple[int, int], offset: int, reach: int) -> tuple[Tensor, Tensor]:
        values, switches = pool(scores.contiguous(), pooled, offset, reach)
        ctx.save_for_backward(switches)
        ctx.mark_non_differentiable(switches)
        ctx.window = scores.shape[-2:], offset, reach
        return values, switches

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor, _: Tensor) -> tuple[Tensor, None, None, None]:
        (switches,), (window, offset, reach) = ctx.saved_tensors, ctx.window
        return unpool(gradient.contiguous(), None, switches, window, offset, reach, total=True)[0], None, None, None


class Unpooling(torch.autograd.Function):
    """:func:`unpooling`."""

    @staticmethod
    def forward(ctx: Any, scores: Tensor, switches: Tensor, size: tuple[int, int], offset: int, reach: int) -> Tensor:
        switches = switches.contiguous()
        values, choices = unpool(scores.contiguous(), None, switches, size, offset, reach, ctx.needs_input_grad[0])
        ctx.save_for_backward(choices, switches)
        ctx.offset, ctx.reach = offset, reach
        return values

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None, None, None]:
        choices, switches = ctx.saved_tensors
        result = gradient.new_empty(switches.shape)
        launch_on_volume(
            _unpool_gradient, result, gradient.contiguous(), choices, switches, result,
            *gradient.shape[-2:], *switches.shape[-2:], ctx.offset, REACH=ctx.reach,
        )  # fmt: skip
        return result, None, None, None, None


def max_pooling(scores: Tensor, pooled: tuple[int, int], offset: int = 0, reach: int = 1) -> tuple[Tensor, Tensor]:
    """See :func:`deepmatching.network.operators.max_pooling.max_pooling`."""
    return MaxPooling.apply(scores, pooled, offset, reach)


def unpooling(scores: Tensor, switches: Tensor, size: tuple[int, int], offset: int = 0, reach: int = 1) -> Tensor:
    """See :func:`deepmatching.network.operators.unpooling.unpooling`."""
    return Unpooling.apply(scores, switches, size, offset, reach)
