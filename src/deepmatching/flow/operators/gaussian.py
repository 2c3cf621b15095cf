"""Smoothing by a Gaussian."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from deepmatching.kernels.registry import operator


def taps_of(sigma: float, reach: int) -> list[float]:
    """The weights of a Gaussian at −reach … reach; their sum is 1."""
    weights = [math.exp(-(t**2) / (2 * sigma**2)) for t in range(-reach, reach + 1)]
    return [weight / sum(weights) for weight in weights]


@operator(cpu=("float32", "float64"), cuda=("float32",))
def gaussian(image: Tensor, sigma: float, reach: int, factor: float = 1.0) -> Tensor:
    """Convolve (C, H, W) with a Gaussian, cut off beyond ``reach`` pixels, and multiply; borders are repeated."""
    taps = taps_of(sigma, reach)
    result = image
    for dim, scale in ((2, factor), (1, 1.0)):
        place = torch.arange(image.shape[dim], device=image.device)
        parts = (
            scale * weight * result.index_select(dim, (place + t - reach).clamp(0, image.shape[dim] - 1))
            for t, weight in enumerate(taps)
        )
        result = sum(parts, torch.zeros_like(image))
    return result
