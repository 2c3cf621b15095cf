"""Descriptors as sums of two halves, so that tensor cores compute scores to float32's accuracy.

A float32 number x is split into x ≈ s⁻¹ (x_hi + x_lo), both float16, with s a power of two that brings the largest
value of an image near the top of float16's range. x_hi + x_lo keeps 22 bits, and

    ⟨x, y⟩ ≈ s⁻² (⟨x_hi, y_hi⟩ + ⟨x_hi, y_lo⟩ + ⟨x_lo, y_hi⟩),

accumulated in float32, is as good as a float32 product: what is left out is below 2⁻²² |x||y|.

The cells lie in memory as (row, column, channel), with zeros around the image as far as any window looks. A row of a
patch is then one contiguous run of patch · channels numbers, and no load needs a mask.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from deepmatching.kernels.gpu.indexing import launch


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
    """e such that 2^e · peak lies in [2¹³, 2¹⁴)."""
    exponent = ((peak.to(tl.int32, bitcast=True) >> 23) & 255) - 127
    return 13 - tl.minimum(tl.maximum(exponent, -50), 100)


@triton.jit
def power_of_two(exponent):
    """2^exponent as float32, for −127 < exponent < 128."""
    return ((exponent + 127) << 23).to(tl.float32, bitcast=True)


@triton.jit
def split(scaled):
    """x as float16 + float16."""
    high = scaled.to(tl.float16)
    return high, (scaled - high.to(tl.float32)).to(tl.float16)


@triton.jit
def _split_cells(
    cells, peak, high, low, channels, h, w, stride_b, stride_c, stride_y, stride_x, first_y, first_x, rows, columns,
    PADDED: tl.constexpr, COLUMNS: tl.constexpr, CHANNELS: tl.constexpr
):  # fmt: skip
    """One row of the padded map: cell (0, 0) of the result is cell (first_y, first_x) of the image; 0 off it."""
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
        x32 = tl.load(source[:, None] + (channel * stride_c)[None, :], mask=read, other=0.0)
        x_high, x_low = split(x32 * scale)
        write = (column < columns)[:, None] & (channel < PADDED)[None, :]
        tl.store(high + out[:, None] + channel[None, :], x_high, mask=write)
        tl.store(low + out[:, None] + channel[None, :], x_low, mask=write)


def padded_channels(channels: int, patch: int) -> int:
    """Channels such that cells are loaded 8 or 16 bytes at a time and patch² · channels is a multiple of 16."""
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
