"""The loss of the confidence network."""

import math

import pytest
import torch

from deepmatching.geometry.discretization import Geometry
from deepmatching.network.losses import confidence_loss, is_occluded, is_right

GEOMETRY = Geometry((32, 48), (32, 48), levels=1, radius=16)


def test_a_match_is_right_if_it_is_less_than_three_pixels_off() -> None:
    flow = torch.tensor([4.0, -2.0]).expand(1, 32, 48, 2).clone()
    flow[0, :8, :8] = torch.nan  # unknown
    flow[0, 12, 12] = 9.0  # one of the four pixels that touch the point at (12, 12): a motion boundary
    moved = torch.tensor([4.0, -2.0]).expand(1, 4, 6, 2).clone()
    moved[0, 2, 3, 0] += 2.99
    moved[0, 2, 4, 1] -= 3.01
    right, known = is_right(moved, flow, GEOMETRY)
    assert not known[0, 0, 0] and not known[0, 1, 1] and known.sum() == 22
    assert right[0, 2, 3] and not right[0, 2, 4] and right.sum() == 21


def test_a_true_motion_out_of_the_image_or_the_radius_is_known() -> None:
    flow = torch.full((1, 32, 48, 2), 500.0)
    right, known = is_right(torch.zeros(1, 4, 6, 2), flow, GEOMETRY)
    assert known.all() and not right.any()


def test_a_point_is_hidden_if_all_pixels_that_touch_it_are() -> None:
    occluded = torch.zeros(1, 32, 48, dtype=torch.bool)
    occluded[0, :8, :8] = True  # touches (4, 4) with four pixels
    occluded[0, :12, 16:24] = True  # (20, 12) lies on its border
    occluded, known = is_occluded(occluded, GEOMETRY)
    assert occluded[0, 0, 0] and occluded.sum() == 2
    assert not known[0, 1, 2] and known.sum() == 23


def test_the_loss_is_the_mean_cross_entropy_of_the_known_answers() -> None:
    flow, moved = torch.zeros(1, 32, 48, 2), torch.zeros(1, 4, 6, 2)
    flow[0, :16] = torch.nan
    moved[0, 3] = 10.0  # the last row is wrong
    logits = torch.tensor([2.0, -1.0])[None, :, None, None].expand(1, 2, 4, 6)
    occluded = torch.zeros(1, 32, 48, dtype=torch.bool)
    loss, metrics = confidence_loss(logits, moved, flow, occluded, GEOMETRY)
    right = (math.log1p(math.exp(-2)) + math.log1p(math.exp(2))) / 2
    assert float(loss) == pytest.approx(right + 0.5 * math.log1p(math.exp(-1)), rel=1e-5)
    assert float(metrics["right"]) == 0.5 and float(metrics["judged"]) == 0.5


def test_without_a_known_point_the_loss_is_zero_and_has_a_gradient() -> None:
    logits = torch.rand(1, 2, 4, 6, requires_grad=True)
    flow = torch.full((1, 32, 48, 2), torch.nan)
    loss, _ = confidence_loss(logits, torch.zeros(1, 4, 6, 2), flow, torch.zeros(1, 32, 48, dtype=bool), GEOMETRY)
    loss.backward()
    assert loss.item() == 0 and logits.grad is not None and not logits.grad.any()
