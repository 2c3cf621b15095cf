"""Max pooling against brute force from eq. (3), its gradient, and its GPU kernel."""

from types import ModuleType

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.autograd import gradcheck

from deepmatching.geometry.discretization import Geometry
from deepmatching.kernels.registry import plain_operators
from deepmatching.network.operators import max_pooling, unpooling
from helpers.brute_force import brute_max_pooling, chosen_cells
from helpers.volumes import (
    TINY,
    assert_same_gradient,
    everywhere,
    grid_volume,
    pool,
    random_volume,
    small_pairs,
    with_gaps,
)


@settings(max_examples=25)
@given(geometry=small_pairs(), ties=st.booleans())
def test_it_is_the_maximum_over_the_window(
    geometry: Geometry, ties: bool, device: torch.device, dtype: torch.dtype
) -> None:
    scores = random_volume(geometry, 0, ties=ties).to(device, dtype)
    pooled, switches = pool(scores, geometry, 0)
    expected, cells = brute_max_pooling(scores[0].cpu(), geometry, 0)
    assert torch.equal(pooled[0].cpu(), expected)
    assert torch.equal(chosen_cells(switches.cpu(), geometry, 0)[0], cells)  # the first maximum in raster order


@pytest.mark.parametrize("reach", [1, 2])
def test_shapes_and_types(reach: int, device: torch.device, dtype: torch.dtype) -> None:
    scores = torch.rand(2, 3, 4, 7, 9, device=device, dtype=dtype)
    pooled, switches = max_pooling(scores, (4, 5), 0, reach)
    assert pooled.shape == switches.shape == (2, 3, 4, 4, 5)
    assert pooled.dtype == dtype and switches.dtype == torch.uint8
    assert pooled.device == switches.device == scores.device


def test_volumes_have_five_axes() -> None:
    with plain_operators(), pytest.raises(IndexError):
        max_pooling(torch.rand(3, 4, 7, 9), (4, 5))


@pytest.mark.parametrize("geometry", TINY)
def test_gradient(geometry: Geometry, device: torch.device) -> None:
    torch.manual_seed(1)
    assert gradcheck(lambda s: pool(s, geometry, 0)[0], random_volume(geometry, 0).to(device).requires_grad_())


def test_the_gradient_goes_to_the_first_of_equal_maxima(device: torch.device, dtype: torch.dtype) -> None:
    scores = torch.ones(1, 1, 1, 3, 3, device=device, dtype=dtype, requires_grad=True)
    pooled, _ = max_pooling(scores, (2, 2))
    pooled.sum().backward()
    assert scores.grad is not None
    # windows centred at (0,0), (0,2), (2,0), (2,2): their first cells inside the map
    assert scores.grad[0, 0, 0].tolist() == [[1, 1, 0], [1, 1, 0], [0, 0, 0]]


def test_more_than_two_to_the_31_elements() -> None:
    """A volume whose last cells lie beyond index 2³¹: their maxima must still be found. Only those are looked at."""
    side, points = 1025, 2048  # 2048 · 1025² > 2³¹
    row = torch.zeros(side, dtype=torch.bfloat16)
    row[-1] = 7
    scores = row.expand(1, 1, points, side, side)
    assert scores.numel() > 2**31
    offset = side - 3
    pooled, switches = max_pooling(scores, (2, 2), offset)
    assert pooled[0, 0, -1, -1, -1] == 7
    assert pooled[0, 0, -1, -1, -2] == 0
    assert switches[0, 0, -1, -1, -1] == 1  # the first of the two rows of its window, its last existing column
    back = unpooling(pooled[:, :, -1:], switches[:, :, -1:], (side, side), offset)
    assert back[0, 0, 0, -2, -1] == 7


@pytest.mark.slow
@everywhere
def test_the_gpu_kernel_agrees(g: Geometry, gpu: ModuleType, gpu_device: str) -> None:
    scores = grid_volume(g, 0, 0, -2, gpu_device)
    window = (g.window(1), g.pool_offset(0), g.pool_reach)
    plain = max_pooling.definition
    assert_same_gradient(lambda s: gpu.max_pooling(s, *window)[0], lambda s: plain(s, *window)[0], scores)
    sparse = with_gaps(scores)
    torch.testing.assert_close(gpu.max_pooling(sparse, *window), plain(sparse, *window), rtol=0, atol=0)
