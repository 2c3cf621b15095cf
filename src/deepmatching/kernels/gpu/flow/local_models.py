"""Local models: one program fits the model of one seed, or moves a block of pixels. Sums are in float64."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from deepmatching.kernels.constants import OWN_WEIGHT, WIDE_RIDGE
from deepmatching.kernels.gpu.indexing import fetch, launch, launch_on_pixels, pixels_of, store_planes

OWN = tl.constexpr(OWN_WEIGHT)
CALM = tl.constexpr(WIDE_RIDGE)


@triton.jit
def slopes_and_shift(dx, dy, du, dv, weight, pull_xu, pull_xv, pull_yu, pull_yv, ridge):
    """Return A and b of the weighted fit whose ridge pulls A towards the given one, by elimination."""
    w = weight * weight
    xx, xy, yy = tl.sum(w * dx * dx) + ridge, tl.sum(w * dx * dy), tl.sum(w * dy * dy) + ridge
    x, y, one = tl.sum(w * dx), tl.sum(w * dy), tl.sum(w)
    xu, xv = tl.sum(w * dx * du) + ridge * pull_xu, tl.sum(w * dx * dv) + ridge * pull_xv
    yu, yv = tl.sum(w * dy * du) + ridge * pull_yu, tl.sum(w * dy * dv) + ridge * pull_yv
    u, v = tl.sum(w * du), tl.sum(w * dv)
    factor = xy / xx
    yy, y1, yu, yv = yy - factor * xy, y - factor * x, yu - factor * xu, yv - factor * xv
    factor = x / xx
    one, u, v = one - factor * x, u - factor * xu, v - factor * xv
    factor = y1 / yy
    one, u, v = one - factor * y1, u - factor * yu, v - factor * yv
    b_u, b_v = u / one, v / one
    a_yu, a_yv = (yu - y1 * b_u) / yy, (yv - y1 * b_v) / yy
    a_xu, a_xv = (xu - xy * a_yu - x * b_u) / xx, (xv - xy * a_yv - x * b_v) / xx
    return a_xu, a_xv, a_yu, a_yv, b_u, b_v


@triton.jit
def _fit(index, weights, points, values, models, spread, ridge, wide, number, WIDE: tl.constexpr, BLOCK: tl.constexpr):
    s = tl.program_id(0).to(tl.int64)
    n = tl.arange(0, BLOCK)
    at = s * number + n
    j = tl.load(index + at, mask=n < number, other=-1)
    there = j >= 0
    weight = tl.where(there, fetch(weights + at, n < number), 0.0)
    weight = tl.where(n == 0, OWN * weight, weight)
    u, v = tl.load(values + 2 * s), tl.load(values + 2 * s + 1)
    dx = tl.where(there, fetch(points + 2 * j, there) - tl.load(points + 2 * s), 0.0)
    dy = tl.where(there, fetch(points + 2 * j + 1, there) - tl.load(points + 2 * s + 1), 0.0)
    du = tl.where(there, fetch(values + 2 * j, there) - u, 0.0)
    dv = tl.where(there, fetch(values + 2 * j + 1, there) - v, 0.0)
    zero = u * 0.0
    a_xu, a_xv, a_yu, a_yv = zero, zero, zero, zero
    if WIDE:
        some = weight > 0
        flatter = tl.where(some, tl.exp(wide * tl.log(tl.where(some, weight, 1.0))), 0.0)
        a_xu, a_xv, a_yu, a_yv, b_u, b_v = slopes_and_shift(dx, dy, du, dv, flatter, zero, zero, zero, zero, CALM)
    a_xu, a_xv, a_yu, a_yv, b_u, b_v = slopes_and_shift(dx, dy, du, dv, weight, a_xu, a_xv, a_yu, a_yv, ridge)
    e_u, e_v = du - (a_xu * dx + a_yu * dy + b_u), dv - (a_xv * dx + a_yv * dy + b_v)
    tl.store(spread + s, tl.sum(weight * tl.sqrt(e_u * e_u + e_v * e_v)) / tl.sum(weight))
    store_planes(models + 6 * s, 1, (a_xu, a_xv, a_yu, a_yv, u + b_u, v + b_v), None)


@triton.jit
def _average(index, weights, values, means, number, BLOCK: tl.constexpr):
    s = tl.program_id(0).to(tl.int64)
    n = tl.arange(0, BLOCK)
    j = tl.load(index + s * number + n, mask=n < number, other=-1)
    there = j >= 0
    weight = fetch(weights + s * number + n, there)
    total = tl.sum(weight)
    for c in tl.static_range(2):
        own = tl.load(values + 2 * s + c)
        # Differences to the seed's own value: equal values give exactly that value.
        difference = tl.where(there, fetch(values + 2 * j + c, there) - own, 0.0)
        tl.store(means + 2 * s + c, own + tl.sum(weight * difference) / total)


def weighted_means(index: Tensor, weights: Tensor, values: Tensor) -> Tensor:
    """See :func:`deepmatching.flow.operators.local_models.weighted_means`."""
    seeds, number = index.shape
    means = torch.empty_like(values, memory_format=torch.contiguous_format)
    launch(
        _average, (seeds,), index.contiguous(), weights.contiguous(), values.contiguous(), means, number,
        BLOCK=triton.next_power_of_2(number), num_warps=1,
    )  # fmt: skip
    return means


def affine_models(
    index: Tensor, weights: Tensor, points: Tensor, values: Tensor, ridge: float, wide: float = 0.0
) -> tuple[Tensor, Tensor]:
    """See :func:`deepmatching.flow.operators.local_models.affine_models`."""
    seeds, number = index.shape
    models, spread = points.new_empty(seeds, 3, 2), points.new_empty(seeds)
    block = triton.next_power_of_2(number)
    tensors = (tensor.contiguous() for tensor in (index, weights, points, values))
    launch(
        _fit, (seeds,), *tensors, models, spread, float(ridge), float(wide), number,
        WIDE=wide > 0, BLOCK=block, num_warps=max(1, min(8, block // 64)),
    )  # fmt: skip
    return models, spread


@triton.jit
def _paint(label, points, models, flow, pixels, w, PIXELS: tl.constexpr):
    at, row, column, inside = pixels_of(pixels, w, PIXELS)
    s = fetch(label + at, inside)
    dx = column.to(tl.float64) - fetch(points + 2 * s, inside)
    dy = row.to(tl.float64) - fetch(points + 2 * s + 1, inside)
    for c in tl.static_range(2):
        a_x, a_y = fetch(models + 6 * s + c, inside), fetch(models + 6 * s + 2 + c, inside)
        b = fetch(models + 6 * s + 4 + c, inside)
        tl.store(flow + 2 * at + c, (a_x * dx + a_y * dy + b).to(tl.float32), mask=inside)


def paint(label: Tensor, points: Tensor, models: Tensor) -> Tensor:
    """See :func:`deepmatching.flow.operators.local_models.paint`."""
    flow = torch.empty((*label.shape, 2), dtype=torch.float32, device=label.device)
    tensors = (label.contiguous(), points.contiguous(), models.contiguous(), flow)
    launch_on_pixels(_paint, label.numel(), *tensors, label.numel(), label.shape[1])
    return flow
