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
from deepmatching.kernels.gpu.indexing import fetch, launch_on_pixels, pixels_of, store_planes

ROUND = tl.constexpr(ZETA**2)
TINY = tl.constexpr(EPSILON**2)


@triton.jit
def _warp(
    image0, image1, flow, mean, difference, inside, pixels, w, h1, w1, CHANNELS: tl.constexpr, PIXELS: tl.constexpr
):  # fmt: skip
    at, row, column, on = pixels_of(pixels, w, PIXELS)
    x, y = column.to(tl.float32) + fetch(flow + at, on), row.to(tl.float32) + fetch(flow + pixels + at, on)
    right, bottom = w1 - 1.0, h1 - 1.0
    is_inside = (x >= 0) & (y >= 0) & (x <= right) & (y <= bottom)
    tl.store(inside + at, is_inside.to(tl.float32), mask=on)
    x, y = tl.minimum(tl.maximum(x, 0.0), right), tl.minimum(tl.maximum(y, 0.0), bottom)
    j, i = x.to(tl.int32), y.to(tl.int32)
    p, q = x - j.to(tl.float32), y - i.to(tl.float32)
    k, l = tl.minimum(j + 1, w1 - 1), tl.minimum(i + 1, h1 - 1)
    for c in tl.static_range(CHANNELS):
        source = image1 + c * h1 * w1
        a, b = fetch(source + i * w1 + j, on), fetch(source + i * w1 + k, on)
        d, e = fetch(source + l * w1 + j, on), fetch(source + l * w1 + k, on)
        above, below = a + p * (b - a), d + p * (e - d)
        warped = above + q * (below - above)
        first = fetch(image0 + c * pixels + at, on)
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
    a = fetch(line + tl.maximum(place - 2, 0) * step, on)
    b = fetch(line + tl.maximum(place - 1, 0) * step, on)
    d = fetch(line + tl.minimum(place + 1, last) * step, on)
    e = fetch(line + tl.minimum(place + 2, last) * step, on)
    return (d - b) * (8.0 / 12.0) - (e - a) * (1.0 / 12.0)


@triton.jit
def slopes(plane, row, column, h, w, on):
    """Return the derivatives of a plane along x and y."""
    return slope(plane + row * w, column, w - 1, 1, on), slope(plane + column, row, h - 1, w, on)


@triton.jit
def _gradients(mean, gradients, h, w, CHANNELS: tl.constexpr, PIXELS: tl.constexpr):
    """Take the first derivatives of all channels: (2 · CHANNELS, H, W)."""
    at, row, column, on = pixels_of(h * w, w, PIXELS)
    for c in tl.static_range(CHANNELS):
        x, y = slopes(mean + c * h * w, row, column, h, w, on)
        store_planes(gradients + 2 * c * h * w + at, h * w, (x, y), on)


@triton.jit
def _smoothness(flow, smoothness, across, along, h, w, PIXELS: tl.constexpr):
    """Store s between column x and x + 1, and between row y and y + 1."""
    at, row, column, on = pixels_of(h * w, w, PIXELS)
    has_right, has_below = on & (column + 1 < w), on & (row + 1 < h)
    up, down = tl.maximum(row - 1, 0), tl.minimum(row + 1, h - 1)
    left, right = tl.maximum(column - 1, 0), tl.minimum(column + 1, w - 1)
    squares_x, squares_y = tl.zeros((PIXELS,), tl.float32), tl.zeros((PIXELS,), tl.float32)
    for c in tl.static_range(2):
        f = flow + c * h * w
        own, beside = fetch(f + at, on), fetch(f + row * w + right, on)
        below, diagonal = fetch(f + down * w + column, on), fetch(f + down * w + right, on)
        above, above_right = fetch(f + up * w + column, on), fetch(f + up * w + right, on)
        slope = 0.25 * ((below - above) + (diagonal - above_right))
        squares_x += (beside - own) * (beside - own) + slope * slope
        before, below_left = fetch(f + row * w + left, on), fetch(f + down * w + left, on)
        slope = 0.25 * ((beside - before) + (diagonal - below_left))
        squares_y += (below - own) * (below - own) + slope * slope
    own, beside = fetch(smoothness + at, on), fetch(smoothness + row * w + right, on)
    below = fetch(smoothness + down * w + column, on)
    tl.store(across + at, tl.where(has_right, 0.5 * (own + beside) / tl.sqrt(squares_x + TINY), 0.0), mask=on)
    tl.store(along + at, tl.where(has_below, 0.5 * (own + below) / tl.sqrt(squares_y + TINY), 0.0), mask=on)


@triton.jit
def with_equation(p, q, t, a11, a12, a22, b1, b2, error):
    """Add the normal equations of p du + q dv + t = 0, with the weight 1 / (p² + q² + ζ²), and its squared error."""
    norm = 1.0 / (p * p + q * q + ROUND)
    a11, a12, a22 = a11 + norm * p * p, a12 + norm * p * q, a22 + norm * q * q
    return a11, a12, a22, b1 - norm * p * t, b2 - norm * q * t, error + norm * t * t


