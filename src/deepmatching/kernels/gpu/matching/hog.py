"""HOG in four kernels, each reading its neighbourhood from the result of the one before."""

from __future__ import annotations

import math

import torch
import triton
import triton.language as tl
from torch import Tensor

from deepmatching.kernels.gpu.indexing import on_device_of

PIXELS = 128  #: pixels (or cells) of a row that one program works on


@triton.jit
def tap(position, size, W: tl.constexpr, T: tl.constexpr):
    """Weight of tap t ∈ {−2 … 2} of the Gaussian e^{−t²/2σ²} = W^{t²} at a position, 0 off the image."""
    on = (position + T >= 0) & (position + T < size)
    if T == 0:
        return tl.where(on, 1.0, 0.0)
    elif T * T == 1:
        return tl.where(on, W, 0.0)
    else:
        return tl.where(on, W * W * W * W, 0.0)


@triton.jit
def mass(position, size, W: tl.constexpr):
    """Sum of the taps inside the image, and not 0 beyond it, where nothing is stored."""
    total = tl.zeros_like(position).to(tl.float32)
    for t in tl.static_range(-2, 3):
        total += tap(position, size, W, t)
    return tl.maximum(total, 0.1)


@triton.jit
def _smooth(grey, out, h, w, W: tl.constexpr, PIXELS: tl.constexpr):
    """Smoothed grey on (h + 2) × (w + 2) pixels: one more a side, so that the gradient is 'valid'."""
    pair, y = (tl.program_id(0) // (h + 2)).to(tl.int64), tl.program_id(0) % (h + 2) - 1
    column = tl.program_id(1) * PIXELS + tl.arange(0, PIXELS)
    x = column - 1
    row = tl.zeros((PIXELS,), tl.int32) + y
    total = tl.zeros((PIXELS,), tl.float32)
    for t_y in tl.static_range(-2, 3):
        weight_y = tap(row, h, W, t_y)
        for t_x in tl.static_range(-2, 3):
            weight = weight_y * tap(x, w, W, t_x)
            value = tl.load(grey + (pair * h + y + t_y) * w + x + t_x, mask=weight > 0, other=0.0)
            total += weight * value
    total /= mass(row, h, W) * mass(x, w, W)
    tl.store(out + tl.program_id(0).to(tl.int64) * (w + 2) + column, total, mask=column < w + 2)


@triton.jit
def _orient(
    smooth, directions, out, h, w, SLOPE: tl.constexpr, W: tl.constexpr, N: tl.constexpr, PIXELS: tl.constexpr
):  # fmt: skip
    """Gradient, its positive parts along N directions, smoothed and saturated: (B, N, h, w)."""
    pair, y = (tl.program_id(0) // h).to(tl.int64), tl.program_id(0) % h
    x = tl.program_id(1) * PIXELS + tl.arange(0, PIXELS)
    n = tl.arange(0, N)
    cos, sin = tl.load(directions + 2 * n)[:, None], tl.load(directions + 2 * n + 1)[:, None]
    row = tl.zeros((PIXELS,), tl.int32) + y
    total = tl.zeros((N, PIXELS), tl.float32)
    for t_y in tl.static_range(-2, 3):
        weight_y = tap(row, h, W, t_y)
        for t_x in tl.static_range(-2, 3):
            weight = weight_y * tap(x, w, W, t_x)
            on = weight > 0
            at = smooth + (pair * (h + 2) + y + t_y + 1) * (w + 2) + x + t_x + 1
            g_x = tl.load(at + 1, mask=on, other=0.0) - tl.load(at - 1, mask=on, other=0.0)
            g_y = tl.load(at + w + 2, mask=on, other=0.0) - tl.load(at - w - 2, mask=on, other=0.0)
            total += weight[None, :] * tl.maximum(cos * g_x[None, :] + sin * g_y[None, :], 0.0)
    total /= (mass(row, h, W) * mass(x, w, W))[None, :]
    saturated = 2.0 / (1.0 + tl.exp(-SLOPE * total)) - 1.0
    at = out + ((pair * N + n[:, None]) * h + y) * w + x[None, :]
    tl.store(at, saturated, mask=(x < w)[None, :])


@triton.jit
def _pool_smoothed(oriented, out, h, w, W: tl.constexpr, STRIDE: tl.constexpr, PIXELS: tl.constexpr):
    """One orientation smoothed again and max-pooled over STRIDE × STRIDE pixels."""
    h_out, w_out = h // STRIDE, w // STRIDE
    plane, k_y = (tl.program_id(0) // h_out).to(tl.int64), tl.program_id(0) % h_out
    k_x = tl.program_id(1) * PIXELS + tl.arange(0, PIXELS)
    oriented += plane * h * w
    best = tl.full((PIXELS,), float("-inf"), tl.float32)
    for inner in range(STRIDE * STRIDE):
        y, x = k_y * STRIDE + inner // STRIDE, k_x * STRIDE + inner % STRIDE
        row = tl.zeros((PIXELS,), tl.int32) + y
        total = tl.zeros((PIXELS,), tl.float32)
        for t_y in tl.static_range(-2, 3):
            weight_y = tap(row, h, W, t_y)
            for t_x in tl.static_range(-2, 3):
                weight = weight_y * tap(x, w, W, t_x)
                total += weight * tl.load(oriented + ((y + t_y) * w + x + t_x), mask=weight > 0, other=0.0)
        best = tl.maximum(best, total / (mass(row, h, W) * mass(x, w, W)))
    tl.store(out + tl.program_id(0).to(tl.int64) * w_out + k_x, best, mask=k_x < w_out)


@triton.jit
def _normalise(pooled, out, cells, NINTH: tl.constexpr, N: tl.constexpr, PIXELS: tl.constexpr):
    """The constant channel, and every cell's vector at norm 1/4."""
    pair = tl.program_id(1).to(tl.int64)
    cell = tl.program_id(0) * PIXELS + tl.arange(0, PIXELS)
    n = tl.arange(0, N)[:, None]
    inside = cell < cells
    values = tl.load(pooled + pair * N * cells + n * cells + cell[None, :], mask=inside[None, :], other=0.0)
    norm = 4.0 * tl.sqrt(tl.sum(values * values, axis=0) + NINTH * NINTH)
    out += pair * (N + 1) * cells
    tl.store(out + n * cells + cell[None, :], values / norm[None, :], mask=inside[None, :])
    tl.store(out + N * cells + cell, NINTH / norm, mask=inside)


@torch.no_grad()
@on_device_of
def hog_cells(
    image: Tensor,
    directions: Tensor,
    stride: int,
    sigmas: tuple[float, float, float],
    slope: float,
    ninth: float,
) -> Tensor:
    """See :func:`deepmatching.network.descriptors.hog.hog_cells`."""
    batch, _, h, w = image.shape
    n = directions.shape[0]
    weight = [math.exp(-1 / (2 * sigma**2)) for sigma in sigmas]
    grey = image.mean(dim=1) * 255
    smooth = grey.new_empty((batch, h + 2, w + 2))
    oriented = grey.new_empty((batch, n, h, w))
    pooled = grey.new_empty((batch, n, h // stride, w // stride))
    cells = grey.new_empty((batch, n + 1, h // stride, w // stride))
    _smooth[(batch * (h + 2), triton.cdiv(w + 2, PIXELS))](grey, smooth, h, w, W=weight[0], PIXELS=PIXELS)
    _orient[(batch * h, triton.cdiv(w, PIXELS))](
        smooth, directions, oriented, h, w, SLOPE=slope, W=weight[1], N=n, PIXELS=PIXELS
    )
    _pool_smoothed[(batch * n * pooled.shape[2], triton.cdiv(pooled.shape[3], PIXELS))](
        oriented, pooled, h, w, W=weight[2], STRIDE=stride, PIXELS=PIXELS
    )
    area = pooled.shape[2] * pooled.shape[3]
    _normalise[(triton.cdiv(area, PIXELS), batch)](pooled, cells, area, NINTH=ninth, N=n, PIXELS=PIXELS)
    return cells
