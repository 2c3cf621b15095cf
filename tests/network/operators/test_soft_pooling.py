"""Soft pooling against explicit sums, its gradient and its limit."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.autograd import gradcheck

from deepmatching.geometry.discretization import Geometry
from deepmatching.network.operators import max_pooling, soft_pooling
from helpers.brute_force import brute_soft_pooling
from helpers.volumes import TINY, pool, random_volume, small_pairs, with_gaps


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
