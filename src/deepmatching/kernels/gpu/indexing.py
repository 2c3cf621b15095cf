"""What the kernels share: their launch, and the place of a program in an image or a volume.

A volume (B, H, W, h, w) is worked on by a grid of (B·H·W, blocks) programs: each has one reference point and a block of
its cells. The offset of the point in the volume has 64 bits, that of a cell within its point 32.
"""

from contextlib import nullcontext
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from deepmatching.kernels.constants import NO_CHOICE

PIXELS = 256  #: pixels that one program of :func:`launch_on_pixels` works on

NOTHING = tl.constexpr(NO_CHOICE)


def launch(kernel: Any, grid: tuple[int, ...], *arguments: Any, **constants: Any) -> None:
    """Launch on the GPU that holds the arguments, not on the current one; CPU tensors are for interpreted kernels."""
    tensor = next(value for value in arguments if isinstance(value, Tensor))
    with torch.cuda.device(tensor.device) if tensor.is_cuda else nullcontext():
        kernel[grid](*arguments, **constants)


def launch_on_pixels(kernel: Any, pixels: int, *arguments: Any, **constants: Any) -> None:
    """Launch a kernel each of whose programs works on ``PIXELS`` pixels."""
    launch(kernel, (triton.cdiv(pixels, PIXELS),), *arguments, **constants, PIXELS=PIXELS)


def launch_on_volume(kernel: Any, volume: Tensor, *arguments: Any, **constants: Any) -> None:
    """Launch a kernel each of whose programs works on a block of the cells of one point of a volume (B, H, W, h, w)."""
    points, cells = volume.shape[:3].numel(), volume.shape[3:].numel()
    block = min(512, max(32, triton.next_power_of_2(cells)))
    warps = max(1, min(4, block // 128))  # four cells a thread
    launch(kernel, (points, triton.cdiv(cells, block)), *arguments, **constants, BLOCK=block, num_warps=warps)


@triton.jit
def fetch(pointer, on):
    """Load numbers where ``on``, and 0 elsewhere."""
    return tl.load(pointer, mask=on, other=0.0)


@triton.jit
def store_planes(out, plane, values, on):
    """Store a tuple of values, each ``plane`` numbers after the one before."""
    for n in tl.static_range(len(values)):
        tl.store(out + n * plane, values[n], mask=on)


@triton.jit
def pixels_of(pixels, w, PIXELS: tl.constexpr):
    """Return this program's pixels of :func:`launch_on_pixels`: indices, rows, columns, and which exist."""
    at = tl.program_id(0) * PIXELS + tl.arange(0, PIXELS)
    return at, at // w, at % w, at < pixels


@triton.jit
def reference_point(rows, columns):
    """Return (pair, row, column) of this program's reference point; the pair as int64."""
    point = tl.program_id(0)
    row = point // columns
    return (row // rows).to(tl.int64), row % rows, point % columns


@triton.jit
def block_of_cells(h, w, BLOCK: tl.constexpr):
    """Return this program's cells of h × w: indices, rows, columns, and which exist."""
    cell = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    y, x = row_and_column(cell, w)
    return cell, y, x, cell < h * w


@triton.jit
def cells_of(pair, i, j, rows, columns, cells):
    """Return the offset of the first cell of point (i, j), int64."""
    return ((pair * rows + i) * columns + j) * cells


@triton.jit
def row_and_column(cell, w):
    """Return (cell // w, cell % w) for 0 ≤ cell < 2²⁴: an estimate in float32, put right, as division is slow."""
    row = (cell.to(tl.float32) * (1.0 / w)).to(tl.int32)
    column = cell - row * w
    row += (column >= w).to(tl.int32) - (column < 0).to(tl.int32)
    return row, cell - row * w


@triton.jit
def powered(scores, exponent):
    """Return max(S, 0)^ν."""
    positive = scores > 0
    return tl.where(positive, tl.exp2(exponent * tl.log2(tl.where(positive, scores, 1.0))), 0.0)
