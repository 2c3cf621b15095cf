"""Max pooling, unpooling and their sum against brute force from eqs. (3) and (6), their gradients and GPU kernels."""

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
from helpers import volumes
from helpers.brute_force import brute_max_pooling, chosen_cells
from helpers.volumes import TINY, assert_same_gradients, everywhere, grid_volume, random_volume, small_pairs, with_gaps


@settings(max_examples=25)
@given(geometry=small_pairs(), ties=st.booleans())
def test_scores_are_pooled_over_windows_and_go_back_where_they_came_from(
    geometry: Geometry, ties: bool, device: torch.device, dtype: torch.dtype
) -> None:
    scores = random_volume(geometry, 0, ties=ties).to(device, dtype)
    pooled, switches = volumes.pool(scores, geometry, 0)
    expected, cells = brute_max_pooling(scores[0].cpu(), geometry, 0)
    assert torch.equal(pooled[0].cpu(), expected)
    assert torch.equal(chosen_cells(switches.cpu(), geometry, 0)[0], cells)  # the first maximum in raster order
    refined = random_volume(geometry, 0, pooled=True, ties=ties).to(device, dtype)
    back = torch.full((1, *geometry.shape(0)), -math.inf, dtype=dtype).flatten(-2)
    back.scatter_reduce_(-1, cells[None].flatten(-2), refined.cpu().flatten(-2), "amax")
    assert torch.equal(volumes.unpool(refined, switches, geometry, 0).cpu().flatten(-2), back)


@pytest.mark.parametrize("reach", [1, 2])
def test_shapes_and_types(reach: int, device: torch.device, dtype: torch.dtype) -> None:
    scores = torch.rand(2, 3, 4, 7, 9, device=device, dtype=dtype)
    pooled, switches = max_pooling(scores, (4, 5), 0, reach)
    assert pooled.shape == switches.shape == (2, 3, 4, 4, 5)
    assert pooled.dtype == dtype and switches.dtype == torch.uint8
    assert pooled.device == switches.device == scores.device
    back = unpooling(pooled, switches, (7, 9), 0, reach)
    assert back.shape == scores.shape and back.dtype == dtype and back.device == scores.device


def test_volumes_have_five_axes_and_switches_the_shape_of_the_scores() -> None:
    with plain_operators(), pytest.raises(IndexError):
        max_pooling(torch.rand(3, 4, 7, 9), (4, 5))
    with plain_operators(), pytest.raises((RuntimeError, IndexError)):
        unpooling(torch.rand(1, 1, 1, 4, 5), torch.zeros(1, 1, 1, 3, 5, dtype=torch.uint8), (7, 9))
    with pytest.raises(RuntimeError):
        summation(torch.ones(2, 3), torch.ones(2, 4))


@pytest.mark.parametrize("geometry", TINY)
def test_gradients(geometry: Geometry, device: torch.device) -> None:
    torch.manual_seed(1)
    fine, half = (random_volume(geometry, 0, pooled=pooled).to(device) for pooled in (False, True))
    _, switches = volumes.pool(fine, geometry, 0)
    assert gradcheck(lambda s: volumes.pool(s, geometry, 0)[0], fine.clone().requires_grad_())
    assert gradcheck(lambda s: volumes.unpool(s, switches, geometry, 0).clamp(min=-1), half.requires_grad_())
    assert gradcheck(summation, (fine[0, 0].requires_grad_(), torch.rand_like(fine[0, 0], requires_grad=True)))


def test_the_gradient_goes_to_the_first_of_equals(device: torch.device, dtype: torch.dtype) -> None:
    scores = torch.ones(1, 1, 1, 3, 3, device=device, dtype=dtype, requires_grad=True)
    pooled, _ = max_pooling(scores, (2, 2))
    # windows centred at (0,0), (0,2), (2,0), (2,2): their first cells inside the map
    (gradient,) = torch.autograd.grad(pooled.sum(), scores)
    assert gradient[0, 0, 0].tolist() == [[1, 1, 0], [1, 1, 0], [0, 0, 0]]
    coarse = torch.ones(1, 1, 1, 2, 2, device=device, dtype=dtype, requires_grad=True)
    switches = torch.tensor([[[[[8, 6], [2, 0]]]]], dtype=torch.uint8, device=device)
    (gradient,) = torch.autograd.grad(unpooling(coarse, switches, (3, 3))[0, 0, 0, 1, 1], coarse)
    assert gradient[0, 0, 0].tolist() == [[1, 0], [0, 0]]  # all four chose (1,1); the first window gets it


def test_more_than_two_to_the_31_elements() -> None:
    """A volume whose last cells lie beyond index 2³¹: their maxima must still be found. Only those are looked at."""
    side, points = 1025, 2048  # 2048 · 1025² > 2³¹
    row = torch.zeros(side, dtype=torch.bfloat16)
    row[-1] = 7
    scores = row.expand(1, 1, points, side, side)
    assert scores.numel() > 2**31
    offset = side - 3
    pooled, switches = max_pooling(scores, (2, 2), offset)
    assert pooled[0, 0, -1, -1].tolist() == [0, 7]
    assert switches[0, 0, -1, -1, -1] == 1  # the first of the two rows of its window, its last existing column
    back = unpooling(pooled[:, :, -1:], switches[:, :, -1:], (side, side), offset)
    assert back[0, 0, 0, -2, -1] == 7


def test_minus_infinity_stays_in_the_sum_which_takes_the_place_of_the_unpooled_scores(
    device: torch.device, dtype: torch.dtype
) -> None:
    scores, unpooled = (torch.tensor(v, device=device, dtype=dtype) for v in ([1.0, 2.0], [-math.inf, 3.0]))
    assert summation(scores, unpooled) is unpooled and unpooled.tolist() == [-math.inf, 5.0]


@pytest.mark.slow
@everywhere
def test_the_gpu_kernels_agree(g: Geometry, gpu: ModuleType, gpu_device: str) -> None:
    window = (g.pool_offset(0), g.pool_reach)
    scores, refined = grid_volume(g, 0, 0, -2, gpu_device), grid_volume(g, 0, 1, device=gpu_device)
    assert_same_gradients(gpu.max_pooling, max_pooling, [scores], g.window(1), *window)
    sparse = with_gaps(scores)
    pooled, switches = max_pooling.definition(sparse, g.window(1), *window)
    torch.testing.assert_close(gpu.max_pooling(sparse, g.window(1), *window), (pooled, switches), rtol=0, atol=0)
    for some in (refined, with_gaps(refined)):
        assert_same_gradients(gpu.unpooling, unpooling, [some], switches, g.window(0), *window)
