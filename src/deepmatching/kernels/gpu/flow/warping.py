"""Warping the second image by a flow."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from deepmatching.kernels.gpu.indexing import on_device_of

PIXELS = 256  #: pixels that one program works on


@triton.jit
def _warp(
    image0, image1, flow, mean, difference, inside, pixels, w, h1, w1, CHANNELS: tl.constexpr, PIXELS: tl.constexpr
):  # fmt: skip
    at = tl.program_id(0) * PIXELS + tl.arange(0, PIXELS)
    on = at < pixels
    x = (at % w).to(tl.float32) + tl.load(flow + at, mask=on, other=0.0)
    y = (at // w).to(tl.float32) + tl.load(flow + pixels + at, mask=on, other=0.0)
    right, bottom = w1 - 1.0, h1 - 1.0
    is_inside = (x >= 0) & (y >= 0) & (x <= right) & (y <= bottom)
    tl.store(inside + at, is_inside.to(tl.float32), mask=on)
    x, y = tl.minimum(tl.maximum(x, 0.0), right), tl.minimum(tl.maximum(y, 0.0), bottom)
    j, i = x.to(tl.int32), y.to(tl.int32)
    p, q = x - j.to(tl.float32), y - i.to(tl.float32)
    k, l = tl.minimum(j + 1, w1 - 1), tl.minimum(i + 1, h1 - 1)
    for c in tl.static_range(CHANNELS):
        source = image1 + c * h1 * w1
        a, b = tl.load(source + i * w1 + j, mask=on, other=0.0), tl.load(source + i * w1 + k, mask=on, other=0.0)
        d, e = tl.load(source + l * w1 + j, mask=on, other=0.0), tl.load(source + l * w1 + k, mask=on, other=0.0)
        above, below = a + p * (b - a), d + p * (e - d)
        warped = above + q * (below - above)
        first = tl.load(image0 + c * pixels + at, mask=on, other=0.0)
        tl.store(mean + c * pixels + at, 0.5 * (first + warped), mask=on)
        tl.store(difference + c * pixels + at, warped - first, mask=on)


@torch.no_grad()
@on_device_of
def warp(image0: Tensor, image1: Tensor, flow: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """See :func:`deepmatching.flow.operators.warping.warp`."""
    channels, h, w = image0.shape
    mean, difference = (torch.empty((channels, h, w), device=flow.device) for _ in range(2))
    inside = torch.empty((h, w), device=flow.device)
    _warp[(triton.cdiv(h * w, PIXELS),)](
        image0.contiguous(), image1.contiguous(), flow.contiguous(), mean, difference, inside,
        h * w, w, *image1.shape[1:], CHANNELS=channels, PIXELS=PIXELS,
    )  # fmt: skip
    return mean, difference, inside
