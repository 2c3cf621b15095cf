"""The loss on the motion of every pixel."""

import torch

from deepmatching.flow.losses import interpolation_loss


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
