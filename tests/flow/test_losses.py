"""Losses on the motion of every pixel."""

import math

import pytest
import torch

from deepmatching.flow.correction import DenseFlow
from deepmatching.flow.losses import dense_loss, interpolation_loss, log_likelihood


def _found(flow: torch.Tensor) -> DenseFlow:
    """Return a flow (B, 2, H, W) and its motions at the points."""
    coarse, fine = flow[:, :, 4::8, 4::8], flow[:, :, 2::4, 2::4]
    return DenseFlow(flow, torch.zeros_like(flow), [coarse, coarse], [fine])


def test_the_error_is_the_mean_distance_over_known_pixels() -> None:
    truth = torch.zeros(1, 16, 24, 2)
    truth[:, :, :8] = torch.nan
    flow = torch.zeros(1, 2, 16, 24)
    flow[:, :, :, :8] = 50
    flow[:, 0, :, 8:16], flow[:, 1, :, 8:16] = 3, 4
    _, metrics = dense_loss(_found(flow), truth)
    assert metrics["epe"].item() == pytest.approx(2.5, abs=1e-3)
    assert metrics["filled"].item() == pytest.approx(2.5, abs=1e-3)


def test_points_at_motion_boundaries_have_no_coarse_error() -> None:
    truth = torch.zeros(1, 8, 8, 2)
    truth[:, :, 4:] = 10  # the boundary runs through the only point of the coarse grid
    _, metrics = dense_loss(_found(torch.full((1, 2, 8, 8), 99.0)), truth)
    assert metrics["filled"].item() == 0


def test_the_likelihood_integrates_to_one() -> None:
    steps = torch.linspace(-60, 60, 4001)
    errors = torch.stack(torch.meshgrid(steps, steps, indexing="ij"))[None]
    mixture = torch.tensor([0.3, 1.0]).view(1, 2, 1, 1).expand_as(errors)
    total = log_likelihood(errors, mixture).exp().sum() * (steps[1] - steps[0]) ** 2
    assert total.item() == pytest.approx(1, abs=1e-2)


def test_certain_pixels_follow_the_narrow_distribution() -> None:
    found = log_likelihood(torch.full((1, 2, 1, 1), 0.5), torch.tensor([50.0, 3.0]).view(1, 2, 1, 1))
    assert found.item() == pytest.approx(2 * (-0.5 / 0.4 - math.log(2 * 0.4)), abs=1e-5)


def _matches() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    y, x = torch.meshgrid(torch.arange(6) * 8.0 + 3.5, torch.arange(8) * 8.0 + 3.5, indexing="ij")
    points = torch.stack([x, y], dim=-1).flatten(0, 1)
    truth = torch.stack(torch.meshgrid(torch.arange(48.0), torch.arange(64.0), indexing="ij")[::-1], dim=-1)
    return points, 0.1 * points + 1, 0.1 * truth + 1


def test_affine_matches_interpolate_to_the_truth() -> None:
    points, moved, truth = _matches()
    loss = interpolation_loss(moved, points, torch.ones(len(points)), torch.zeros(48, 64), truth, ridge=1e-9)
    assert loss.item() < 5e-3


def test_the_error_of_the_interpolated_flow_pulls_a_wrong_match_to_its_place() -> None:
    points, moved, truth = _matches()
    moved = moved.clone()
    moved[20, 0] += 4
    moved.requires_grad_()
    interpolation_loss(moved, points, torch.ones(len(points)), torch.zeros(48, 64), truth).backward()
    assert moved.grad is not None and moved.grad[20, 0] > 0
    assert moved.grad[20, 0] > 3 * moved.grad[:, 1].abs().max()


def test_matches_without_weight_change_nothing() -> None:
    points, moved, truth = _matches()
    weights = torch.ones(len(points))
    weights[20] = 0
    spoilt = moved.clone()
    spoilt[20] += 100
    losses = [interpolation_loss(m, points, weights, torch.zeros(48, 64), truth) for m in (moved, spoilt)]
    assert losses[0] == losses[1]
