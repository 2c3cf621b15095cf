"""How much there is to see at each pixel: colours, gradients and eigenvalues, with Gaussians between them."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from deepmatching.kernels.constants import LAB_REACH, RGB_TO_XYZ, TENSOR_REACH, WHITE_XYZ
from deepmatching.kernels.gpu.indexing import launch_on_pixels

X_R, X_G, X_B = (tl.constexpr(value / WHITE_XYZ[0]) for value in RGB_TO_XYZ[0])
Y_R, Y_G, Y_B = (tl.constexpr(value / WHITE_XYZ[1]) for value in RGB_TO_XYZ[1])
Z_R, Z_G, Z_B = (tl.constexpr(value / WHITE_XYZ[2]) for value in RGB_TO_XYZ[2])


@triton.jit
def _blur(
    image, out, numbers, size, step, sharpness, factor, REACH: tl.constexpr, PIXELS: tl.constexpr
):  # fmt: skip
    """Blur along an axis of this ``size`` with entries ``step`` numbers apart; weights are e^{−sharpness t²}."""
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


def gaussian(image: Tensor, sigma: float, reach: int, factor: float = 1.0) -> Tensor:
    """See :func:`deepmatching.flow.operators.saliency.gaussian`."""
    _, h, w = image.shape
    image = image.contiguous()
    rows, result = torch.empty_like(image), torch.empty_like(image)
    numbers, sharpness = image.numel(), 1 / (2 * sigma**2)
    launch_on_pixels(_blur, numbers, image, rows, numbers, w, 1, sharpness, float(factor), REACH=reach)
    launch_on_pixels(_blur, numbers, rows, result, numbers, h, w, sharpness, 1.0, REACH=reach)
    return result


@triton.jit
def lightness(value):
    """Return the cube root, and a line where the value is small."""
    is_bright = value > 0.008856
    root = tl.exp2(tl.log2(tl.where(is_bright, value, 1.0)) * (1.0 / 3.0))
    return tl.where(is_bright, root, 7.787 * value + 16.0 / 116.0)


@triton.jit
def _lab(image, out, pixels, CHANNELS: tl.constexpr, PIXELS: tl.constexpr):
    at = tl.program_id(0) * PIXELS + tl.arange(0, PIXELS)
    on = at < pixels
    step = 0 if CHANNELS == 1 else pixels
    red = tl.load(image + at, mask=on, other=0.0)
    green = tl.load(image + step + at, mask=on, other=0.0)
    blue = tl.load(image + 2 * step + at, mask=on, other=0.0)
    x = lightness(X_R * red + X_G * green + X_B * blue)
    y = lightness(Y_R * red + Y_G * green + Y_B * blue)
    z = lightness(Z_R * red + Z_G * green + Z_B * blue)
    tl.store(out + at, 116.0 * y - 16.0, mask=on)
    tl.store(out + pixels + at, 500.0 * (x - y), mask=on)
    tl.store(out + 2 * pixels + at, 200.0 * (y - z), mask=on)


@triton.jit
def _structure(lab, tensor, h, w, PIXELS: tl.constexpr):
    """Sum g_x², g_x g_y and g_y² over the channels."""
    at = tl.program_id(0) * PIXELS + tl.arange(0, PIXELS)
    on = at < h * w
    row, column = at // w, at % w
    left, right = row * w + tl.maximum(column - 1, 0), row * w + tl.minimum(column + 1, w - 1)
    up, down = tl.maximum(row - 1, 0) * w + column, tl.minimum(row + 1, h - 1) * w + column
    xx, xy, yy = tl.zeros((PIXELS,), tl.float32), tl.zeros((PIXELS,), tl.float32), tl.zeros((PIXELS,), tl.float32)
    for c in tl.static_range(3):
        plane = lab + c * h * w
        x = 0.5 * (tl.load(plane + right, mask=on, other=0.0) - tl.load(plane + left, mask=on, other=0.0))
        y = 0.5 * (tl.load(plane + down, mask=on, other=0.0) - tl.load(plane + up, mask=on, other=0.0))
        xx += x * x
        xy += x * y
        yy += y * y
    tl.store(tensor + at, xx, mask=on)
    tl.store(tensor + h * w + at, xy, mask=on)
    tl.store(tensor + 2 * h * w + at, yy, mask=on)


@triton.jit
def _smallest(tensor, out, pixels, PIXELS: tl.constexpr):
    """Take the square root of the smaller eigenvalue."""
    at = tl.program_id(0) * PIXELS + tl.arange(0, PIXELS)
    on = at < pixels
    xx = tl.load(tensor + at, mask=on, other=0.0)
    xy = tl.load(tensor + pixels + at, mask=on, other=0.0)
    yy = tl.load(tensor + 2 * pixels + at, mask=on, other=0.0)
    smallest = 0.5 * (xx + yy - tl.sqrt((xx - yy) * (xx - yy) + 4.0 * xy * xy))
    tl.store(out + at, tl.sqrt(tl.maximum(smallest, 0.0)), mask=on)


def saliency(image: Tensor) -> Tensor:
    """See :func:`deepmatching.flow.operators.saliency.saliency`."""
    channels, h, w = image.shape
    lab, tensor, result = image.new_empty((3, h, w)), image.new_empty((3, h, w)), image.new_empty((h, w))
    launch_on_pixels(_lab, h * w, image.contiguous(), lab, h * w, CHANNELS=channels)
    launch_on_pixels(_structure, h * w, gaussian(lab, 0.8, LAB_REACH), tensor, h, w)
    launch_on_pixels(_smallest, h * w, gaussian(tensor, 1.0, TENSOR_REACH), result, h * w)
    return result
