"""The gradient of correlation on tensor cores, to both images' descriptors, without atomics in either sum.

With G(q|p) = ∂S̃_0(q|p) times the rectification of q, and o running over the cells of a patch,

    ∂cells_0(p + o) = Σ_q G(q|p) cells_1(q + o),      ∂cells_1(v) = Σ_o Σ_p G(v − o|p) cells_0(p + o).

The first is, for a tile of 8 × 8 points and one row of o, a product of (64 × positions) with (positions × cells and
channels of that row); the second, for a block of target cells, a sum over o and tiles of points of products of
(cells × 64) with (64 × channels). G is split into two halves as the descriptors are, see :mod:`.correlation`.
"""

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.autograd.function import once_differentiable

from deepmatching.geometry.discretization import Geometry
from deepmatching.kernels.constants import POINT_TILE
from deepmatching.kernels.gpu.indexing import fetch, launch
from deepmatching.kernels.gpu.matching.correlation import (
    HalfCells,
    Layout,
    correlate,
    in_window,
    layout,
    power_of_two,
    rectify,
    reference_and_target,
    scale_exponent,
    split,
    window_start,
)

BLOCK = (4, 16)  #: target positions of one product; divides the forward kernel's, so that the map's zeros suffice
RUN = 128  #: cells and channels of a patch's row of one program, at most
WARPS, STAGES = 4, 1  # no asynchronous copies: those of G, four bytes each, cost more than they hide
CELLS_Y, CELLS_X = 4, 16  #: block of target cells of one program


@triton.jit
def with_products(total, g, high, low, at, read):
    """Return total + G · c, with both split, for cells c at these places."""
    g_high, g_low = split(g)
    c_high, c_low = fetch(high + at, read), fetch(low + at, read)
    total = tl.dot(g_high, c_high, total)
    total = tl.dot(g_high, c_low, total)
    return tl.dot(g_low, c_high, total)


