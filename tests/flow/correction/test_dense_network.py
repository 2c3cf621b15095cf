"""The dense network."""

import math

import numpy as np
import pytest
import torch

from deepmatching.errors import DeepMatchingError
from deepmatching.flow.correction import DenseNetwork, InitialFlow
from deepmatching.flow.correction.dense_network import convex, in_bands, probability_within
from deepmatching.geometry.discretization import Geometry
from deepmatching.geometry.targets import Decoded
from deepmatching.network.operators.evidence import squash


def _inputs(rows: int, columns: int, moved: torch.Tensor, channels: int = 6) -> tuple:
    """Matches that move by ``moved`` (2,), all of them trusted, and random descriptors."""
    geometry = Geometry.for_downscale((rows, columns), (rows, columns), 1, 16)
    grid = rows // 8, columns // 8
    y, x = (torch.arange(n) * 8.0 + 4 for n in grid)
    points0 = torch.stack(torch.broadcast_tensors(x, y[:, None]), dim=-1)
    certain = torch.full((1, *grid), 0.99)
    decoded = Decoded(
        points0,
        (points0 + moved)[None],
        torch.ones(1, *grid),
        torch.zeros(1, *grid, dtype=torch.int64),
        torch.ones(1, *grid, dtype=torch.bool),
        certain,
        1 - certain,
    )
    generator = torch.Generator().manual_seed(0)
    cells = [torch.randn(1, channels, rows // 2 + 1, columns // 2 + 1, generator=generator) for _ in range(2)]
    start = InitialFlow(
        moved.view(1, 2, 1, 1).expand(1, 2, rows, columns), torch.full((1, 1, rows, columns), 0.9), torch.ones(1)
    )
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
    (
        found.flow.square().sum() + found.mixture.sum() + sum(m.square().sum() for m in found.coarse + found.fine)
    ).backward()
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
