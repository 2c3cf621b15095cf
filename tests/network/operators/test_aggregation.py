"""Aggregation against brute force from eq. (4), its gradient, and its GPU kernel."""

from types import ModuleType

import pytest
import torch
from hypothesis import given, settings
from torch.autograd import gradcheck

from deepmatching.geometry.discretization import Geometry
from deepmatching.kernels.registry import plain_operators
from deepmatching.network.operators import aggregation
from helpers.brute_force import brute_aggregation
from helpers.volumes import TINY, assert_same_gradient, everywhere, grid_volume, random_volume, small_pairs


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
    result = aggregation(torch.ones(1, 2, 2, 3, 3, device=device, dtype=dtype), (1, 1), links)
    assert not result.any()


def test_volumes_have_five_axes() -> None:
    with plain_operators(), pytest.raises((IndexError, ValueError)):
        aggregation(torch.rand(2, 2, 3, 3), (1, 1), [(0, 0, 0, 0)] * 4)


@pytest.mark.parametrize("geometry", TINY)
def test_gradient(geometry: Geometry, device: torch.device) -> None:
    torch.manual_seed(1)
    half = random_volume(geometry, 0, pooled=True).to(device).requires_grad_()
    assert gradcheck(lambda s: aggregation(s, geometry.grid(1), geometry.links(0)), half)


@pytest.mark.slow
@everywhere
def test_the_gpu_kernel_agrees(g: Geometry, gpu: ModuleType, gpu_device: str) -> None:
    for l in range(g.L):
        arguments = (g.grid(l + 1), g.links(l))
        assert_same_gradient(
            lambda s, arguments=arguments: gpu.aggregation(s, *arguments),
            lambda s, arguments=arguments: aggregation.definition(s, *arguments),
            grid_volume(g, l, l + 1, device=gpu_device),
        )
