"""One step of refinement: its kernel against the definition."""

from __future__ import annotations

from types import ModuleType

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from deepmatching.flow.operators.refinement_step import refinement_step


def arguments(seed: int, height: int, width: int, channels: int, hold: float, iterations: int) -> tuple:
    """A flow, the flow before, two smooth images, smoothness, and settings."""
    generator = torch.Generator().manual_seed(seed)
    coarse = torch.rand(1, channels, 9, 9, generator=generator)
    image0 = torch.nn.functional.interpolate(coarse, (height, width), mode="bicubic")[0] * 255
    image1 = torch.nn.functional.interpolate(coarse, (height + 3, width + 1), mode="bicubic")[0] * 255
    flow, start = (2 * torch.randn(2, height, width, generator=generator) for _ in range(2))
    smoothness = torch.rand(height, width, generator=generator) + 0.1
    return flow, start, image0, image1, smoothness, 0.72, hold, iterations, 1.9


def stepped(function, flow, *others):
    result = flow.clone()
    assert function(result, *others) is None
    return result


@settings(max_examples=20)
@given(
    st.integers(0, 2**31), st.integers(1, 30), st.integers(1, 40), st.sampled_from([1, 3]), st.sampled_from([0.0, 0.2])
)
def test_the_cpu_kernel_agrees(seed: int, height: int, width: int, channels: int, hold: float) -> None:
    given = arguments(seed, height, width, channels, hold, 15)
    kernel = refinement_step.kernel("cpu")
    found, expected = stepped(kernel, *given), stepped(refinement_step.definition, *given)
    assert torch.isfinite(found).all()
    torch.testing.assert_close(found, expected, rtol=0, atol=0.02)
    assert (found - expected).abs().median() < 1e-3


def test_bands_and_rounds_of_relaxation_leave_no_seams() -> None:
    """More rows than one band, and more half-iterations than in one visit."""
    given = arguments(5, 160, 54, 3, 0.05, 20)
    found, expected = (stepped(f, *given) for f in (refinement_step.kernel("cpu"), refinement_step.definition))
    torch.testing.assert_close(found, expected, rtol=0, atol=2e-3)


def test_without_data_and_smoothness_nothing_moves(device: torch.device, dtype: torch.dtype) -> None:
    flow = torch.rand(2, 6, 7, device=device, dtype=dtype)
    image = torch.ones(1, 6, 7, device=device, dtype=dtype)
    before, none = flow.clone(), torch.zeros(6, 7, device=device, dtype=dtype)
    refinement_step(flow, before, image, image, none, 0.72, 0.0, 5, 1.9)
    assert torch.equal(flow, before)


@pytest.mark.parametrize(
    ("height", "width", "channels", "hold", "iterations"),
    [(20, 17, 3, 0.2, 4), (9, 40, 1, 0.0, 3), (1, 9, 1, 0.1, 2), (8, 1, 3, 0.0, 2), (70, 75, 1, 0.05, 5)],
)
def test_the_gpu_kernel_agrees(
    height: int, width: int, channels: int, hold: float, iterations: int, gpu: ModuleType, gpu_device: str
) -> None:
    """Larger than one tile of relaxation, and as long as several visits to it."""
    given = [
        value.to(gpu_device) if isinstance(value, torch.Tensor) else value
        for value in arguments(3, height, width, channels, hold, iterations)
    ]
    found, expected = stepped(gpu.refinement_step, *given), stepped(refinement_step.definition, *given)
    torch.testing.assert_close(found, expected, rtol=0, atol=2e-3)
    assert (found - expected).abs().median() < 1e-4
