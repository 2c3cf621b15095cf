"""Saliency and smoothing by a Gaussian: known values, and the kernels against the definitions."""

import math
from types import ModuleType

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from deepmatching.flow.operators.saliency import gaussian, saliency
from deepmatching.kernels.cpu import saliency as in_strips
from helpers.volumes import blobs


@pytest.mark.parametrize(("channels", "size"), [(3, (50, 37)), (1, (20, 30)), (3, (3, 5)), (3, (150, 20))])
def test_the_kernels_agree(channels: int, size: tuple[int, int], gpu: ModuleType, gpu_device: str) -> None:
    image = blobs(1, 1, channels, *size)[0]
    image[:, :1] = 0.001  # where Lab is linear
    expected = saliency.definition(image)
    assert expected.max() > 0.1
    torch.testing.assert_close(in_strips(image), expected, rtol=1e-3, atol=1e-3)
    torch.testing.assert_close(gpu.saliency(image.to(gpu_device)).cpu(), expected, rtol=1e-3, atol=1e-3)


def test_only_corners_are_salient() -> None:
    image = torch.zeros(3, 40, 40)
    image[:, 20:, 20:] = 1
    strength = saliency(image)
    assert strength[10, 10] == 0 and strength[30, 30] < 1e-3  # flat
    assert strength[20, 33] < 0.05 * strength[20, 20]  # along an edge nothing is known about the motion along it
    assert strength[20, 20] > 1
    assert torch.equal(saliency(image[:1]), strength)  # grey


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
def test_the_cpu_kernel_of_smoothing_agrees(height: int, width: int, sigma: float) -> None:
    image = torch.rand(2, height, width)
    arguments = (image, sigma, math.ceil(4 * sigma), 255.0)
    torch.testing.assert_close(gaussian(*arguments), gaussian.definition(*arguments), rtol=1e-5, atol=1e-3)


@pytest.mark.parametrize(("size", "sigma", "reach"), [((9, 14), 0.9, 4), ((3, 2), 2.0, 8), ((20, 40), 0.8, 3)])
def test_the_gpu_kernel_of_smoothing_agrees(
    size: tuple[int, int], sigma: float, reach: int, gpu: ModuleType, gpu_device: str
) -> None:
    image = torch.rand(3, *size, device=gpu_device)
    expected = gaussian.definition(image, sigma, reach, 255.0)
    torch.testing.assert_close(gpu.gaussian(image, sigma, reach, 255.0), expected, rtol=1e-5, atol=1e-3)
