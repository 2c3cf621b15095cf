"""Correlation (CORR), eq. (2), on tensor cores, and pooling of its scores.

A tile of 8 × 8 reference points shares the target positions in the windows of any of them. Its scores are a product of
(64 × D) patches with (D × positions) patches, D = patch² · channels, read from the map of cells; each point keeps its
own window.

For float32's accuracy, a number is split into x ≈ s⁻¹ (x_hi + x_lo), both float16, with s a power of two that brings
the largest value of an image near the top of float16's range. x_hi + x_lo keeps 22 bits, and

    ⟨x, y⟩ ≈ s⁻² (⟨x_hi, y_hi⟩ + ⟨x_hi, y_lo⟩ + ⟨x_lo, y_hi⟩),

accumulated in float32, is as good as a float32 product: what is left out is below 2⁻²² |x||y|.

The cells lie in memory as (row, column, channel), with zeros around the image as far as any window looks. A row of a
patch is then one contiguous run of patch · channels numbers, and no load needs a mask.
"""

import math
from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from deepmatching.geometry.discretization import Geometry
from deepmatching.kernels.constants import CHUNK_BYTES, PATCH_BLOCK, POINT_TILE, VECTOR_BLOCK
from deepmatching.kernels.gpu.indexing import fetch, launch
from deepmatching.kernels.gpu.matching.pooling import pool_into


class HalfCells(NamedTuple):
    """Descriptors of a batch of images: s·x = high + low, (B, rows, columns, padded channels), float16."""

    high: Tensor
    low: Tensor
    peak: Tensor  #: (B,), largest absolute value of each image: s follows from it

    @property
    def channels(self) -> int:
        """Channels with padding."""
        return self.high.shape[3]


@triton.jit
def scale_exponent(peak):
    """Return e such that 2^e · peak lies in [2¹³, 2¹⁴)."""
    exponent = ((peak.to(tl.int32, bitcast=True) >> 23) & 255) - 127
    return 13 - tl.minimum(tl.maximum(exponent, -50), 100)


@triton.jit
def power_of_two(exponent):
    """Return 2^exponent as float32, for −127 < exponent < 128."""
    return ((exponent + 127) << 23).to(tl.float32, bitcast=True)


@triton.jit
def split(scaled):
    """Return x as float16 + float16."""
    high = scaled.to(tl.float16)
    return high, (scaled - high.to(tl.float32)).to(tl.float16)


@triton.jit
def _split_cells(
    cells, peak, high, low, channels, h, w, stride_b, stride_c, stride_y, stride_x, first_y, first_x, rows, columns,
    PADDED: tl.constexpr, COLUMNS: tl.constexpr, CHANNELS: tl.constexpr
):  # fmt: skip
    """Split one row of the padded map: cell (0, 0) of the result is cell (first_y, first_x) of the image; 0 off it."""
    pair, row = tl.program_id(0) // rows, tl.program_id(0) % rows
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    y, x = tl.full((COLUMNS,), 0, tl.int32) + row + first_y, column + first_x
    scale = power_of_two(scale_exponent(tl.load(peak + pair)))
    inside = (y >= 0) & (y < h) & (x >= 0) & (x < w)
    source = cells + pair.to(tl.int64) * stride_b + y.to(tl.int64) * stride_y + x * stride_x
    out = (tl.program_id(0).to(tl.int64) * columns + column) * PADDED
    for start in tl.static_range(0, PADDED, CHANNELS):
        channel = start + tl.arange(0, CHANNELS)
        read = inside[:, None] & (channel < channels)[None, :]
        x32 = fetch(source[:, None] + (channel * stride_c)[None, :], read)
        x_high, x_low = split(x32 * scale)
        write = (column < columns)[:, None] & (channel < PADDED)[None, :]
        tl.store(high + out[:, None] + channel[None, :], x_high, mask=write)
        tl.store(low + out[:, None] + channel[None, :], x_low, mask=write)


