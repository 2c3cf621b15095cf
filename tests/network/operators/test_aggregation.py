"""Aggregation and disaggregation against brute force from eqs. (4) and (5), their gradients and their GPU kernels."""

import math
from itertools import product
from types import ModuleType
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.autograd import gradcheck

from deepmatching.geometry.discretization import Geometry
from deepmatching.kernels.registry import plain_operators
from deepmatching.network.operators import aggregation, disaggregation
from helpers.brute_force import brute_aggregation
from helpers.volumes import TINY, assert_same_gradients, everywhere, grid_volume, random_volume, small_pairs, with_gaps


@settings(max_examples=20)
@given(geometry=small_pairs())
def test_it_is_the_mean_of_the_existing_children(geometry: Geometry, device: torch.device, dtype: torch.dtype) -> None:
    for l in range(geometry.L):
        pooled = random_volume(geometry, l, pooled=True).to(device, dtype)
        result = aggregation(pooled, geometry.grid(l + 1), geometry.links(l))
        assert result.shape == (1, *geometry.shape(l + 1)) and result.dtype == dtype and result.device == pooled.device
        torch.testing.assert_close(result[0].cpu(), brute_aggregation(pooled[0].cpu(), geometry, l))


def test_a_point_without_children_scores_0(device: torch.device, dtype: torch.dtype) -> None:
    links = [(5 * y, 5 * x, 0, 0) for y in (-1, 1) for x in (-1, 1)]
    assert not aggregation(torch.ones(1, 2, 2, 3, 3, device=device, dtype=dtype), (1, 1), links).any()


@settings(max_examples=20)
@given(geometry=small_pairs(), l=st.integers(0, 1))
def test_each_child_gets_its_best_parent(geometry: Geometry, l: int, device: torch.device, dtype: torch.dtype) -> None:
    """Disaggregation is the transpose of aggregation with max for sum: compare link by link."""
    l = min(l, geometry.L - 1)
    scores = random_volume(geometry, l + 1).to(device, dtype)
    result = disaggregation(scores, geometry.grid(l), geometry.links(l))[0]
    assert result.dtype == dtype and result.device == scores.device
    expected = torch.full(result.shape, -math.inf, dtype=dtype)
    for link, *place in product(geometry.links(l), *map(range, scores.shape[1:])):
        child = tuple(n + shift for n, shift in zip(place, link, strict=True))
        if all(0 <= c < n for c, n in zip(child, expected.shape, strict=True)):
            expected[child] = max(expected[child], scores[(0, *place)])
    assert torch.equal(result.cpu(), expected)


@pytest.mark.parametrize("operator", [aggregation, disaggregation])
def test_volumes_have_five_axes(operator: Any) -> None:
    with plain_operators(), pytest.raises((IndexError, ValueError)):
        operator(torch.rand(2, 2, 3, 3), (1, 1), [(0, 0, 0, 0)] * 4)


@pytest.mark.parametrize("geometry", TINY)
def test_gradients(geometry: Geometry, device: torch.device) -> None:
    torch.manual_seed(1)
    half, S_1 = random_volume(geometry, 0, pooled=True).to(device), random_volume(geometry, 1).to(device)
    grids, links = (geometry.grid(1), geometry.grid(0)), geometry.links(0)
    assert gradcheck(lambda s: aggregation(s, grids[0], links), half.requires_grad_())
    assert gradcheck(lambda s: disaggregation(s, grids[1], links).clamp(min=-1), S_1.requires_grad_())


@pytest.mark.slow
@everywhere
def test_the_gpu_kernels_agree(g: Geometry, gpu: ModuleType, gpu_device: str) -> None:
    for l in range(g.L):
        pooled, scores = (grid_volume(g, points, l + 1, device=gpu_device) for points in (l, l + 1))
        assert_same_gradients(gpu.aggregation, aggregation, [pooled], g.grid(l + 1), g.links(l))
        assert_same_gradients(gpu.disaggregation, disaggregation, [with_gaps(scores)], g.grid(l), g.links(l))
