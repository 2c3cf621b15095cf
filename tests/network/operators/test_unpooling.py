"""Unpooling against eq. (6), its gradient, and its GPU kernel."""

import math
from types import ModuleType

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.autograd import gradcheck

from deepmatching.geometry.discretization import Geometry
from deepmatching.kernels.registry import plain_operators
from deepmatching.network.operators import max_pooling, summation, unpooling
from helpers.brute_force import chosen_cells
from helpers.volumes import (
    TINY,
    assert_same_gradient,
    everywhere,
    grid_volume,
    pool,
    random_volume,
    small_pairs,
    unpool,
    with_gaps,
)


@settings(max_examples=25)
@given(geometry=small_pairs(), ties=st.booleans())
def test_scores_go_back_where_they_came_from(
    geometry: Geometry, ties: bool, device: torch.device, dtype: torch.dtype
) -> None:
    _, switches = pool(random_volume(geometry, 0, ties=ties).to(device, dtype), geometry, 0)
    scores = random_volume(geometry, 0, pooled=True, ties=ties).to(device, dtype)
    expected = torch.full((1, *geometry.shape(0)), -math.inf, dtype=dtype).flatten(-2)
    expected.scatter_reduce_(
        -1, chosen_cells(switches.cpu(), geometry, 0).flatten(-2), scores.cpu().flatten(-2), "amax"
    )
    assert torch.equal(unpool(scores, switches, geometry, 0).cpu().flatten(-2), expected)


def test_shapes_and_types(device: torch.device, dtype: torch.dtype) -> None:
    scores = torch.rand(2, 3, 4, 7, 9, device=device, dtype=dtype)
    pooled, switches = max_pooling(scores, (4, 5))
    back = unpooling(pooled, switches, (7, 9))
    assert back.shape == scores.shape and back.dtype == dtype and back.device == scores.device


def test_switches_have_the_shape_of_the_scores() -> None:
    with plain_operators(), pytest.raises((RuntimeError, IndexError)):
        unpooling(torch.rand(1, 1, 1, 4, 5), torch.zeros(1, 1, 1, 3, 5, dtype=torch.uint8), (7, 9))


@pytest.mark.parametrize("geometry", TINY)
def test_gradient(geometry: Geometry, device: torch.device) -> None:
    torch.manual_seed(1)
    _, switches = pool(random_volume(geometry, 0).to(device), geometry, 0)
    half = random_volume(geometry, 0, pooled=True).to(device).requires_grad_()
    assert gradcheck(lambda s: unpool(s, switches, geometry, 0).clamp(min=-1), half)


def test_the_gradient_goes_to_the_first_of_equal_scores(device: torch.device, dtype: torch.dtype) -> None:
    coarse = torch.ones(1, 1, 1, 2, 2, device=device, dtype=dtype, requires_grad=True)
    switches = torch.tensor([[[[[8, 6], [2, 0]]]]], dtype=torch.uint8, device=device)
    unpooling(coarse, switches, (3, 3))[0, 0, 0, 1, 1].backward()
    assert coarse.grad is not None
    assert coarse.grad[0, 0, 0].tolist() == [[1, 0], [0, 0]]  # all four chose (1,1); the first window gets it


@everywhere
def test_the_gpu_kernel_agrees(g: Geometry, gpu: ModuleType, gpu_device: str) -> None:
    window = (g.pool_offset(0), g.pool_reach)
    _, switches = max_pooling.definition(grid_volume(g, 0, 0, device=gpu_device), g.window(1), *window)
    scores = grid_volume(g, 0, 1, device=gpu_device)
    for some in (scores, with_gaps(scores)):
        assert_same_gradient(
            lambda s: gpu.unpooling(s, switches, g.window(0), *window),
            lambda s: unpooling.definition(s, switches, g.window(0), *window),
            some,
        )


def test_minus_infinity_stays(device: torch.device, dtype: torch.dtype) -> None:
    scores, unpooled = (torch.tensor(v, device=device, dtype=dtype) for v in ([1.0, 2.0], [-math.inf, 3.0]))
    assert summation(scores, unpooled).tolist() == [-math.inf, 5.0]


def test_without_a_gradient_the_result_takes_the_place_of_the_unpooled_scores() -> None:
    unpooled = torch.ones(2)
    assert summation(torch.ones(2), unpooled) is unpooled


def test_shapes_must_agree() -> None:
    with pytest.raises(RuntimeError):
        summation(torch.ones(2, 3), torch.ones(2, 4))


def test_gradient_of_the_sum(device: torch.device) -> None:
    scores, unpooled = (torch.rand(2, 3, dtype=torch.float64, device=device, requires_grad=True) for _ in range(2))
    assert gradcheck(summation, (scores, unpooled))
