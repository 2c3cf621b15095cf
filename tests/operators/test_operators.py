"""Each operator against brute force from the paper's equations, and its gradient against finite differences."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.autograd import gradcheck

from deepmatching.geometry import Geometry
from deepmatching.operators import (
    aggregation,
    disaggregation,
    max_pooling,
    power,
    summation,
    unpooling,
)
from helpers.brute_force import brute_aggregation, brute_max_pooling


@st.composite
def geometries(draw: st.DrawFn) -> Geometry:
    """Small pairs on both lattices; two sizes, one to three levels, odd and even radii."""
    size0, size1 = ((8 * draw(st.integers(1, 4)), 8 * draw(st.integers(1, 4))) for _ in range(2))
    radius = draw(st.one_of(st.none(), st.sampled_from([2, 4, 6, 10, 14])))
    return Geometry(size0, size1, radius=radius, levels=draw(st.integers(1, 2)))


def volume(geometry: Geometry, l: int, pooled: bool = False, ties: bool = False) -> torch.Tensor:
    """Random scores of shape (1, H_l, W_l, h, w), float64; with ``ties`` from a few values only."""
    shape = (1, *geometry.grid(l), *geometry.window(l + 1 if pooled else l))
    return torch.randint(0, 4, shape).double() / 4 if ties else torch.rand(shape, dtype=torch.float64)


def pool(scores: torch.Tensor, geometry: Geometry, l: int) -> tuple[torch.Tensor, torch.Tensor]:
    return max_pooling(scores, geometry.window(l + 1), geometry.pool_offset(l), geometry.pool_reach)


def unpool(scores: torch.Tensor, switches: torch.Tensor, geometry: Geometry, l: int) -> torch.Tensor:
    return unpooling(scores, switches, geometry.window(l), geometry.pool_offset(l), geometry.pool_reach)


def chosen_cells(switches: torch.Tensor, geometry: Geometry, l: int) -> torch.Tensor:
    """Raster index in S_l's window of each switch."""
    side = 2 * geometry.pool_reach + 1
    h, w = switches.shape[-2:]
    rows = 2 * torch.arange(h)[:, None] + geometry.pool_offset(l) - geometry.pool_reach + switches.long() // side
    columns = 2 * torch.arange(w) + geometry.pool_offset(l) - geometry.pool_reach + switches.long() % side
    return rows * geometry.window(l)[1] + columns


@settings(max_examples=25, deadline=None)
@given(geometry=geometries(), ties=st.booleans())
def test_max_pooling_is_the_maximum_over_the_window(geometry: Geometry, ties: bool) -> None:
    scores = volume(geometry, 0, ties=ties)
    pooled, switches = pool(scores, geometry, 0)
    expected, cells = brute_max_pooling(scores[0], geometry, 0)
    assert torch.equal(pooled[0], expected)
    assert torch.equal(chosen_cells(switches, geometry, 0)[0], cells)  # the first maximum in raster order


@settings(max_examples=25, deadline=None)
@given(geometry=geometries(), ties=st.booleans())
def test_unpooling_puts_scores_back_where_they_came_from(geometry: Geometry, ties: bool) -> None:
    _, switches = pool(volume(geometry, 0, ties=ties), geometry, 0)
    scores = volume(geometry, 0, pooled=True, ties=ties)
    expected = torch.full((1, *geometry.shape(0)), -math.inf, dtype=torch.float64).flatten(-2)
    expected.scatter_reduce_(-1, chosen_cells(switches, geometry, 0).flatten(-2), scores.flatten(-2), "amax")
    assert torch.equal(unpool(scores, switches, geometry, 0).flatten(-2), expected)


@settings(max_examples=20, deadline=None)
@given(geometry=geometries())
def test_aggregation_is_the_mean_of_the_existing_children(geometry: Geometry) -> None:
    for l in range(geometry.L):
        pooled = volume(geometry, l, pooled=True)
        result = aggregation(pooled, geometry.grid(l + 1), geometry.links(l), geometry.children(l + 1))
        torch.testing.assert_close(result[0], brute_aggregation(pooled[0], geometry, l))


@settings(max_examples=20, deadline=None)
@given(geometry=geometries(), l=st.integers(0, 1))
def test_disaggregation_gives_each_child_its_best_parent(geometry: Geometry, l: int) -> None:
    """Disaggregation is the transpose of aggregation with max for sum: compare link by link."""
    l = min(l, geometry.L - 1)
    scores = volume(geometry, l + 1)
    result = disaggregation(scores, geometry.grid(l), geometry.links(l))[0]
    expected = torch.full_like(result, -math.inf)
    H, W, h, w = scores.shape[1:]
    for i in range(H):
        for j in range(W):
            for di, dj, da, db in geometry.links(l):
                for a in range(h):
                    for b in range(w):
                        child = (i + di, j + dj, a + da, b + db)
                        if all(0 <= c < n for c, n in zip(child, expected.shape, strict=True)):
                            expected[child] = max(expected[child], scores[0, i, j, a, b])
    assert torch.equal(result, expected)


