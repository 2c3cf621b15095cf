"""Smoothing by a Gaussian: rows, then columns."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from deepmatching.kernels.gpu.indexing import on_device_of

PIXELS = 256  #: pixels that one program works on


@triton.jit
def _blur(
    image, out, numbers, size, step, sharpness, factor, REACH: tl.constexpr, PIXELS: tl.constexpr
):  # fmt: skip
    """Along an axis of this ``size`` whose entries are ``step`` numbers apart; weights are e^{−sharpness t²}."""
    at = tl.program_id(0).to(tl.int64) * PIXELS + tl.arange(0, PIXELS)
    on = at < numbers
    place = ((at // step) % size).to(tl.int32)
    total, mass = tl.zeros((PIXELS,), tl.float32), 0.0
    for t in tl.static_range(-REACH, REACH + 1):
        weight = tl.exp(-sharpness * (t * t))
        there = tl.minimum(tl.maximum(place + t, 0), size - 1)
        total += weight * tl.load(image + at + (there - place) * step, mask=on, other=0.0)
        mass += weight
    tl.store(out + at, factor / mass * total, mask=on)


@torch.no_grad()
@on_device_of
def gaussian(image: Tensor, sigma: float, reach: int, factor: float = 1.0) -> Tensor:
    """See :func:`deepmatching.flow.operators.gaussian.gaussian`."""
    _, h, w = image.shape
    image = image.contiguous()
    rows, result = torch.empty_like(image), torch.empty_like(image)
    grid, sharpness = (triton.cdiv(image.numel(), PIXELS),), 1 / (2 * sigma**2)
    _blur[grid](image, rows, image.numel(), w, 1, sharpness, float(factor), REACH=reach, PIXELS=PIXELS)
    _blur[grid](rows, result, image.numel(), h, w, sharpness, 1.0, REACH=reach, PIXELS=PIXELS)
    return result
