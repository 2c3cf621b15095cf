"""Smoothing, and how much there is to see at each pixel."""

import math

import torch
from torch import Tensor
from torch.nn import functional

from deepmatching.kernels.constants import LAB_REACH, RGB_TO_XYZ, TENSOR_REACH, WHITE_XYZ
from deepmatching.kernels.registry import operator


@operator(cpu=("float32", "float64"), cuda=("float32",))
def gaussian(image: Tensor, sigma: float, reach: int, factor: float = 1.0) -> Tensor:
    """Convolve (C, H, W) with a Gaussian, cut off beyond ``reach`` pixels, and multiply; borders are repeated."""
    weights = [math.exp(-(t**2) / (2 * sigma**2)) for t in range(-reach, reach + 1)]
    result, taps = image, [weight / sum(weights) for weight in weights]
    for dim, scale in ((2, factor), (1, 1.0)):
        place = torch.arange(image.shape[dim], device=image.device)
        places = ((place + t - reach).clamp(0, image.shape[dim] - 1) for t in range(len(taps)))
        parts = (scale * tap * result.index_select(dim, each) for tap, each in zip(taps, places, strict=True))
        result = sum(parts, torch.zeros_like(image))
    return result


@operator(cuda=("float32",))
@torch.no_grad()
def saliency(image: Tensor) -> Tensor:
    """Return how much an image changes in its least variable direction: (H, W) float32.

    The square root of the smallest eigenvalue of the structure tensor of the Lab channels. Gradients (−½, 0, ½) are
    taken after smoothing by 0.8 pixels and averaged with a Gaussian of 1 pixel. The original's threshold, 0.045, is for
    Lab of RGB values without gamma correction, as a comparison with its output shows. The image is (1 or 3, H, W) in
    [0, 1].
    """
    red, green, blue = image.expand(3, -1, -1)
    x, y, z = (
        _lightness((a * red + b * green + c * blue) / white)
        for (a, b, c), white in zip(RGB_TO_XYZ, WHITE_XYZ, strict=True)
    )
    lab = gaussian(torch.stack([116 * y - 16, 500 * (x - y), 200 * (y - z)]), 0.8, LAB_REACH)
    padded = functional.pad(lab[None], (1, 1, 1, 1), mode="replicate")[0]
    g_x, g_y = (padded[:, 1:-1, 2:] - padded[:, 1:-1, :-2]) / 2, (padded[:, 2:, 1:-1] - padded[:, :-2, 1:-1]) / 2
    tensor = torch.stack([(g_x * g_x).sum(dim=0), (g_x * g_y).sum(dim=0), (g_y * g_y).sum(dim=0)])
    xx, xy, yy = gaussian(tensor, 1.0, TENSOR_REACH)
    smallest = (xx + yy - ((xx - yy).square() + 4 * xy * xy).sqrt()) / 2
    return smallest.clamp(min=0).sqrt()


def _lightness(value: Tensor) -> Tensor:
    return torch.where(value > 0.008856, value.clamp(min=0.008856) ** (1 / 3), 7.787 * value + 16 / 116)
