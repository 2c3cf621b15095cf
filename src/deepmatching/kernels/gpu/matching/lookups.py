"""S_0 at any displacement of every point of a grid."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from deepmatching.kernels.gpu.indexing import on_device_of

POINTS, WARPS = 16, 4  #: points of one program, and its warps
CHANNELS = 64  #: channels that are multiplied at a time


@triton.jit
def _lookup(
    vectors, cells, places, out, factor, points, targets, channels, height, width,
    BLOCKS: tl.constexpr, POINTS: tl.constexpr, CHANNELS: tl.constexpr
):  # fmt: skip
    """One target of some points of a pair: the four cells around it, weighted, times the vectors of the points."""
    n = tl.program_id(0) * POINTS + tl.arange(0, POINTS)
    k, b = tl.program_id(1), tl.program_id(2).to(tl.int64)
    inside = n < points
    at = ((b * targets + k) * points + n) * 2
    x = tl.load(places + at, mask=inside, other=0.0) * factor
    y = tl.load(places + at + 1, mask=inside, other=0.0) * factor
    x = tl.minimum(tl.maximum(x, 0.0), width - 1.0)
    y = tl.minimum(tl.maximum(y, 0.0), height - 1.0)
    left, top = tl.floor(x).to(tl.int32), tl.floor(y).to(tl.int32)
    right, low = tl.minimum(left + 1, width - 1), tl.minimum(top + 1, height - 1)
    x, y = x - left, y - top
    total = tl.zeros((POINTS,), tl.float32)
    for block in range(BLOCKS):
        c = block * CHANNELS + tl.arange(0, CHANNELS)
        mask = inside[:, None] & (c < channels)[None, :]
        own = tl.load(vectors + (b * points + n)[:, None] * channels + c[None, :], mask=mask, other=0.0)
        base = cells + b * height * width * channels + c[None, :]
        upper_left = tl.load(base + ((top * width + left) * channels)[:, None], mask=mask, other=0.0)
        upper_right = tl.load(base + ((top * width + right) * channels)[:, None], mask=mask, other=0.0)
        lower_left = tl.load(base + ((low * width + left) * channels)[:, None], mask=mask, other=0.0)
        lower_right = tl.load(base + ((low * width + right) * channels)[:, None], mask=mask, other=0.0)
        upper = upper_left + (upper_right - upper_left) * x[:, None]
        lower = lower_left + (lower_right - lower_left) * x[:, None]
        total += tl.sum(own * (upper + (lower - upper) * y[:, None]), axis=1)
    tl.store(out + (b * targets + k) * points + n, tl.maximum(total, 0.0), mask=inside)


@torch.no_grad()
@on_device_of
def lookup(vectors0: Tensor, cells1: Tensor, places: Tensor, gamma: int) -> Tensor:
    """See :func:`deepmatching.network.operators.lookups.lookup`."""
    (B, C, H, W), (rows, columns) = vectors0.shape, cells1.shape[2:]
    vectors, cells = (t.permute(0, 2, 3, 1).contiguous() for t in (vectors0, cells1))  # channels of one place together
    K = places.shape[1]
    out = torch.empty((B, K, H, W), dtype=vectors.dtype, device=vectors.device)
    block = min(CHANNELS, max(16, triton.next_power_of_2(C)))
    _lookup[(triton.cdiv(H * W, POINTS), K, B)](
        vectors, cells, places.contiguous(), out, 1.0 / gamma, H * W, K, C, rows, columns,
        BLOCKS=triton.cdiv(C, block), POINTS=POINTS, CHANNELS=block, num_warps=WARPS,
    )  # fmt: skip
    return out
