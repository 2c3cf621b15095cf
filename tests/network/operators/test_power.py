"""The power ν, its gradient, and its GPU kernel."""

import math
from types import ModuleType

import pytest
import torch
from torch.autograd import gradcheck

from deepmatching.kernels.registry import plain_operators
from deepmatching.network.operators import power
from helpers.volumes import assert_same_gradients


def test_negative_scores_are_cut_and_the_gradient_at_zero_is_finite(device: torch.device, dtype: torch.dtype) -> None:
    scores = torch.tensor([-1.0, 0.0, 0.25, 1.0], device=device, dtype=dtype, requires_grad=True)
    exponent = torch.tensor(0.5, device=device, dtype=dtype, requires_grad=True)
    result = power(scores, exponent)
    result.sum().backward()
    assert result.tolist() == [0.0, 0.0, 0.5, 1.0]
    assert scores.grad is not None and scores.grad.tolist() == [0.0, 0.0, 1.0, 0.5]
    assert exponent.grad is not None and exponent.grad.item() == pytest.approx(0.5 * math.log(0.25))
    with torch.no_grad():
        assert torch.equal(power(scores, exponent), result)


def test_any_shape_stays(device: torch.device, dtype: torch.dtype) -> None:
    for shape in ((), (3,), (2, 1, 4, 3, 5)):
        result = power(torch.rand(shape, device=device, dtype=dtype), 1.4)
        assert result.shape == shape and result.dtype == dtype


def test_there_is_one_exponent() -> None:
    with plain_operators(), pytest.raises(RuntimeError):
        power(torch.rand(2, 3), torch.tensor([1.0, 2.0]))


def test_gradient(device: torch.device) -> None:
    torch.manual_seed(1)
    scores = torch.rand(2, 3, 4, dtype=torch.float64, device=device, requires_grad=True)
    exponent = torch.tensor(1.4, dtype=torch.float64, device=device, requires_grad=True)
    assert gradcheck(power, (scores, exponent))


@pytest.mark.parametrize("exponent", [0.5, 1.0, 1.4])
def test_the_gpu_kernel_agrees(exponent: float, gpu: ModuleType, gpu_device: str) -> None:
    scores = (torch.randn(3, 5000, device=gpu_device) * torch.rand(5000, device=gpu_device)).round(decimals=3)
    nu = torch.tensor([exponent], device=gpu_device)
    assert_same_gradients(gpu.power, power, [scores, nu], rtol=2e-5, atol=1e-6)
    torch.testing.assert_close(gpu.power(scores, exponent), gpu.power(scores, nu), rtol=0, atol=0)
