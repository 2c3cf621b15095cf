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


@settings(max_examples=25)
@given(geometry=small_pairs(), temperature=st.sampled_from([0.1, 3.0, 40.0]), gaps=st.booleans())
def test_it_is_the_logarithm_of_the_mean_exponential(
    geometry: Geometry, temperature: float, gaps: bool, device: torch.device
) -> None:
    scores = random_volume(geometry, 0).to(device)
    scores = with_gaps(scores) if gaps else scores
    pooled, peak = soft_pool(scores, temperature, geometry)
    torch.testing.assert_close(pooled[0].cpu(), brute_soft_pooling(scores[0].cpu(), geometry, 0, temperature))
    assert torch.equal(peak, pool(scores, geometry, 0)[0])


@settings(max_examples=25)
@given(geometry=small_pairs(), temperature=st.floats(0.01, 1000.0))
def test_it_lies_between_the_mean_and_the_maximum(geometry: Geometry, temperature: float) -> None:
    scores = random_volume(geometry, 0)
    pooled, peak = soft_pool(scores, temperature, geometry)
    side = 2 * geometry.pool_reach + 1
    assert (pooled <= peak + 1e-12).all() and (pooled >= peak - math.log(side**2) / temperature - 1e-12).all()
    assert (pooled >= brute_soft_pooling(scores[0], geometry, 0, 1e-6) - 1e-6).all()  # the mean


def test_equal_scores_are_kept(dtype: torch.dtype) -> None:
    scores = torch.full((1, 1, 2, 5, 6), 0.7, dtype=dtype)
    pooled, _ = soft_pooling(scores, torch.tensor(7.0, dtype=dtype), (3, 3))
    torch.testing.assert_close(pooled, torch.full_like(pooled, 0.7))
    assert pooled.dtype == dtype


@pytest.mark.parametrize("geometry", TINY)
def test_gradient(geometry: Geometry) -> None:
    torch.manual_seed(1)
    beta = torch.tensor(4.0, dtype=torch.float64, requires_grad=True)
    assert gradcheck(lambda s, b: soft_pool(s, b, geometry), (random_volume(geometry, 0).requires_grad_(), beta))


def test_the_gradient_is_the_weights() -> None:
    scores = torch.tensor([0.1, 0.5, 0.2, 0.4], dtype=torch.float64).view(1, 1, 1, 2, 2).requires_grad_()
    pooled, _ = soft_pooling(scores, torch.tensor(3.0), (1, 1))
    (gradient,) = torch.autograd.grad(pooled.sum(), scores)
    torch.testing.assert_close(gradient, torch.softmax(3 * scores.flatten(), 0).view_as(scores))


def test_cells_without_a_score_do_not_count_and_get_no_gradient() -> None:
    full = torch.tensor([0.3, 0.9, 0.9, 0.2], dtype=torch.float64)
    scores = torch.full((1, 1, 2, 2, 4), -torch.inf, dtype=torch.float64)
    scores[0, 0, 0, 0] = full
    scores.requires_grad_()
    beta = torch.tensor(5.0, dtype=torch.float64, requires_grad=True)
    pooled, peak = soft_pooling(scores, beta, (1, 2))
    expected = [math.log(sum(math.exp(5 * v) for v in part) / len(part)) / 5 for part in ([0.3, 0.9], [0.9, 0.9, 0.2])]
    assert pooled[0, 0, 0, 0].tolist() == pytest.approx(expected)
    assert pooled[0, 0, 1].tolist() == peak[0, 0, 1].tolist() == [[-math.inf, -math.inf]]
    of_scores, of_beta = torch.autograd.grad(pooled, (scores, beta), torch.ones_like(pooled))
    assert torch.isfinite(of_beta) and (of_scores[0, 0, 0, 0] > 0).all()
    assert (of_scores[0, 0, 0, 1] == 0).all() and (of_scores[0, 0, 1] == 0).all()


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
def test_gradient_of_unpooling(geometry: Geometry) -> None:
    torch.manual_seed(1)
    beta = torch.tensor(4.0, dtype=torch.float64, requires_grad=True)
    fine, scores = (random_volume(geometry, 0, pooled=pooled).requires_grad_() for pooled in (False, True))
    assert gradcheck(lambda s, f, b: spread(s, f, b, geometry), (scores, fine, beta))


def test_minus_infinity_gives_no_gradient_and_no_nan() -> None:
    geometry = TINY[0]
    fine, scores = with_gaps(random_volume(geometry, 0), 1), with_gaps(random_volume(geometry, 0, pooled=True))
    beta = torch.tensor(4.0, dtype=torch.float64)
    inputs = [value.requires_grad_() for value in (scores, fine, beta)]
    result = spread(scores, fine, beta, geometry)
    assert not torch.isnan(result).any()
    gradients = torch.autograd.grad(result, inputs, torch.ones_like(result))
    assert all(torch.isfinite(gradient).all() for gradient in gradients)
    assert (gradients[0][torch.isinf(scores)] == 0).all() and (gradients[1][torch.isinf(fine)] == 0).all()


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