def test_power_cuts_negative_scores_and_has_a_finite_gradient_at_zero() -> None:
    scores = torch.tensor([-1.0, 0.0, 0.25, 1.0], dtype=torch.float64, requires_grad=True)
    exponent = torch.tensor(0.5, dtype=torch.float64, requires_grad=True)
    result = power(scores, exponent)
    result.sum().backward()
    assert result.tolist() == [0.0, 0.0, 0.5, 1.0]
    assert scores.grad is not None and scores.grad.tolist() == [0.0, 0.0, 1.0, 0.5]
    assert exponent.grad is not None and exponent.grad.item() == pytest.approx(0.5 * math.log(0.25))
    with torch.no_grad():
        assert torch.equal(power(scores, exponent), result)


def test_summation_keeps_minus_infinity() -> None:
    assert summation(torch.tensor([1.0, 2.0]), torch.tensor([-math.inf, 3.0])).tolist() == [-math.inf, 5.0]


GEOMETRIES = [
    Geometry((16, 16), (16, 16), radius=4, levels=2),
    Geometry((16, 8), (16, 16), radius=6, levels=2),
    Geometry((16, 16), (16, 8), radius=None, levels=2),
]


@pytest.mark.parametrize("geometry", GEOMETRIES)
def test_gradients_of_the_operators(geometry: Geometry) -> None:
    torch.manual_seed(1)
    S_0 = volume(geometry, 0).requires_grad_()
    assert gradcheck(lambda s: pool(s, geometry, 0)[0], S_0)
    _, switches = pool(S_0.detach(), geometry, 0)
    half = volume(geometry, 0, pooled=True).requires_grad_()
    assert gradcheck(lambda s: unpool(s, switches, geometry, 0).clamp(min=-1), half)
    assert gradcheck(lambda s: aggregation(s, geometry.grid(1), geometry.links(0), geometry.children(1)), half)
    S_1 = volume(geometry, 1).requires_grad_()
    assert gradcheck(lambda s: disaggregation(s, geometry.grid(0), geometry.links(0)).clamp(min=-1), S_1)
    exponent = torch.tensor(1.4, dtype=torch.float64, requires_grad=True)
    assert gradcheck(power, (S_1, exponent))
    assert gradcheck(lambda s, u: summation(s, u), (S_1, S_1.detach().clone().requires_grad_()))


def test_gradient_goes_to_the_first_of_equal_maxima() -> None:
    scores = torch.ones(1, 1, 1, 3, 3, requires_grad=True)
    pooled, _ = max_pooling(scores, (2, 2))
    pooled.sum().backward()
    assert scores.grad is not None
    # windows centred at (0,0), (0,2), (2,0), (2,2): their first cells inside the map
    assert scores.grad[0, 0, 0].tolist() == [[1, 1, 0], [1, 1, 0], [0, 0, 0]]
    coarse = torch.ones(1, 1, 1, 2, 2, requires_grad=True)
    unpooling(coarse, torch.tensor([[[[[8, 6], [2, 0]]]]], dtype=torch.uint8), (3, 3))[0, 0, 0, 1, 1].backward()
    assert coarse.grad is not None
    assert coarse.grad[0, 0, 0].tolist() == [[1, 0], [0, 0]]  # all four chose (1,1); the first window gets it


def test_more_than_two_to_the_31_elements() -> None:
    """A volume whose last cells lie beyond index 2³¹: their maxima must still be found."""
    side, points = 1025, 2048  # 2048 · 1025² > 2³¹
    row = torch.zeros(side, dtype=torch.bfloat16)
    row[-1] = 7
    scores = row.expand(1, 1, points, side, side)
    assert scores.numel() > 2**31
    pooled, switches = max_pooling(scores, (513, 513))
    assert pooled[0, 0, -1, -1, -1] == 7
    assert pooled[0, 0, -1, -1, -2] == 0
    assert switches[0, 0, -1, -1, -1] == 1  # the first of the two rows of its window, its last existing column
    back = unpooling(pooled[:, :, -1:], switches[:, :, -1:], (side, side))
    assert back[0, 0, 0, -2, -1] == 7
