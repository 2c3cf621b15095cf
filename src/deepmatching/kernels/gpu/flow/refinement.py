"""One step of variational refinement: warping, the linear system, and its relaxation.

The relaxation takes a launch for each half-iteration. These alternate between the pixels where row and column add up to
an even and to an odd number, so that no pixel reads another one that is written. The even and the odd columns of a row
are stored apart: pixel (x, y) of a plane (H, 2, n) is at [y, x % 2, x // 2]. All that a half-iteration reads then lies
side by side.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from deepmatching.kernels.constants import EPSILON, ZETA
from deepmatching.kernels.gpu.indexing import launch_on_pixels

ROUND = tl.constexpr(ZETA**2)
TINY = tl.constexpr(EPSILON**2)


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


def warp(image0: Tensor, image1: Tensor, flow: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """See :func:`deepmatching.flow.operators.refinement_step.warp`."""
    channels, h, w = image0.shape
    mean, difference = (torch.empty((channels, h, w), device=flow.device) for _ in range(2))
    inside = torch.empty((h, w), device=flow.device)
    launch_on_pixels(
        _warp, h * w, image0.contiguous(), image1.contiguous(), flow.contiguous(), mean, difference, inside,
        h * w, w, *image1.shape[1:], CHANNELS=channels,
    )  # fmt: skip
    return mean, difference, inside


@triton.jit
def slope(line, place, last, step, on):
    """Take (1, −8, 0, 8, −1) / 12 along a line whose numbers are ``step`` apart; borders are repeated."""
    a = tl.load(line + tl.maximum(place - 2, 0) * step, mask=on, other=0.0)
    b = tl.load(line + tl.maximum(place - 1, 0) * step, mask=on, other=0.0)
    d = tl.load(line + tl.minimum(place + 1, last) * step, mask=on, other=0.0)
    e = tl.load(line + tl.minimum(place + 2, last) * step, mask=on, other=0.0)
    return (d - b) * (8.0 / 12.0) - (e - a) * (1.0 / 12.0)


@triton.jit
def slopes(plane, row, column, h, w, on):
    """Return the derivatives of a plane along x and y."""
    return slope(plane + row * w, column, w - 1, 1, on), slope(plane + column, row, h - 1, w, on)


@triton.jit
def _gradients(mean, gradients, h, w, CHANNELS: tl.constexpr, PIXELS: tl.constexpr):
    """Take the first derivatives of all channels: (2 · CHANNELS, H, W)."""
    at = tl.program_id(0) * PIXELS + tl.arange(0, PIXELS)
    on = at < h * w
    row, column = at // w, at % w
    for c in tl.static_range(CHANNELS):
        x, y = slopes(mean + c * h * w, row, column, h, w, on)
        tl.store(gradients + 2 * c * h * w + at, x, mask=on)
        tl.store(gradients + (2 * c + 1) * h * w + at, y, mask=on)


@triton.jit
def _smoothness(flow, smoothness, across, along, h, w, PIXELS: tl.constexpr):
    """Store s between column x and x + 1, and between row y and y + 1."""
    at = tl.program_id(0) * PIXELS + tl.arange(0, PIXELS)
    on = at < h * w
    row, column = at // w, at % w
    has_right, has_below = on & (column + 1 < w), on & (row + 1 < h)
    up, down = tl.maximum(row - 1, 0), tl.minimum(row + 1, h - 1)
    left, right = tl.maximum(column - 1, 0), tl.minimum(column + 1, w - 1)
    squares_x, squares_y = tl.zeros((PIXELS,), tl.float32), tl.zeros((PIXELS,), tl.float32)
    for c in tl.static_range(2):
        f = flow + c * h * w
        own = tl.load(f + at, mask=on, other=0.0)
        beside = tl.load(f + row * w + right, mask=on, other=0.0)
        below = tl.load(f + down * w + column, mask=on, other=0.0)
        diagonal = tl.load(f + down * w + right, mask=on, other=0.0)
        above = tl.load(f + up * w + column, mask=on, other=0.0)
        above_right = tl.load(f + up * w + right, mask=on, other=0.0)
        slope = 0.25 * ((below - above) + (diagonal - above_right))
        squares_x += (beside - own) * (beside - own) + slope * slope
        before = tl.load(f + row * w + left, mask=on, other=0.0)
        below_left = tl.load(f + down * w + left, mask=on, other=0.0)
        slope = 0.25 * ((beside - before) + (diagonal - below_left))
        squares_y += (below - own) * (below - own) + slope * slope
    own = tl.load(smoothness + at, mask=on, other=0.0)
    beside = tl.load(smoothness + row * w + right, mask=on, other=0.0)
    below = tl.load(smoothness + down * w + column, mask=on, other=0.0)
    tl.store(across + at, tl.where(has_right, 0.5 * (own + beside) / tl.sqrt(squares_x + TINY), 0.0), mask=on)
    tl.store(along + at, tl.where(has_below, 0.5 * (own + below) / tl.sqrt(squares_y + TINY), 0.0), mask=on)


@triton.jit
def _system(
    gradients, difference, inside, across, along, flow, start, system,
    gamma, hold, h, w, CHANNELS: tl.constexpr, PIXELS: tl.constexpr
):  # fmt: skip
    """Fill in the nine planes of the relaxation: M⁻¹ (3), b (2), s to the right and below, and d = 0 (2)."""
    at = tl.program_id(0) * PIXELS + tl.arange(0, PIXELS)
    pixels = h * w
    on = at < pixels
    row, column = at // w, at % w
    zero = tl.zeros((PIXELS,), tl.float32)
    a11, a12, a22, b1, b2, error = zero, zero, zero, zero, zero, zero
    for c in tl.static_range(CHANNELS):
        xx, xy = slopes(gradients + 2 * c * pixels, row, column, h, w, on)
        yy = slope(gradients + (2 * c + 1) * pixels + column, row, h - 1, w, on)
        xt, yt = slopes(difference + c * pixels, row, column, h, w, on)
        norm = 1.0 / (xx * xx + xy * xy + ROUND)
        a11 += norm * xx * xx
        a12 += norm * xx * xy
        a22 += norm * xy * xy
        b1 -= norm * xx * xt
        b2 -= norm * xy * xt
        error += norm * xt * xt
        norm = 1.0 / (xy * xy + yy * yy + ROUND)
        a11 += norm * xy * xy
        a12 += norm * xy * yy
        a22 += norm * yy * yy
        b1 -= norm * xy * yt
        b2 -= norm * yy * yt
        error += norm * yt * yt
    is_inside = tl.load(inside + at, mask=on, other=0.0)
    scale = gamma / CHANNELS * is_inside / tl.sqrt(3.0 / CHANNELS * error + TINY)
    pull = hold * (1.0 - is_inside)
    s_right, s_down = tl.load(across + at, mask=on, other=0.0), tl.load(along + at, mask=on, other=0.0)
    has_left, has_up = on & (column > 0), on & (row > 0)
    s_left, s_up = tl.load(across + at - 1, mask=has_left, other=0.0), tl.load(along + at - w, mask=has_up, other=0.0)
    has_right, has_down = on & (column + 1 < w), on & (row + 1 < h)
    half = (w + 1) // 2
    plane = 2 * h * half
    target = system + (2 * row + column % 2) * half + column // 2
    for c in tl.static_range(2):
        f = flow + c * pixels + at
        own = tl.load(f, mask=on, other=0.0)
        side = scale * b1 if c == 0 else scale * b2
        side += pull * (tl.load(start + c * pixels + at, mask=on, other=0.0) - own)
        side += s_right * (tl.load(f + 1, mask=has_right, other=0.0) - own)
        side += s_left * (tl.load(f - 1, mask=has_left, other=0.0) - own)
        side += s_down * (tl.load(f + w, mask=has_down, other=0.0) - own)
        side += s_up * (tl.load(f - w, mask=has_up, other=0.0) - own)
        tl.store(target + (3 + c) * plane, side, mask=on)
    diagonal = s_right + s_left + s_down + s_up + pull
    a11, a12, a22 = scale * a11 + diagonal, scale * a12, scale * a22 + diagonal
    determinant = a11 * a22 - a12 * a12
    factor = tl.where(determinant > 0, 1.0 / determinant, 0.0)
    tl.store(target, a22 * factor, mask=on)
    tl.store(target + plane, -a12 * factor, mask=on)
    tl.store(target + 2 * plane, a11 * factor, mask=on)
    tl.store(target + 5 * plane, s_right, mask=on)
    tl.store(target + 6 * plane, s_down, mask=on)
    tl.store(target + 7 * plane, zero, mask=on)
    tl.store(target + 8 * plane, zero, mask=on)


@triton.jit
def _relax(system, omega, h, w, odd, PIXELS: tl.constexpr):
    """Do half an iteration: the even or the odd pixels."""
    half = (w + 1) // 2
    plane = 2 * h * half
    n = tl.program_id(0) * PIXELS + tl.arange(0, PIXELS)
    row, place = n // half, n % half
    side = (row + odd) % 2
    column = 2 * place + side
    on = (row < h) & (column < w)
    at = (2 * row + side) * half + place
    # Beside an even column are the odd ones at place − 1 and place, beside an odd column the even ones one further.
    left = (2 * row + 1 - side) * half + place - 1 + side
    right, up, down = left + 1, at - 2 * half, at + 2 * half
    has_left, has_right = on & (column > 0), on & (column + 1 < w)
    has_up, has_down = on & (row > 0), on & (row + 1 < h)
    across, along = system + 5 * plane, system + 6 * plane
    s_right, s_down = tl.load(across + at, mask=on, other=0.0), tl.load(along + at, mask=on, other=0.0)
    s_left, s_up = tl.load(across + left, mask=has_left, other=0.0), tl.load(along + up, mask=has_up, other=0.0)
    u, v = system + 7 * plane, system + 8 * plane
    sum_u = tl.load(system + 3 * plane + at, mask=on, other=0.0)
    sum_v = tl.load(system + 4 * plane + at, mask=on, other=0.0)
    sum_u += s_left * tl.load(u + left, mask=has_left, other=0.0)
    sum_v += s_left * tl.load(v + left, mask=has_left, other=0.0)
    sum_u += s_right * tl.load(u + right, mask=has_right, other=0.0)
    sum_v += s_right * tl.load(v + right, mask=has_right, other=0.0)
    sum_u += s_up * tl.load(u + up, mask=has_up, other=0.0)
    sum_v += s_up * tl.load(v + up, mask=has_up, other=0.0)
    sum_u += s_down * tl.load(u + down, mask=has_down, other=0.0)
    sum_v += s_down * tl.load(v + down, mask=has_down, other=0.0)
    i11, i12 = tl.load(system + at, mask=on, other=0.0), tl.load(system + plane + at, mask=on, other=0.0)
    i22 = tl.load(system + 2 * plane + at, mask=on, other=0.0)
    old_u, old_v = tl.load(u + at, mask=on, other=0.0), tl.load(v + at, mask=on, other=0.0)
    tl.store(u + at, old_u + omega * (i11 * sum_u + i12 * sum_v - old_u), mask=on)
    tl.store(v + at, old_v + omega * (i12 * sum_u + i22 * sum_v - old_v), mask=on)


@triton.jit
def _add(system, flow, h, w, PIXELS: tl.constexpr):
    """Add d to the flow."""
    at = tl.program_id(0) * PIXELS + tl.arange(0, PIXELS)
    pixels = h * w
    on = at < pixels
    row, column = at // w, at % w
    half = (w + 1) // 2
    source = system + (2 * row + column % 2) * half + column // 2
    for c in tl.static_range(2):
        value = tl.load(flow + c * pixels + at, mask=on, other=0.0)
        value += tl.load(source + (7 + c) * (2 * h * half), mask=on, other=0.0)
        tl.store(flow + c * pixels + at, value, mask=on)


def refinement_step(
    flow: Tensor,
    start: Tensor,
    image0: Tensor,
    image1: Tensor,
    smoothness: Tensor,
    gamma: float,
    hold: float,
    iterations: int,
    omega: float,
) -> None:
    """See :func:`deepmatching.flow.operators.refinement_step.refinement_step`."""
    channels, h, w = image0.shape
    mean, difference, inside = warp(image0, image1, flow)
    half = (w + 1) // 2
    gradients, (across, along) = flow.new_empty((2 * channels, h, w)), flow.new_empty((2, h, w))
    system = flow.new_empty((9, h, 2, half))
    now = flow.contiguous()
    launch_on_pixels(_gradients, h * w, mean, gradients, h, w, CHANNELS=channels)
    launch_on_pixels(_smoothness, h * w, now, smoothness.contiguous(), across, along, h, w)
    launch_on_pixels(
        _system, h * w, gradients, difference, inside, across, along, now, start.contiguous(), system,
        float(gamma), float(hold), h, w, CHANNELS=channels,
    )  # fmt: skip
    for n in range(2 * iterations):
        launch_on_pixels(_relax, h * half, system, float(omega), h, w, n % 2)
    launch_on_pixels(_add, h * w, system, now, h, w)
    if now is not flow:
        flow.copy_(now)
