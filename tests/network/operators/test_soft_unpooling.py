"""Soft unpooling against explicit maxima, its gradient and its limit."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.autograd import gradcheck

from deepmatching.geometry.discretization import Geometry
from deepmatching.network.operators import soft_pooling, soft_unpooling
from helpers.brute_force import pooled_target, window_cells
from helpers.volumes import TINY, pool, random_volume, small_pairs, unpool, with_gaps


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
def test_gradient(geometry: Geometry) -> None:
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
