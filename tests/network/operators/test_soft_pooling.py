"""Soft pooling and unpooling against explicit sums and maxima, their gradients and their limits."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.autograd import gradcheck

from deepmatching.geometry.discretization import Geometry
from deepmatching.network.operators import max_pooling, soft_pooling, soft_unpooling
from helpers.brute_force import brute_soft_pooling, pooled_target, window_cells
from helpers.volumes import TINY, pool, random_volume, small_pairs, unpool, with_gaps


def soft_pool(
    scores: torch.Tensor, temperature: torch.Tensor | float, geometry: Geometry
) -> tuple[torch.Tensor, torch.Tensor]:
    """Soft pooling of level 0."""
    beta = torch.as_tensor(temperature, dtype=scores.dtype, device=scores.device)
    return soft_pooling(scores, beta, geometry.window(1), geometry.pool_offset(0), geometry.pool_reach)


@settings(max_examples=40)
@given(geometry=small_pairs(), temperature=st.sampled_from([3.0, 40.0]) | st.floats(0.01, 1000.0), gaps=st.booleans())
def test_it_is_the_logarithm_of_the_mean_exponential(
    geometry: Geometry, temperature: float, gaps: bool, device: torch.device, dtype: torch.dtype
) -> None:
    scores = random_volume(geometry, 0).to(device, dtype)
    scores = with_gaps(scores) if gaps else scores
    pooled, peak = soft_pool(scores, temperature, geometry)
    expected = brute_soft_pooling(scores[0].cpu(), geometry, 0, temperature)
    torch.testing.assert_close(pooled[0].cpu(), expected, rtol=0, atol=1000 * torch.finfo(dtype).eps)
    assert torch.equal(peak, pool(scores, geometry, 0)[0])


@settings(max_examples=20)
@given(geometry=small_pairs())
def test_as_the_temperature_rises_it_becomes_max_pooling(geometry: Geometry) -> None:
    scores = random_volume(geometry, 0).requires_grad_()
    window = (geometry.window(1), geometry.pool_offset(0), geometry.pool_reach)
    soft, hard = soft_pool(scores, 1e12, geometry)[0], max_pooling(scores, *window)[0]
    torch.testing.assert_close(soft, hard, rtol=0, atol=1e-11)
    upstream = torch.randn_like(hard)
    gradients = [torch.autograd.grad(pooled, scores, upstream)[0] for pooled in (soft, hard)]
    torch.testing.assert_close(*gradients)


def spread(scores: Tensor, fine: Tensor, temperature: Tensor | float, geometry: Geometry) -> Tensor:
    """Soft unpooling of level 0, with the maxima of ``fine``."""
    beta, window = torch.as_tensor(temperature, dtype=fine.dtype), (geometry.pool_offset(0), geometry.pool_reach)
    _, peak = soft_pooling(fine, beta, geometry.window(1), *window)
    return soft_unpooling(scores, fine, peak, beta, *window)


@settings(max_examples=25)
@given(geometry=small_pairs(), temperature=st.sampled_from([0.1, 3.0, 40.0]), gaps=st.booleans())
def test_every_cell_gets_the_best_of_its_windows(geometry: Geometry, temperature: float, gaps: bool) -> None:
    fine, scores = random_volume(geometry, 0), random_volume(geometry, 0, pooled=True)
    if gaps:
        fine, scores = with_gaps(fine, 1), with_gaps(scores)
    expected = torch.full_like(fine, -math.inf)[0]
    H, W, h, w = scores.shape[1:]
    for i, j, c, d in torch.cartesian_prod(*(torch.arange(n) for n in (H, W, h, w))).tolist():
        cells = window_cells(geometry, 0, i, j, *pooled_target(geometry, 0, i, j, c, d))
        top = max((fine[0, i, j, a, b].item() for a, b in cells), default=-math.inf)
        for a, b in cells:
            if math.isfinite(fine[0, i, j, a, b]):
                price = 0.1 * temperature * (top - fine[0, i, j, a, b])
                expected[i, j, a, b] = max(expected[i, j, a, b], scores[0, i, j, c, d] - price)
    torch.testing.assert_close(spread(scores, fine, temperature, geometry)[0], expected)


@pytest.mark.parametrize("geometry", TINY)
def test_gradients(geometry: Geometry) -> None:
    torch.manual_seed(1)
    beta = torch.tensor(4.0, dtype=torch.float64, requires_grad=True)
    fine, scores = (random_volume(geometry, 0, pooled=pooled).requires_grad_() for pooled in (False, True))
    assert gradcheck(lambda f, b: soft_pool(f, b, geometry), (fine, beta))
    assert gradcheck(lambda s, f, b: spread(s, f, b, geometry), (scores, fine, beta))


def test_minus_infinity_gives_no_gradient_and_no_nan() -> None:
    fine, scores = with_gaps(random_volume(TINY[0], 0), 1), with_gaps(random_volume(TINY[0], 0, pooled=True))
    beta = torch.tensor(4.0, dtype=torch.float64)
    inputs = [value.requires_grad_() for value in (fine, beta, scores)]
    pooled, result = soft_pool(fine, beta, TINY[0])[0], spread(scores, fine, beta, TINY[0])
    assert not torch.isnan(result).any() and (pooled[0, 0, 0] == -torch.inf).all()
    (weights,) = torch.autograd.grad(pooled.sum(), fine, retain_graph=True)
    assert weights.sum().item() == pytest.approx(torch.isfinite(pooled).sum().item())
    for values, leaves in ((pooled, inputs[:2]), (result, inputs)):
        gradients = torch.autograd.grad(values, leaves, torch.ones_like(values))
        for leaf, gradient in zip(leaves, gradients, strict=True):
            assert torch.isfinite(gradient).all() and (gradient[torch.isinf(leaf)] == 0).all()


@settings(max_examples=20)
@given(geometry=small_pairs())
def test_as_the_temperature_rises_it_becomes_unpooling(geometry: Geometry) -> None:
    fine, scores = random_volume(geometry, 0), random_volume(geometry, 0, pooled=True).requires_grad_()
    hard = unpool(scores, pool(fine, geometry, 0)[1], geometry, 0)
    soft = spread(scores, fine, 1e12, geometry)
    chosen = torch.isfinite(hard)
    assert torch.equal(soft[chosen], hard[chosen]) and (soft[~chosen] < -1e3).all()
    upstream = torch.randn_like(hard)[chosen]
    gradients = [torch.autograd.grad(unpooled[chosen], scores, upstream)[0] for unpooled in (soft, hard)]
    assert torch.equal(*gradients)
