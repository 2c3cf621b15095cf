"""The parts of the linear system: derivatives, data term and smoothness weights by brute force."""

from __future__ import annotations

import pytest
import torch

from deepmatching.flow.operators.refinement_step import data_term, derivative, smoothness_weights
from deepmatching.kernels.constants import EPSILON, ZETA


def test_derivatives_of_polynomials_are_exact(device: torch.device, dtype: torch.dtype) -> None:
    x = torch.arange(9, device=device, dtype=dtype).expand(1, 7, 9)
    torch.testing.assert_close(derivative(x**3, 2)[:, :, 2:-2], 3 * x[:, :, 2:-2] ** 2)
    assert not derivative(x**3, 1).any()
    torch.testing.assert_close(derivative((x**3).mT, 1), derivative(x**3, 2).mT)


@pytest.mark.parametrize("channels", [1, 3])
def test_the_data_term_sums_the_normal_equations_of_all_channels(
    channels: int, device: torch.device, dtype: torch.dtype
) -> None:
    torch.manual_seed(0)
    mean, difference = (torch.rand(channels, 6, 7, device=device, dtype=dtype) for _ in range(2))
    inside = torch.ones(6, 7, device=device, dtype=dtype)
    inside[2, 3] = 0
    matrix, right = data_term(mean, difference, inside, 0.7)
    assert matrix.shape == (3, 6, 7) and right.shape == (2, 6, 7)
    assert not matrix[:, 2, 3].any() and not right[:, 2, 3].any()
    x, y = derivative(mean, 2), derivative(mean, 1)
    expected, side, error = torch.zeros(2, 2, dtype=dtype), torch.zeros(2, dtype=dtype), 0.0
    for c in range(channels):
        gradients = ((derivative(x, 2), derivative(x, 1)), (derivative(x, 1), derivative(y, 1)))
        for n, (p, q) in enumerate(gradients):
            g = torch.stack([p[c, 4, 2], q[c, 4, 2]]).cpu()
            t = derivative(difference, 2 - n)[c, 4, 2].cpu()
            norm = 1 / (g.square().sum() + ZETA**2)
            expected += norm * torch.outer(g, g)
            side -= norm * g * t
            error += float(norm * t * t)
    weight = 0.7 / channels / (3 / channels * error + EPSILON**2) ** 0.5
    found = matrix[:, 4, 2].cpu()
    torch.testing.assert_close(torch.stack([found[:2], found[1:]]), weight * expected)
    torch.testing.assert_close(right[:, 4, 2].cpu(), weight * side)


def test_weights_of_an_affine_flow_are_those_of_its_slope(device: torch.device, dtype: torch.dtype) -> None:
    rows, columns = (torch.arange(n, device=device, dtype=dtype) for n in (6, 8))
    flow = torch.stack([0.3 * columns + 0 * rows[:, None], 0.4 * rows[:, None] + 0 * columns])
    smoothness = torch.full((6, 8), 2.0, device=device, dtype=dtype)
    across, along = smoothness_weights(flow, smoothness)
    expected = 2 / (0.3**2 + 0.4**2 + EPSILON**2) ** 0.5
    torch.testing.assert_close(across[1:-1, :-1], torch.full_like(across[1:-1, :-1], expected))
    torch.testing.assert_close(along[:-1, 1:-1], torch.full_like(along[:-1, 1:-1], expected))
    assert not across[:, -1].any() and not along[-1].any()
