"""A step of refinement, and its parts: warping, the linear system and relaxation, by brute force; the kernels."""

from types import ModuleType

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.autograd import gradcheck

from deepmatching.flow.operators.refinement_step import (
    data_term,
    derivative,
    refinement_step,
    relax,
    smoothness_weights,
    warp,
)
from deepmatching.kernels.constants import EPSILON, ZETA
from helpers.volumes import both

seeds = st.integers(0, 2**31)


def arguments(seed: int, height: int, width: int, channels: int, hold: float, iterations: int) -> tuple:
    """Return a flow, the flow before, two smooth images, smoothness, and settings."""
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
@given(seeds, st.integers(1, 30), st.integers(1, 40), st.sampled_from([1, 3]), st.sampled_from([0.0, 0.2]))
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
    *tensors, gamma, _, _, omega = arguments(3, height, width, channels, hold, iterations)
    given = [*(tensor.to(gpu_device) for tensor in tensors), gamma, hold, iterations, omega]
    found, expected = stepped(gpu.refinement_step, *given), stepped(refinement_step.definition, *given)
    torch.testing.assert_close(found, expected, rtol=0, atol=2e-3)
    assert (found - expected).abs().median() < 1e-4


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


def test_relaxation_solves_the_system() -> None:
    generator = torch.Generator().manual_seed(0)
    height, width = 5, 6
    number = height * width

    def random(*shape: int) -> torch.Tensor:
        return torch.rand(*shape, generator=generator, dtype=torch.float64)

    a11, a22, a12 = random(height, width) + 0.5, random(height, width) + 0.5, 0.3 * random(height, width)
    across, along = random(height, width), random(height, width)
    across[:, -1], along[-1] = 0, 0
    right, flow = random(2, height, width), random(2, height, width)
    system = torch.zeros(2 * number, 2 * number, dtype=torch.float64)
    side = right.reshape(-1).clone()
    for i in range(height):
        for j in range(width):
            n = i * width + j
            system[n, n] += a11[i, j]
            system[n, number + n] += a12[i, j]
            system[number + n, n] += a12[i, j]
            system[number + n, number + n] += a22[i, j]
            links = [(0, 1, across[i, j]), (1, 0, along[i, j]), (0, -1, across[i, j - 1]), (-1, 0, along[i - 1, j])]
            for di, dj, weight in links:
                if 0 <= i + di < height and 0 <= j + dj < width:
                    m = n + di * width + dj
                    for c in range(2):
                        system[c * number + n, c * number + n] += weight
                        system[c * number + n, c * number + m] -= weight
                        side[c * number + n] += weight * (flow[c, i + di, j + dj] - flow[c, i, j])
    expected = torch.linalg.solve(system, side).reshape(2, height, width)
    torch.testing.assert_close(relax(torch.stack([a11, a12, a22]), right, across, along, flow, 200, 1.5), expected)


def test_a_flow_of_whole_pixels_is_a_shift(device: torch.device, dtype: torch.dtype) -> None:
    image = torch.rand(2, 9, 11, generator=torch.Generator().manual_seed(0)).to(device, dtype)
    flow = torch.zeros(2, 9, 11, device=device, dtype=dtype)
    flow[0], flow[1] = 3, -2
    mean, difference, inside = warp(torch.zeros_like(image), image, flow)
    assert torch.equal(difference[:, 2:, :-3], image[:, :-2, 3:])
    assert torch.equal(mean * 2, difference)
    assert inside[2:, :-3].all() and not inside[:2].any() and not inside[:, -3:].any()


def test_the_gradient_of_warping(device: torch.device) -> None:
    torch.manual_seed(0)
    image0, image1 = (torch.rand(2, 4, 5, dtype=torch.float64, device=device, requires_grad=True) for _ in range(2))
    flow = (0.2 + 0.6 * torch.rand(2, 4, 5, dtype=torch.float64, device=device)).requires_grad_()
    assert gradcheck(lambda *tensors: warp(*tensors)[:2], (image0, image1, flow))


@settings(max_examples=20)
@given(st.integers(0, 2**31), st.integers(1, 30), st.integers(1, 40), st.sampled_from([1, 3]))
def test_the_cpu_kernel_of_warping_agrees(seed: int, height: int, width: int, channels: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    image0 = torch.rand(channels, height, width, generator=generator)
    image1 = torch.rand(channels, height + 3, width + 1, generator=generator)
    flow = 4 * torch.randn(2, height, width, generator=generator)
    for result, expected in zip(*both(warp, image0, image1, flow), strict=True):
        torch.testing.assert_close(result, expected, rtol=0, atol=1e-6)


@pytest.mark.parametrize(("height", "width", "channels"), [(7, 12, 3), (1, 5, 1), (20, 40, 1)])
def test_the_gpu_kernel_of_warping_agrees(
    height: int, width: int, channels: int, gpu: ModuleType, gpu_device: str
) -> None:
    image0 = torch.rand(channels, height, width, device=gpu_device)
    image1 = torch.rand(channels, height + 3, width + 1, device=gpu_device)
    flow = 4 * torch.randn(2, height, width, device=gpu_device)
    for result, expected in zip(gpu.warp(image0, image1, flow), warp.definition(image0, image1, flow), strict=True):
        torch.testing.assert_close(result, expected, rtol=0, atol=1e-5)