@triton.jit
def _reference_gradient(
    gradient, peak, high1, low1, peak1, result, h0, w0, channels,
    rows, columns, h, w, step, shift, first_y0, first_x0, origin_y, origin_x, end_y, end_x, tiles_x, rows1, columns1,
    PATCH: tl.constexpr, PADDED: tl.constexpr, TILE: tl.constexpr,
    BLOCK_Y: tl.constexpr, BLOCK_X: tl.constexpr, RUN: tl.constexpr
):  # fmt: skip
    """Add ∂cells_0 of one row o_y of the patches of a tile of points: its cells and channels are one run in memory."""
    blocks: tl.constexpr = (PATCH * PADDED + RUN - 1) // RUN
    pair = (tl.program_id(2) // blocks).to(tl.int64)
    run = (tl.program_id(2) % blocks) * RUN + tl.arange(0, RUN)
    o_y = tl.program_id(1)
    row0, column0 = (tl.program_id(0) // tiles_x) * TILE, (tl.program_id(0) % tiles_x) * TILE
    n = tl.arange(0, TILE * TILE)
    i, j = n // TILE, n % TILE
    exists = (row0 + i < rows) & (column0 + j < columns)
    first_y, first_x = window_start(i * shift, j * shift, exists)
    point = (pair * rows + row0 + i) * columns + column0 + j
    source = gradient + (point * (h * w) - (i * w + j) * shift)[:, None]
    high1 += pair * rows1 * columns1 * PADDED
    low1 += pair * rows1 * columns1 * PADDED
    exponent = scale_exponent(tl.load(peak + pair))
    scale = power_of_two(exponent)
    blocks_y = (h + (TILE - 1) * shift + BLOCK_Y - 1) // BLOCK_Y
    blocks_x = (w + (TILE - 1) * shift + BLOCK_X - 1) // BLOCK_X
    m = tl.arange(0, BLOCK_Y * BLOCK_X)
    total = tl.zeros((TILE * TILE, RUN), tl.float32)
    for block in range(0, blocks_y * blocks_x):
        y = (block // blocks_x) * BLOCK_Y + m // BLOCK_X
        x = (block % blocks_x) * BLOCK_X + m % BLOCK_X
        mine = in_window(y[None, :] - first_y[:, None], x[None, :] - first_x[:, None], h, w)
        weight = rectify(origin_y + row0 * shift + y, end_y, PATCH)
        weight *= rectify(origin_x + column0 * shift + x, end_x, PATCH)
        # Rectification is up to 2 along each axis; a quarter of it cannot leave float16's range.
        g = fetch(source + (y * w + x)[None, :], mine) * (weight * (0.25 * scale))[None, :]
        at = ((row0 * shift + y + o_y) * columns1 + column0 * shift + x) * PADDED
        total = with_products(total, g, high1, low1, at[:, None] + run[None, :], (run < PATCH * PADDED)[None, :])
    total *= power_of_two(-exponent) * 4.0
    total *= power_of_two(-scale_exponent(tl.load(peak1 + pair)))
    channel = run % PADDED
    cell = ((row0 + i) * step + first_y0 + o_y) * w0 + (column0 + j) * step + first_x0
    out = result + pair * channels * h0 * w0 + cell[:, None] + (channel * (h0 * w0) + run // PADDED)[None, :]
    real = (channel < channels) & (run < PATCH * PADDED)
    # Each cell is in one patch (then the order of additions is fixed), in several if patches overlap.
    tl.atomic_add(out, total, mask=exists[:, None] & real[None, :], sem="relaxed")


@triton.jit
def _target_gradient(
    gradient, peak, high0, low0, peak0, result, h1, w1, channels,
    rows, columns, h, w, step, shift, origin_y, origin_x, end_y, end_x, rows0, columns0,
    PATCH: tl.constexpr, PADDED: tl.constexpr, TILE: tl.constexpr,
    CELLS_Y: tl.constexpr, CELLS_X: tl.constexpr, CHANNELS: tl.constexpr, RELATIVE: tl.constexpr
):  # fmt: skip
    """Sum ∂cells_1 of a block of target cells v over o and the tiles of points whose windows reach v − o."""
    blocks: tl.constexpr = (PADDED + CHANNELS - 1) // CHANNELS
    pair = (tl.program_id(2) // blocks).to(tl.int64)
    channel = (tl.program_id(2) % blocks) * CHANNELS + tl.arange(0, CHANNELS)
    top, left = tl.program_id(1) * CELLS_Y, tl.program_id(0) * CELLS_X
    v = tl.arange(0, CELLS_Y * CELLS_X)
    v_y, v_x = top + v // CELLS_X, left + v % CELLS_X
    n = tl.arange(0, TILE * TILE)
    high0 += pair * rows0 * columns0 * PADDED
    low0 += pair * rows0 * columns0 * PADDED
    exponent = scale_exponent(tl.load(peak + pair))
    scale = power_of_two(exponent)

    # Points i whose window reaches any position that covers the block: 0 ≤ position − origin − shift · i < h.
    first_i, first_j, last_i, last_j = 0, 0, rows - 1, columns - 1
    if RELATIVE:
        y0, x0 = top - PATCH + 1 + PATCH // 2 - origin_y, left - PATCH + 1 + PATCH // 2 - origin_x
        first_i = tl.maximum(y0 - h + 1 + shift - 1, 0) // shift
        first_j = tl.maximum(x0 - w + 1 + shift - 1, 0) // shift
        last_i = tl.minimum(tl.maximum(y0 + PATCH + CELLS_Y - 2, 0) // shift, rows - 1)
        last_j = tl.minimum(tl.maximum(x0 + PATCH + CELLS_X - 2, 0) // shift, columns - 1)
    tiles_x = (last_j - first_j + TILE) // TILE
    tiles = tiles_x * ((last_i - first_i + TILE) // TILE)
    total = tl.zeros((CELLS_Y * CELLS_X, CHANNELS), tl.float32)
    for term in range(0, tiles * PATCH * PATCH):
        o, tile = term % (PATCH * PATCH), term // (PATCH * PATCH)
        o_y, o_x = o // PATCH, o % PATCH
        i = first_i + (tile // tiles_x) * TILE + n // TILE
        j = first_j + (tile % tiles_x) * TILE + n % TILE
        exists = (i <= last_i) & (j <= last_j)
        position_y, position_x = v_y - o_y + PATCH // 2, v_x - o_x + PATCH // 2
        y, x = position_y - origin_y, position_x - origin_x
        first_y, first_x = window_start(i * shift, j * shift, exists)
        mine = in_window(y[:, None] - first_y[None, :], x[:, None] - first_x[None, :], h, w)
        point = (pair * rows + i) * columns + j
        source = gradient + (point * (h * w) - (i * w + j) * shift)[None, :]
        weight = rectify(position_y, end_y, PATCH) * rectify(position_x, end_x, PATCH)
        g = fetch(source + (y * w + x)[:, None], mine) * (weight * (0.25 * scale))[:, None]
        at = ((i * step + o_y) * columns0 + j * step + o_x) * PADDED
        read = exists[:, None] & (channel < PADDED)[None, :]
        total = with_products(total, g, high0, low0, at[:, None] + channel[None, :], read)
    total *= power_of_two(-exponent) * 4.0
    total *= power_of_two(-scale_exponent(tl.load(peak0 + pair)))
    out = result + pair * channels * h1 * w1 + (v_y * w1 + v_x)[:, None] + (channel * h1 * w1)[None, :]
    inside = (v_y < h1) & (v_x < w1)
    tl.store(out, total, mask=inside[:, None] & (channel < channels)[None, :])


def reference_gradient(
    gradient: Tensor, peak: Tensor, target: HalfCells, at: Layout, patch: int, shape: torch.Size
) -> Tensor:
    """Return ∂cells_0, (B, C, h0, w0), from ∂S̃_0."""
    result = gradient.new_zeros(shape)
    run = max(16, min(RUN, triton.next_power_of_2(patch * target.channels)))
    tiles_y, tiles_x = at.tiles
    grid = (tiles_y * tiles_x, patch, shape[0] * triton.cdiv(patch * target.channels, run))
    launch(
        _reference_gradient, grid, gradient, peak, *target, result, shape[2], shape[3], shape[1],
        *at[:12], tiles_x, *target.high.shape[1:3],
        PATCH=patch, PADDED=target.channels, TILE=POINT_TILE, BLOCK_Y=BLOCK[0], BLOCK_X=BLOCK[1], RUN=run,
        num_warps=WARPS, num_stages=STAGES,
    )  # fmt: skip
    return result


def target_gradient(
    gradient: Tensor, peak: Tensor, reference: HalfCells, at: Layout, patch: int, shape: torch.Size
) -> Tensor:
    """Return ∂cells_1, (B, C, h1, w1), from ∂S̃_0."""
    result = gradient.new_empty(shape)
    block = max(16, min(128, triton.next_power_of_2(reference.channels)))
    blocks = shape[0] * triton.cdiv(reference.channels, block)
    launch(
        _target_gradient, (triton.cdiv(shape[3], CELLS_X), triton.cdiv(shape[2], CELLS_Y), blocks),
        gradient, peak, *reference, result, shape[2], shape[3], shape[1], *at.windows, *at.targets,
        *reference.high.shape[1:3],
        PATCH=patch, PADDED=reference.channels, TILE=POINT_TILE, CELLS_Y=CELLS_Y, CELLS_X=CELLS_X, CHANNELS=block,
        RELATIVE=at.shift > 0, num_warps=WARPS, num_stages=STAGES,
    )  # fmt: skip
    return result


class Correlation(torch.autograd.Function):
    """:func:`correlation`."""

    @staticmethod
    def forward(ctx: Any, cells0: Tensor, cells1: Tensor, geometry: Geometry, patch: int) -> Tensor:
        ctx.save_for_backward(cells0, cells1)
        ctx.geometry, ctx.patch = geometry, patch
        return correlate(cells0, cells1, geometry, patch)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, Tensor | None, None, None]:
        cells0, cells1 = ctx.saved_tensors
        at = layout(ctx.geometry, ctx.patch)
        reference, target = reference_and_target(cells0, cells1, at, ctx.patch)
        gradient = gradient.contiguous()
        peak = torch.linalg.vector_norm(gradient, torch.inf, dim=(1, 2, 3, 4))
        result0 = result1 = None
        if ctx.needs_input_grad[0]:
            result0 = reference_gradient(gradient, peak, target, at, ctx.patch, cells0.shape)
        if ctx.needs_input_grad[1]:
            result1 = target_gradient(gradient, peak, reference, at, ctx.patch, cells1.shape)
        return result0, result1, None, None


def correlation(cells0: Tensor, cells1: Tensor, geometry: Geometry, patch: int) -> Tensor:
    """See :func:`deepmatching.network.operators.correlation.correlation`."""
    return Correlation.apply(cells0, cells1, geometry, patch)