def padded_channels(channels: int, patch: int) -> int:
    """Add channels for cells to load 8 or 16 bytes at a time, and patch² · channels to be a multiple of 16."""
    unit = 4 if channels < 16 and patch > 1 else 8
    while unit * patch * patch % 16:
        unit *= 2
    return -(-channels // unit) * unit


def half_cells(cells: Tensor, first: tuple[int, int], size: tuple[int, int], patch: int) -> HalfCells:
    """Split descriptors (B, C, h, w), any strides, into a map of ``size`` cells that begins at cell ``first``."""
    batch, channels, h, w = cells.shape
    padded = padded_channels(channels, patch)
    high = torch.empty((batch, *size, padded), dtype=torch.float16, device=cells.device)
    low = torch.empty_like(high)
    peak = torch.linalg.vector_norm(cells, torch.inf, dim=(1, 2, 3))
    block, chunk = 64, min(32, triton.next_power_of_2(padded))
    launch(
        _split_cells, (batch * size[0], triton.cdiv(size[1], block)),
        cells, peak, high, low, channels, h, w, *cells.stride(), *first, *size,
        PADDED=padded, COLUMNS=block, CHANNELS=chunk,
    )  # fmt: skip
    return HalfCells(high, low, peak)


class Layout(NamedTuple):
    """Where the kernels find points and positions; lengths in cells (see :func:`layout`)."""

    rows: int  #: H_0
    columns: int  #: W_0
    h: int
    w: int
    step: int  #: from one reference point to the next
    shift: int  #: from one point's window to the next one's: step, or 0 on the absolute lattice
    first_y: int  #: first cell of the first reference patch
    first_x: int
    origin_y: int  #: first target position of the first point, from the image's corner
    origin_x: int
    end_y: int  #: last target position on the image
    end_x: int
    block: tuple[int, int]  #: rows and columns of a block of target positions

    @property
    def windows(self) -> tuple[int, ...]:
        """The grid, the size of a window, and the steps between points and between windows."""
        return self[:6]

    @property
    def targets(self) -> tuple[int, ...]:
        """The first and the last target position."""
        return self[8:12]

    @property
    def tiles(self) -> tuple[int, int]:
        """Tiles of reference points along rows and columns."""
        return -(-self.rows // POINT_TILE), -(-self.columns // POINT_TILE)

    @property
    def blocks(self) -> tuple[int, int]:
        """Blocks of target positions that a tile looks at, along both."""
        reach = (POINT_TILE - 1) * self.shift
        return -(-(self.h + reach) // self.block[0]), -(-(self.w + reach) // self.block[1])


def layout(geometry: Geometry, patch: int) -> Layout:
    """Return the indices of a geometry, in cells."""
    first = (cell - patch // 2 for cell in geometry.first_cell)
    ends = (size // geometry.gamma for size in geometry.used1)
    block = PATCH_BLOCK if patch > 1 else VECTOR_BLOCK
    return Layout._make(
        (*geometry.shape(0), geometry.step, geometry.shift, *first, *geometry.first_target, *ends, block)
    )


def reference_and_target(cells0: Tensor, cells1: Tensor, at: Layout, patch: int) -> tuple[HalfCells, HalfCells]:
    """Split both images' cells, with zeros as far as whole tiles of points look."""
    rows0, columns0 = (n * POINT_TILE * at.step + patch for n in at.tiles)
    rows1, columns1 = (
        (n - 1) * POINT_TILE * at.shift + k * b + patch for n, k, b in zip(at.tiles, at.blocks, at.block, strict=True)
    )
    return (
        half_cells(cells0, (at.first_y, at.first_x), (rows0, columns0), patch),
        half_cells(cells1, (at.origin_y - patch // 2, at.origin_x - patch // 2), (rows1, columns1), patch),
    )


@triton.jit
def rectify(position, end, PATCH: tl.constexpr):
    """Return patch / (visible cells of the target patch) along an axis, 0 off the image."""
    start = position - PATCH // 2
    cells = end
    if PATCH == 1:
        cells = end + 1
    visible = tl.minimum(start + PATCH, cells) - tl.maximum(start, 0)
    on = (position >= 0) & (position <= end)
    return tl.where(on, PATCH / tl.maximum(visible, 1).to(tl.float32), 0.0)


@triton.jit
def window_start(y, x, exists):
    """Return the first position of each point's window; far away for a point that is not on the grid."""
    return tl.where(exists, y, -(1 << 24)), x


@triton.jit
def in_window(k_y, k_x, h, w):
    """Tell whether 0 ≤ k < (h, w): one unsigned comparison an axis."""
    return (k_y.to(tl.uint32, bitcast=True) < h) & (k_x.to(tl.uint32, bitcast=True) < w)


@triton.jit
def _correlate(
    high0, low0, peak0, high1, low1, peak1, out, first_row, out_rows,
    rows, columns, h, w, step, shift, origin_y, origin_x, end_y, end_x,
    tiles_x, blocks_x, rows0, columns0, rows1, columns1,
    PATCH: tl.constexpr, CHANNELS: tl.constexpr, TILE: tl.constexpr, BLOCK_Y: tl.constexpr, BLOCK_X: tl.constexpr,
    DEPTH: tl.constexpr, SPLIT: tl.constexpr, CLAMP: tl.constexpr
):  # fmt: skip
    RUN: tl.constexpr = PATCH * CHANNELS  # a row of a patch lies contiguous in memory
    pair = tl.program_id(2).to(tl.int64)
    row0 = first_row + (tl.program_id(1) // tiles_x) * TILE
    column0 = (tl.program_id(1) % tiles_x) * TILE
    n = tl.arange(0, TILE * TILE)
    i, j = n // TILE, n % TILE
    m = tl.arange(0, BLOCK_Y * BLOCK_X)
    y = (tl.program_id(0) // blocks_x) * BLOCK_Y + m // BLOCK_X
    x = (tl.program_id(0) % blocks_x) * BLOCK_X + m % BLOCK_X

    at0 = ((row0 + i) * step * columns0 + (column0 + j) * step) * CHANNELS
    at1 = ((row0 * shift + y) * columns1 + column0 * shift + x) * CHANNELS
    high0 += pair * rows0 * columns0 * CHANNELS
    low0 += pair * rows0 * columns0 * CHANNELS
    high1 += pair * rows1 * columns1 * CHANNELS
    low1 += pair * rows1 * columns1 * CHANNELS
    total = tl.zeros((TILE * TILE, BLOCK_Y * BLOCK_X), tl.float32)
    for start in range(0, PATCH * RUN, DEPTH):
        d = start + tl.arange(0, DEPTH)
        offset0 = at0[:, None] + ((d // RUN) * columns0 * CHANNELS + d % RUN)[None, :]
        offset1 = at1[:, None] + ((d // RUN) * columns1 * CHANNELS + d % RUN)[None, :]
        a, b = tl.load(high0 + offset0), tl.load(high1 + offset1)
        if SPLIT:
            # Tensor cores cut off where they should round: a fresh sum for every DEPTH products keeps that small.
            part = tl.dot(a, tl.trans(tl.load(low1 + offset1)))
            part = tl.dot(tl.load(low0 + offset0), tl.trans(b), part)
            total += tl.dot(a, tl.trans(b), part)
        else:
            total = tl.dot(a, tl.trans(b), total)

    # Two factors, since their product may lie beyond float32's exponents.
    total *= power_of_two(-scale_exponent(tl.load(peak0 + pair)))
    total *= power_of_two(-scale_exponent(tl.load(peak1 + pair)))
    total *= rectify(origin_y + row0 * shift + y, end_y, PATCH)[None, :]
    total *= rectify(origin_x + column0 * shift + x, end_x, PATCH)[None, :]
    if CLAMP:
        total = tl.maximum(total, 0.0)
    exists = (row0 + i < rows) & (column0 + j < columns)
    point = (pair * out_rows + row0 + i - first_row) * columns + column0 + j
    first_y, first_x = window_start(i * shift, j * shift, exists)
    mine = in_window(y[None, :] - first_y[:, None], x[None, :] - first_x[:, None], h, w)
    at = (point * (h * w) - (i * w + j) * shift)[:, None] + (y * w + x)[None, :]
    tl.store(out + at, total, mask=mine)


def correlate_into(
    out: Tensor, first_row: int, halves: tuple[HalfCells, HalfCells], at: Layout, patch: int, clamp: bool, half: bool
) -> None:
    """Write S̃_0 (or max(S̃_0, 0)) of the reference rows from ``first_row`` on to ``out``, (B, rows, W_0, h_0, w_0).

    With ``half``, one product of float16 descriptors instead of three: faster, with scores off by 1e-5 and at most
    2e-4.
    """
    reference, target = halves
    tiles_y, tiles_x = -(-out.shape[1] // POINT_TILE), at.tiles[1]
    depth = patch * patch * reference.channels
    summed, stages = (64, 2) if depth < 1024 else (32, 3)  # measured on an H200: HOG's 192 and a CNN's 2048
    grid = (at.blocks[0] * at.blocks[1], tiles_y * tiles_x, out.shape[0])
    launch(
        _correlate, grid, *reference, *target, out, first_row, out.shape[1], *at.windows, *at.targets,
        tiles_x, at.blocks[1], *reference.high.shape[1:3], *target.high.shape[1:3],
        PATCH=patch, CHANNELS=reference.channels, TILE=POINT_TILE, BLOCK_Y=at.block[0], BLOCK_X=at.block[1],
        DEPTH=math.gcd(summed, depth), SPLIT=not half, CLAMP=clamp, num_warps=4, num_stages=stages,
    )  # fmt: skip


def correlate(cells0: Tensor, cells1: Tensor, geometry: Geometry, patch: int, half: bool = False) -> Tensor:
    """Return S̃_0, (B, H_0, W_0, h_0, w_0), without gradient; see :func:`correlate_into` for ``half``."""
    at = layout(geometry, patch)
    out = cells0.new_empty((cells0.shape[0], *geometry.shape(0)))
    correlate_into(out, 0, reference_and_target(cells0, cells1, at, patch), at, patch, clamp=False, half=half)
    return out


def correlate_and_pool(
    cells0: Tensor, cells1: Tensor, geometry: Geometry, patch: int, exponent: float, half: bool = False
) -> tuple[Tensor, Tensor]:
    """See :func:`deepmatching.network.operators.fused.correlate_and_pool`.

    S_0 is computed for as many rows of reference points at a time as fit into ``CHUNK_BYTES``, and pooled at once.
    """
    at = layout(geometry, patch)
    halves = reference_and_target(cells0, cells1, at, patch)
    pairs = cells0.shape[0]
    dtype = torch.float16 if half else cells0.dtype
    values = cells0.new_empty((pairs, at.rows, at.columns, *geometry.window(1)), dtype=dtype)
    switches = torch.empty_like(values, dtype=torch.uint8)
    row = 4 * at.columns * at.h * at.w
    together = max(1, min(pairs, CHUNK_BYTES // (row * at.rows)))
    rows = at.rows if together > 1 else max(POINT_TILE, CHUNK_BYTES // row // POINT_TILE * POINT_TILE)
    buffer = cells0.new_empty(together * min(rows, at.rows) * row // 4)
    for pair in range(0, pairs, together):
        some = slice(pair, pair + together)
        reference, target = (HalfCells(*(tensor[some] for tensor in cells)) for cells in halves)
        for start in range(0, at.rows, rows):
            shape = (len(reference.peak), min(rows, at.rows - start), at.columns, at.h, at.w)
            scores = buffer[: torch.Size(shape).numel()].view(shape)
            correlate_into(scores, start, (reference, target), at, patch, clamp=True, half=half)
            # Rows of one pair, or all rows of several pairs: contiguous either way.
            out = (some, slice(start, start + shape[1]))
            pool_into(scores, values[out], switches[out], geometry.pool_offset(0), geometry.pool_reach, exponent)
    return values, switches
