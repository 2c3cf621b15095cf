"""Windows of descriptors and their comparison: the kernels against the definitions."""

from __future__ import annotations

from types import ModuleType

import pytest
import torch

from deepmatching.network.operators import contexts
from deepmatching.network.operators.contexts import compare_contexts, windows


@pytest.mark.parametrize(("channels", "side", "outputs"), [(64, 5, 32), (128, 4, 32), (9, 4, 20), (70, 2, 3)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@pytest.mark.parametrize("batches", [1, 2])
def test_the_kernel_of_windows_agrees(
    channels: int, side: int, outputs: int, dtype: torch.dtype, batches: int, gpu: ModuleType, gpu_device: str
) -> None:
    step = side - side % 2
    cells = [torch.randn(2, channels, 3 * step + side % 2, 5 * step + side % 2) / channels**0.5 for _ in range(batches)]
    cells[0] = cells[0].contiguous(memory_format=torch.channels_last)  # and the other is not
    weight, bias = torch.randn(outputs, channels, side, side) / side, torch.randn(outputs)
    expected = windows.definition(tuple(cells), weight, bias, step, channels**0.5, torch.float32)
    assert expected.shape == (2 * batches, outputs, 3, 5) and expected.std() > 0.1
    there = tuple(batch.to(gpu_device) for batch in cells)
    found = gpu.windows(there, weight.to(gpu_device), bias.to(gpu_device), step, channels**0.5, dtype)
    assert found.dtype == dtype and found.is_contiguous(memory_format=torch.channels_last)
    tolerance = {"atol": 1e-3, "rtol": 1e-3} if dtype == torch.float32 else {"atol": 0.05, "rtol": 0.01}
    torch.testing.assert_close(found.float().cpu(), expected, **tolerance)


def test_windows_do_not_depend_on_the_size_of_bands(monkeypatch: pytest.MonkeyPatch) -> None:
    cells, weight, bias = torch.rand(1, 8, 21, 25), torch.randn(4, 8, 5, 5), torch.randn(4)
    expected = torch.conv2d(cells, 3 * weight, bias, 4).relu()
    for band in (1, 8 * 25 * 4 * 2, 2**22):
        monkeypatch.setattr(contexts, "BAND", band)
        found = windows((cells,), weight, bias, 4, 3.0, torch.float32)
        torch.testing.assert_close(found, expected, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize(("channels", "groups"), [(32, 16), (12, 3), (5, 5)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_the_kernel_of_the_comparison_agrees(
    channels: int, groups: int, dtype: torch.dtype, gpu: ModuleType, gpu_device: str
) -> None:
    evidence = torch.randn(2, 4, 5, 11).permute(0, 3, 1, 2)
    context0, context1 = torch.randn(2, channels, 6, 5), torch.randn(2, channels, 3, 7)
    context0 = context0.contiguous(memory_format=torch.channels_last).to(dtype)
    points1 = torch.rand(2, 4, 5, 2) * torch.tensor([70.0, 40.0]) - 10  # some are outside
    arguments = (evidence, context0, context1.to(dtype), points1)
    expected = compare_contexts.definition(*arguments, 4, 8, groups)
    found = gpu.compare_contexts(*(t.to(gpu_device) for t in arguments), 4, 8, groups)
    assert found.shape == expected.shape == (2, 11 + channels + groups, 4, 5) and found.dtype == dtype
    assert found.is_contiguous(memory_format=torch.channels_last)
    tolerance = {"atol": 1e-5, "rtol": 1e-5} if dtype == torch.float32 else {"atol": 5e-3, "rtol": 2e-3}
    torch.testing.assert_close(found.cpu(), expected, **tolerance)
