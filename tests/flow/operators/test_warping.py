"""Warping: known values, gradients, and its kernel against the definition."""

from __future__ import annotations

from types import ModuleType

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.autograd import gradcheck

from deepmatching.flow.operators.refinement_step import warp
from helpers.volumes import both


def test_a_flow_of_whole_pixels_is_a_shift(device: torch.device, dtype: torch.dtype) -> None:
    image = torch.rand(2, 9, 11, generator=torch.Generator().manual_seed(0)).to(device, dtype)
    flow = torch.zeros(2, 9, 11, device=device, dtype=dtype)
    flow[0], flow[1] = 3, -2
    mean, difference, inside = warp(torch.zeros_like(image), image, flow)
    assert torch.equal(difference[:, 2:, :-3], image[:, :-2, 3:])
    assert torch.equal(mean * 2, difference)
    assert inside[2:, :-3].all() and not inside[:2].any() and not inside[:, -3:].any()


def test_images_of_two_sizes(device: torch.device, dtype: torch.dtype) -> None:
    arguments = (torch.rand(3, 5, 6), torch.rand(3, 8, 4), torch.zeros(2, 5, 6))
    mean, difference, inside = warp(*(a.to(device, dtype) for a in arguments))
    assert mean.shape == difference.shape == (3, 5, 6) and inside.shape == (5, 6)
    assert mean.dtype == difference.dtype == inside.dtype == dtype


def test_channels_must_agree() -> None:
    with pytest.raises(RuntimeError):
        warp.definition(torch.rand(2, 5, 6), torch.rand(3, 5, 6), torch.zeros(2, 5, 6))


def test_gradient(device: torch.device) -> None:
    torch.manual_seed(0)
    image0, image1 = (torch.rand(2, 4, 5, dtype=torch.float64, device=device, requires_grad=True) for _ in range(2))
    flow = (0.2 + 0.6 * torch.rand(2, 4, 5, dtype=torch.float64, device=device)).requires_grad_()
    assert gradcheck(lambda *tensors: warp(*tensors)[:2], (image0, image1, flow))


@settings(max_examples=20)
@given(st.integers(0, 2**31), st.integers(1, 30), st.integers(1, 40), st.sampled_from([1, 3]))
def test_the_cpu_kernel_agrees(seed: int, height: int, width: int, channels: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    image0 = torch.rand(channels, height, width, generator=generator)
    image1 = torch.rand(channels, height + 3, width + 1, generator=generator)
    flow = 4 * torch.randn(2, height, width, generator=generator)
    for result, expected in zip(*both(warp, image0, image1, flow), strict=True):
        torch.testing.assert_close(result, expected, rtol=0, atol=1e-6)


@pytest.mark.parametrize(("height", "width", "channels"), [(7, 12, 3), (1, 5, 1), (20, 40, 1)])
def test_the_gpu_kernel_agrees(height: int, width: int, channels: int, gpu: ModuleType, gpu_device: str) -> None:
    image0 = torch.rand(channels, height, width, device=gpu_device)
    image1 = torch.rand(channels, height + 3, width + 1, device=gpu_device)
    flow = 4 * torch.randn(2, height, width, device=gpu_device)
    for result, expected in zip(gpu.warp(image0, image1, flow), warp.definition(image0, image1, flow), strict=True):
        torch.testing.assert_close(result, expected, rtol=0, atol=1e-5)
