"""What the kernels share: the place of a program in a volume, and its launch.

A volume (B, H, W, h, w) is worked on by a grid of (B·H·W, blocks) programs: each has one reference point and a
block of its cells, so that everything about the point is a scalar, and a cell's offset within its point fits into
32 bits while the point's offset in the volume is 64 bits wide.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import wraps
from typing import ParamSpec, TypeVar

import torch
import triton
import triton.language as tl
from torch import Tensor

from deepmatching.kernels.constants import NO_CHOICE

P = ParamSpec("P")
T = TypeVar("T")

NOTHING = tl.constexpr(NO_CHOICE)


def cells_block(cells: int) -> int:
    """Cells that one program works on, a power of two."""
    return min(512, max(32, triton.next_power_of_2(cells)))


def warps(block: int) -> int:
    """Four cells a thread."""
    return max(1, min(4, block // 128))


def volume_grid(volume: Tensor) -> tuple[int, int]:
    """(reference points, blocks of cells) of a volume (B, H, W, h, w)."""
    cells = volume.shape[-2] * volume.shape[-1]
    return volume.shape[0] * volume.shape[1] * volume.shape[2], triton.cdiv(cells, cells_block(cells))


def on_device_of(function: Callable[P, T]) -> Callable[P, T]:
    """Launch on the GPU that holds the first tensor among the arguments, not on the current one."""

    @wraps(function)
    def wrapped(*args: P.args, **kwargs: P.kwargs) -> T:
        with device_of(next(value for value in (*args, *kwargs.values()) if isinstance(value, Tensor))):
            return function(*args, **kwargs)

    return wrapped


def device_of(tensor: Tensor) -> AbstractContextManager[object]:
    """The tensor's GPU as the current one; no change for a CPU tensor (interpreted kernels)."""
    return torch.cuda.device(tensor.device) if tensor.is_cuda else nullcontext()


@triton.jit
def reference_point(rows, columns):
    """(pair, row, column) of this program's reference point; the pair as int64."""
    point = tl.program_id(0)
    row = point // columns
    return (row // rows).to(tl.int64), row % rows, point % columns


@triton.jit
def cells_of(pair, i, j, rows, columns, cells):
    """Offset of the first cell of point (i, j), int64."""
    return ((pair * rows + i) * columns + j) * cells


@triton.jit
def row_and_column(cell, w):
    """(cell // w, cell % w) for 0 ≤ cell < 2²⁴: an estimate in float32, put right; integer division is slow."""
    row = (cell.to(tl.float32) * (1.0 / w)).to(tl.int32)
    column = cell - row * w
    row += (column >= w).to(tl.int32) - (column < 0).to(tl.int32)
    return row, cell - row * w


@triton.jit
def powered(scores, exponent):
    """max(S, 0)^ν."""
    positive = scores > 0
    return tl.where(positive, tl.exp2(exponent * tl.log2(tl.where(positive, scores, 1.0))), 0.0)
