"""How much there is to see at each pixel: colours, gradients and eigenvalues, with Gaussians between them."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from deepmatching.kernels.constants import LAB_REACH, RGB_TO_XYZ, TENSOR_REACH, WHITE_XYZ
from deepmatching.kernels.gpu.indexing import fetch, launch_on_pixels, pixels_of, store_planes

X_R, X_G, X_B = (tl.constexpr(value / WHITE_XYZ[0]) for value in RGB_TO_XYZ[0])
Y_R, Y_G, Y_B = (tl.constexpr(value / WHITE_XYZ[1]) for value in RGB_TO_XYZ[1])
Z_R, Z_G, Z_B = (tl.constexpr(value / WHITE_XYZ[2]) for value in RGB_TO_XYZ[2])


@triton.jit
def _blur(image, out, numbers, size, step, sharpness, factor, REACH: tl.constexpr, PIXELS: tl.constexpr):
    """Blur along an axis of this ``size`` with entries ``step`` numbers apart; weights are e^{−sharpness t²}."""
    at = tl.program_id(0).to(tl.int64) * PIXELS + tl.arange(0, PIXELS)
    on = at < numbers
    place = ((at // step) % size).to(tl.int32)
    total, mass = tl.zeros((PIXELS,), tl.float32), 0.0
    for t in tl.static_range(-REACH, REACH + 1):
        weight = tl.exp(-sharpness * (t * t))
        there = tl.minimum(tl.maximum(place + t, 0), size - 1)
        total += weight * fetch(image + at + (there - place) * step, on)
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
    red, green, blue = fetch(image + at, on), fetch(image + step + at, on), fetch(image + 2 * step + at, on)
    x = lightness(X_R * red + X_G * green + X_B * blue)
    y = lightness(Y_R * red + Y_G * green + Y_B * blue)
    z = lightness(Z_R * red + Z_G * green + Z_B * blue)
    store_planes(out + at, pixels, (116.0 * y - 16.0, 500.0 * (x - y), 200.0 * (y - z)), on)


@triton.jit
def _structure(lab, tensor, h, w, PIXELS: tl.constexpr):
    """Sum g_x², g_x g_y and g_y² over the channels."""
    at, row, column, on = pixels_of(h * w, w, PIXELS)
    left, right = row * w + tl.maximum(column - 1, 0), row * w + tl.minimum(column + 1, w - 1)
    up, down = tl.maximum(row - 1, 0) * w + column, tl.minimum(row + 1, h - 1) * w + column
    zero = tl.zeros((PIXELS,), tl.float32)
    xx, xy, yy = zero, zero, zero
    for c in tl.static_range(3):
        plane = lab + c * h * w
        x = 0.5 * (fetch(plane + right, on) - fetch(plane + left, on))
        y = 0.5 * (fetch(plane + down, on) - fetch(plane + up, on))
        xx, xy, yy = xx + x * x, xy + x * y, yy + y * y
    store_planes(tensor + at, h * w, (xx, xy, yy), on)


@triton.jit
def _smallest(tensor, out, pixels, PIXELS: tl.constexpr):
    """Take the square root of the smaller eigenvalue."""
    at = tl.program_id(0) * PIXELS + tl.arange(0, PIXELS)
    on = at < pixels
    xx, xy, yy = fetch(tensor + at, on), fetch(tensor + pixels + at, on), fetch(tensor + 2 * pixels + at, on)
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
