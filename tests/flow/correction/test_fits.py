"""Candidates for a point's motion from affine fits."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from deepmatching.flow.correction.dense_network import NEIGHBOURS, affine_candidates


def _affine(rows: int, columns: int, slopes: list[list[float]], shift: list[float]) -> torch.Tensor:
    y, x = torch.meshgrid(torch.arange(rows).double(), torch.arange(columns).double(), indexing="ij")
    return torch.stack([s[0] * x + s[1] * y + b for s, b in zip(slopes, shift, strict=True)])[None]


def _own(scale: int) -> int:
    """The number of the candidate of a point's own square."""
    return NEIGHBOURS * (scale - 1) + NEIGHBOURS // 2


@given(
    st.integers(8, 20),
    st.integers(8, 20),
    st.lists(st.floats(-1, 1), min_size=6, max_size=6),
    st.integers(0, 2**31 - 1),
)
def test_every_fit_of_an_affine_motion_is_that_motion(rows: int, columns: int, numbers: list[float], seed: int) -> None:
    moved = _affine(rows, columns, [numbers[:2], numbers[2:4]], numbers[4:])
    weights = 0.2 + 0.8 * torch.rand(
        1, 1, rows, columns, dtype=torch.float64, generator=torch.Generator().manual_seed(seed)
    )
    found = affine_candidates(moved, weights, 2, ridge=1e-9)
    assert found.moved.shape == (1, NEIGHBOURS * 2, 2, rows, columns)
    torch.testing.assert_close(found.moved, moved[:, None].expand_as(found.moved), atol=1e-3, rtol=0)


def test_matches_without_weight_do_not_count() -> None:
    moved = _affine(16, 16, [[0.1, 0.0], [0.0, 0.1]], [3.0, 1.0])
    weights = torch.ones(1, 1, 16, 16, dtype=torch.float64)
    spoilt = moved.clone()
    spoilt[:, :, 5, 7], weights[:, :, 5, 7] = 500.0, 0.0
    found = affine_candidates(spoilt, weights, 1, ridge=1e-9).moved[:, _own(1)]
    torch.testing.assert_close(found[:, :, 5, 7], moved[:, :, 5, 7], atol=1e-3, rtol=0)


def test_a_fit_extends_beyond_its_matches() -> None:
    moved = _affine(16, 32, [[0.2, 0.0], [0.0, 0.3]], [0.0, 0.0])
    weights = torch.zeros(1, 1, 16, 32, dtype=torch.float64)
    weights[..., :16] = 1
    found = affine_candidates(torch.where(weights > 0, moved, 0.0), weights, 3, ridge=1e-9)
    left = NEIGHBOURS * 2 + 3  # scale 3, the square to the left
    torch.testing.assert_close(found.moved[0, left, :, :, 24:], moved[0, :, :, 24:], atol=1e-2, rtol=0)
    assert (found.support[0, left, :, 24:] > 0).all()
    assert (found.support[0, _own(3), 8, 31] == 0).all()


def test_a_window_has_its_square_and_half_of_the_squares_around_it() -> None:
    weights = torch.zeros(1, 1, 8, 8, dtype=torch.float64)
    weights[0, 0, 2, 2] = 1
    support = affine_candidates(torch.zeros(1, 2, 8, 8, dtype=torch.float64), weights, 1).support[0, _own(1)]
    assert support[2:4, 2:4].eq(1).all() and support[2:4, 4:6].eq(0.5).all() and support[0:2, 4:6].eq(0.25).all()
    assert support[6:].eq(0).all()


@pytest.mark.parametrize("size", [(1, 1), (3, 50), (50, 3)])
def test_grids_of_any_size_have_finite_candidates_and_gradients(size: tuple[int, int]) -> None:
    moved = torch.randn(2, 2, *size, requires_grad=True)
    weights = torch.rand(2, 1, *size).requires_grad_()
    found = affine_candidates(moved, weights, 4)
    found.moved.sum().backward()
    assert torch.isfinite(found.moved).all()
    assert all(torch.isfinite(t.grad).all() for t in (moved, weights) if t.grad is not None)


def test_gradients_are_those_of_finite_differences() -> None:
    generator = torch.Generator().manual_seed(3)
    moved = torch.randn(1, 2, 4, 5, dtype=torch.float64, generator=generator).requires_grad_()
    weights = (0.2 + torch.rand(1, 1, 4, 5, dtype=torch.float64, generator=generator)).requires_grad_()
    assert torch.autograd.gradcheck(lambda m, w: affine_candidates(m, w, 1).moved, (moved, weights))
