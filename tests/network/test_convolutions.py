"""Helpers of the learned networks and their kernels."""

from types import ModuleType

import pytest
import torch

from deepmatching.network.convolutions import joined, normalised


@pytest.mark.parametrize("norm", [1.0, 0.25])
def test_vectors_get_the_length_and_zero_stays_zero(norm: float) -> None:
    x = torch.randn(2, 5, 3, 4)
    x[1, :, 2, 1] = 0
    direction = x[0, :, 1, 2] / x[0, :, 1, 2].norm()
    with torch.no_grad():
        found = normalised(x, norm)
    assert found is x  # overwritten without gradients
    torch.testing.assert_close(found.norm(dim=1)[0], torch.full((3, 4), norm))
    torch.testing.assert_close(found[0, :, 1, 2], norm * direction)
    assert not found[1, :, 2, 1].any()


def test_a_coarse_ramp_joins_as_a_ramp_of_half_the_slope() -> None:
    coarse = torch.arange(4.0).expand(1, 2, 3, 4)
    found = joined(torch.ones(1, 2, 5, 7), coarse)
    assert found.shape == (1, 2, 5, 7)
    ramp = 1 + torch.tensor([0.0, 0.25, 0.75, 1.25, 1.75, 2.25, 2.75])  # the first lies beyond the middle of a cell
    torch.testing.assert_close(found, ramp.expand(1, 2, 5, 7))


@pytest.mark.parametrize("channels", [1, 36, 64, 100])
@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
def test_the_kernel_of_the_length_agrees(
    channels: int, layout: torch.memory_format, gpu: ModuleType, gpu_device: str
) -> None:
    x = torch.randn(2, channels, 5, 7).contiguous(memory_format=layout)
    x[0, :, 4, 6] = 0
    there = x.to(gpu_device, copy=True)
    with torch.no_grad():
        expected = normalised.definition(x, 0.5)
    assert gpu.normalised(there, 0.5) is there
    torch.testing.assert_close(there.cpu(), expected)


@pytest.mark.parametrize("size", [(1, 1), (2, 2), (5, 8), (6, 7)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_the_kernel_of_the_sum_agrees(
    size: tuple[int, int], dtype: torch.dtype, gpu: ModuleType, gpu_device: str
) -> None:
    """Maps of even and odd sizes, and with more than one program's numbers."""
    fine = torch.randn(2, 36, *size).to(dtype).contiguous(memory_format=torch.channels_last)
    coarse = torch.randn(2, 36, *((side + 1) // 2 for side in size)).to(dtype)
    expected = joined.definition(fine, coarse)
    found = gpu.joined(fine.to(gpu_device), coarse.to(gpu_device))
    assert found.dtype == dtype and found.is_contiguous(memory_format=torch.channels_last)
    tolerance = {"atol": 1e-6, "rtol": 1e-5} if dtype == torch.float32 else {"atol": 4e-3, "rtol": 2e-3}
    torch.testing.assert_close(found.cpu(), expected, **tolerance)