@triton.jit
def _system(
    gradients, difference, inside, across, along, flow, start, system,
    gamma, hold, h, w, CHANNELS: tl.constexpr, PIXELS: tl.constexpr
):  # fmt: skip
    """Fill in the nine planes of the relaxation: M⁻¹ (3), b (2), s to the right and below, and d = 0 (2)."""
    pixels = h * w
    at, row, column, on = pixels_of(pixels, w, PIXELS)
    zero = tl.zeros((PIXELS,), tl.float32)
    a11, a12, a22, b1, b2, error = zero, zero, zero, zero, zero, zero
    for c in tl.static_range(CHANNELS):
        xx, xy = slopes(gradients + 2 * c * pixels, row, column, h, w, on)
        yy = slope(gradients + (2 * c + 1) * pixels + column, row, h - 1, w, on)
        xt, yt = slopes(difference + c * pixels, row, column, h, w, on)
        a11, a12, a22, b1, b2, error = with_equation(xx, xy, xt, a11, a12, a22, b1, b2, error)
        a11, a12, a22, b1, b2, error = with_equation(xy, yy, yt, a11, a12, a22, b1, b2, error)
    is_inside = fetch(inside + at, on)
    scale = gamma / CHANNELS * is_inside / tl.sqrt(3.0 / CHANNELS * error + TINY)
    pull = hold * (1.0 - is_inside)
    s_right, s_down = fetch(across + at, on), fetch(along + at, on)
    has_left, has_up = on & (column > 0), on & (row > 0)
    s_left, s_up = fetch(across + at - 1, has_left), fetch(along + at - w, has_up)
    has_right, has_down = on & (column + 1 < w), on & (row + 1 < h)
    half = (w + 1) // 2
    plane = 2 * h * half
    target = system + (2 * row + column % 2) * half + column // 2
    for c in tl.static_range(2):
        f = flow + c * pixels + at
        own = fetch(f, on)
        side = scale * b1 if c == 0 else scale * b2
        side += pull * (fetch(start + c * pixels + at, on) - own)
        side = side + s_right * (fetch(f + 1, has_right) - own) + s_left * (fetch(f - 1, has_left) - own)
        side = side + s_down * (fetch(f + w, has_down) - own) + s_up * (fetch(f - w, has_up) - own)
        tl.store(target + (3 + c) * plane, side, mask=on)
    diagonal = s_right + s_left + s_down + s_up + pull
    a11, a12, a22 = scale * a11 + diagonal, scale * a12, scale * a22 + diagonal
    determinant = a11 * a22 - a12 * a12
    factor = tl.where(determinant > 0, 1.0 / determinant, 0.0)
    store_planes(target, plane, (a22 * factor, -a12 * factor, a11 * factor), on)
    store_planes(target + 5 * plane, plane, (s_right, s_down, zero, zero), on)


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
    s_right, s_down = fetch(across + at, on), fetch(along + at, on)
    s_left, s_up = fetch(across + left, has_left), fetch(along + up, has_up)
    u, v = system + 7 * plane, system + 8 * plane
    sum_u, sum_v = fetch(system + 3 * plane + at, on), fetch(system + 4 * plane + at, on)
    sum_u = sum_u + s_left * fetch(u + left, has_left) + s_right * fetch(u + right, has_right)
    sum_v = sum_v + s_left * fetch(v + left, has_left) + s_right * fetch(v + right, has_right)
    sum_u = sum_u + s_up * fetch(u + up, has_up) + s_down * fetch(u + down, has_down)
    sum_v = sum_v + s_up * fetch(v + up, has_up) + s_down * fetch(v + down, has_down)
    i11, i12 = fetch(system + at, on), fetch(system + plane + at, on)
    i22 = fetch(system + 2 * plane + at, on)
    old_u, old_v = fetch(u + at, on), fetch(v + at, on)
    tl.store(u + at, old_u + omega * (i11 * sum_u + i12 * sum_v - old_u), mask=on)
    tl.store(v + at, old_v + omega * (i12 * sum_u + i22 * sum_v - old_v), mask=on)


@triton.jit
def _add(system, flow, h, w, PIXELS: tl.constexpr):
    """Add d to the flow."""
    pixels = h * w
    at, row, column, on = pixels_of(pixels, w, PIXELS)
    half = (w + 1) // 2
    source = system + (2 * row + column % 2) * half + column // 2
    for c in tl.static_range(2):
        value = fetch(flow + c * pixels + at, on)
        value += fetch(source + (7 + c) * (2 * h * half), on)
        tl.store(flow + c * pixels + at, value, mask=on)


def refinement_step(
    flow: Tensor, start: Tensor, image0: Tensor, image1: Tensor, smoothness: Tensor,
    gamma: float, hold: float, iterations: int, omega: float,
) -> None:  # fmt: skip
    """See :func:`deepmatching.flow.operators.refinement_step.refinement_step`."""
    channels, h, w = image0.shape
    mean, difference, inside = warp(image0, image1, flow)
    gradients, (across, along), half = flow.new_empty((2 * channels, h, w)), flow.new_empty((2, h, w)), (w + 1) // 2
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
