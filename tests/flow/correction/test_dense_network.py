"""The dense network, and the affine fits that are candidates for a point's motion."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from deepmatching.errors import DeepMatchingError
from deepmatching.flow.correction import DenseNetwork, InitialFlow
from deepmatching.flow.correction.dense_network import (
    NEIGHBOURS,
    affine_candidates,
    convex,
    in_bands,
    probability_within,
)
from deepmatching.geometry.discretization import Geometry
from deepmatching.geometry.targets import Decoded
from deepmatching.network.operators.evidence import squash


def _inputs(rows: int, columns: int, moved: torch.Tensor, channels: int = 6) -> tuple:
    """Return matches that move by ``moved`` (2,), all of them trusted, and random descriptors."""
    geometry = Geometry.for_downscale((rows, columns), (rows, columns), 1, 16)
    grid = rows // 8, columns // 8
    y, x = (torch.arange(n) * 8.0 + 4 for n in grid)
    points0 = torch.stack(torch.broadcast_tensors(x, y[:, None]), dim=-1)
    ones = torch.ones(1, *grid)
    decoded = Decoded(points0, (points0 + moved)[None], ones, ones.long(), ones > 0, 0.99 * ones, 0.01 * ones)
    generator = torch.Generator().manual_seed(0)
    cells = [torch.randn(1, channels, rows // 2 + 1, columns // 2 + 1, generator=generator) for _ in range(2)]
    flow = moved.view(1, 2, 1, 1).expand(1, 2, rows, columns)
    start = InitialFlow(flow, torch.full((1, 1, rows, columns), 0.9), torch.ones(1))
    return torch.rand(1, 3, rows, columns, generator=generator), decoded, *cells, geometry, start


@pytest.mark.parametrize("size", [(32, 48), (64, 40), (8, 72)])
def test_an_untrained_network_keeps_a_constant_motion(size: tuple[int, int]) -> None:
    network = DenseNetwork(6, width=8, fine=8, scales=2)
    found = network(*_inputs(*size, torch.tensor([3.0, -2.0])))
    expected = torch.tensor([3.0, -2.0]).view(1, 2, 1, 1).expand(1, 2, *size)
    torch.testing.assert_close(found.flow, expected, atol=1e-4, rtol=0)
    coarse, fine = ((size[0] // step, size[1] // step) for step in (8, 4))
    assert [m.shape[2:] for m in (*found.coarse, *found.fine)] == [coarse] * 3 + [fine]


@pytest.mark.parametrize("rows", [70, 150])
def test_rows_at_a_time_change_nothing(rows: int) -> None:
    network = DenseNetwork(6, width=8, fine=8, scales=2).double()
    torch.nn.init.normal_(network.fine_update.second.weight)
    generator = torch.Generator().manual_seed(rows)
    channels = 8, 24, 25, 7, 2  # state, what the context adds, S_0 around the motion, what is known, the motion
    maps = [torch.randn(1, c, rows, 9, dtype=torch.float64, generator=generator) for c in channels]
    own = torch.randn(1, 2, 4 * rows, 36, dtype=torch.float64, generator=generator)
    update = network.fine_update
    for work, inputs in ((update, maps), (update.seen, maps[:1]), (network._of_pixels, (maps[0], maps[4], own))):
        expected = work(*inputs)
        with torch.no_grad():
            found = in_bands(work, *inputs)
        for one, other in zip(found, expected, strict=True):
            torch.testing.assert_close(one, other)


def test_an_update_is_a_step_of_a_gru() -> None:
    update = DenseNetwork(6, width=8, fine=8, scales=2).double().fine_update
    torch.nn.init.normal_(update.second.weight)
    generator = torch.Generator().manual_seed(0)
    state, context, around, far, moved = (
        torch.randn(2, c, 7, 9, dtype=torch.float64, generator=generator) for c in (8, 8, 25, 7, 2)
    )
    found = update(state, *update.seen(context), around, far, moved)

    smooth = torch.nn.functional.pad(moved, (1, 1, 1, 1), mode="replicate").unfold(2, 3, 1).unfold(3, 3, 1)
    x = update.motion(torch.cat([2 * around, far, squash(smooth.mean(dim=(4, 5)) - moved, 4.0)], dim=1)).relu()
    keep, reset = update.gates(torch.cat([state, x, context], dim=1)).sigmoid().chunk(2, dim=1)
    proposal = update.proposal(torch.cat([reset * state, x, context], dim=1)).tanh()
    expected = keep * state + (1 - keep) * proposal
    torch.testing.assert_close(found[0], expected)
    torch.testing.assert_close(found[1], 4 * update.second(update.first(expected).relu()))


def test_every_parameter_gets_a_gradient() -> None:
    network = DenseNetwork(6, width=8, fine=8, scales=2)
    torch.nn.init.normal_(network.coarse_update.second.weight)
    torch.nn.init.normal_(network.fine_update.second.weight)
    found = network(*_inputs(32, 48, torch.tensor([3.0, -2.0])))
    sum(part.square().sum() for part in (found.flow, found.mixture, *found.coarse, *found.fine)).backward()
    assert all(p.grad is not None and torch.isfinite(p.grad).all() for p in network.parameters())


def test_matches_without_a_confidence_and_descriptors_of_whole_patches_are_refused() -> None:
    image, decoded, *rest = _inputs(32, 48, torch.zeros(2))
    with pytest.raises(DeepMatchingError, match="confidence"):
        DenseNetwork(6, width=8, fine=8)(image, decoded._replace(confidence=None), *rest)
    with pytest.raises(DeepMatchingError, match="one vector per position"):
        DenseNetwork(128, patch=4)


def test_pixels_are_convex_combinations_of_the_points_around_them() -> None:
    maps = torch.arange(12.0).view(1, 1, 3, 4)
    weights = torch.full((1, 9, 16, 3, 4), -1e4)
    weights[:, 5] = 0  # the point to the right
    found = convex(maps, weights.flatten(1, 2))
    assert found.shape == (1, 1, 12, 16)
    assert found[0, 0, 0].tolist() == [1.0] * 4 + [2.0] * 4 + [3.0] * 8


def test_a_pixel_can_keep_a_value_of_its_own() -> None:
    own = torch.arange(192.0).view(1, 1, 12, 16)
    weights = torch.full((1, 10, 16, 3, 4), -1e4)
    weights[:, 9] = 0
    assert torch.equal(convex(torch.zeros(1, 1, 3, 4), weights.flatten(1, 2), own), own)
    weights[:, 4] = 0  # the point itself
    assert torch.equal(convex(torch.zeros(1, 1, 3, 4), weights.flatten(1, 2), own), own / 2)


def test_the_probability_of_a_small_error_is_that_of_drawn_errors() -> None:
    scale = 2.5
    mixture = torch.tensor([0.4, math.log(scale)]).view(1, 2, 1, 1)
    generator = np.random.default_rng(0)
    wide = generator.random((400_000, 2)) > 1 / (1 + math.exp(-0.4))  # of each coordinate, as in training
    errors = generator.laplace(size=(400_000, 2)) * np.where(wide, scale, 0.4)
    stated = probability_within(mixture, 3.0).item()
    assert stated == pytest.approx((np.hypot(*errors.T) < 3).mean(), abs=0.02)


def test_the_probability_is_smooth_where_both_scales_are_equal() -> None:
    near, equal = (torch.tensor([0.4, math.log(0.4) + d]).view(1, 2, 1, 1) for d in (0.01, 0.0))
    assert probability_within(equal, 3.0).item() == pytest.approx(probability_within(near, 3.0).item(), abs=1e-4)


def _affine(rows: int, columns: int, slopes: list[list[float]], shift: list[float]) -> torch.Tensor:
    y, x = torch.meshgrid(torch.arange(rows).double(), torch.arange(columns).double(), indexing="ij")
    return torch.stack([s[0] * x + s[1] * y + b for s, b in zip(slopes, shift, strict=True)])[None]


def _own(scale: int) -> int:
    """Return the number of the candidate of a point's own square."""
    return NEIGHBOURS * (scale - 1) + NEIGHBOURS // 2


@given(
    st.integers(8, 20), st.integers(8, 20), st.lists(st.floats(-1, 1), min_size=6, max_size=6), st.integers(0, 2**31)
)
def test_every_fit_of_an_affine_motion_is_that_motion(rows: int, columns: int, numbers: list[float], seed: int) -> None:
    moved = _affine(rows, columns, [numbers[:2], numbers[2:4]], numbers[4:])
    drawn = torch.rand(1, 1, rows, columns, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    found = affine_candidates(moved, 0.2 + 0.8 * drawn, 2, ridge=1e-9)
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
