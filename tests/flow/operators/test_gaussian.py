"""Smoothing by a Gaussian: by brute force, and the kernels against the definition."""

from __future__ import annotations

import math
from types import ModuleType

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from deepmatching.flow.operators.saliency import gaussian


def test_it_is_the_weighted_mean_of_the_pixels_around(device: torch.device, dtype: torch.dtype) -> None:
    image = torch.rand(2, 5, 6, device=device, dtype=dtype)
    found = gaussian(image, 1.3, 3, 10.0)
    weights = {t: math.exp(-(t**2) / (2 * 1.3**2)) for t in range(-3, 4)}
    total = sum(weights.values()) ** 2
    for y, x in ((0, 0), (2, 5), (4, 3)):
        expected = sum(
            weights[i] * weights[j] * image[:, min(max(y + i, 0), 4), min(max(x + j, 0), 5)]
            for i in weights
            for j in weights
        )
        torch.testing.assert_close(found[:, y, x], 10 * expected / total)


@settings(max_examples=25)
@given(st.integers(1, 40), st.integers(1, 40), st.floats(0.3, 3))
def test_the_cpu_kernel_agrees(height: int, width: int, sigma: float) -> None:
    image = torch.rand(2, height, width)
    arguments = (image, sigma, math.ceil(4 * sigma), 255.0)
    torch.testing.assert_close(gaussian(*arguments), gaussian.definition(*arguments), rtol=1e-5, atol=1e-3)


@pytest.mark.parametrize(("size", "sigma", "reach"), [((9, 14), 0.9, 4), ((3, 2), 2.0, 8), ((20, 40), 0.8, 3)])
def test_the_gpu_kernel_agrees(
    size: tuple[int, int], sigma: float, reach: int, gpu: ModuleType, gpu_device: str
) -> None:
    image = torch.rand(3, *size, device=gpu_device)
    expected = gaussian.definition(image, sigma, reach, 255.0)
    torch.testing.assert_close(gpu.gaussian(image, sigma, reach, 255.0), expected, rtol=1e-5, atol=1e-3)
