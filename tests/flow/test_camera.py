"""The motion of the camera, and what leaves the frame with it."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor

from deepmatching.flow import InterpolationSettings, interpolate
from deepmatching.flow.camera import camera_of, epipolar_distances
from deepmatching.flow.filters import MatchTensors
from deepmatching.flow.interpolation import sparse_to_dense

SIZE = (96, 160)
PIXEL = 4 / sum(SIZE)
MIDDLE = torch.tensor([(SIZE[1] - 1) / 2, (SIZE[0] - 1) / 2], dtype=torch.float64)
SETTINGS = InterpolationSettings(saliency=0, confidence=0)


def driven(points: Tensor, forward: float = 0.25) -> Tensor:
    """Return where a road (N, 2), seen from a camera that moves forward and turns a little, goes."""
    x = torch.cat([(points - MIDDLE) * PIXEL, torch.ones_like(points[:, :1])], dim=1)
    depth = 1 / (0.3 + 0.5 * (x[:, 1] + 1))
    turn = torch.linalg.matrix_exp(torch.tensor([[0.0, 0, 0.02], [0, 0, 0.01], [-0.02, -0.01, 0]], dtype=torch.float64))
    moved = (x * depth[:, None]) @ turn.T - torch.tensor([0.0, 0.0, forward], dtype=torch.float64)
    return moved[:, :2] / moved[:, 2:] / PIXEL + MIDDLE


def grid(step: int) -> Tensor:
    y, x = (torch.arange(step // 2, side, step, dtype=torch.float64) for side in SIZE)
    return torch.stack(torch.meshgrid(x, y, indexing="xy"), dim=2).reshape(-1, 2)


def seen(points: Tensor) -> Tensor:
    """Return which points lie in the frame."""
    return ((points - MIDDLE).abs() <= MIDDLE).all(dim=1)


def errors(settings: InterpolationSettings, start: Tensor, end: Tensor) -> Tensor:
    """Return the errors of the flow of these matches at the pixels of the road that leave the frame."""
    flow = torch.from_numpy(interpolate(start, end, np.full(SIZE, 0.1), settings=settings).flow).reshape(-1, 2)
    pixels = grid(1)
    return (pixels + flow - driven(pixels)).norm(dim=1)[~seen(driven(pixels))]


def test_what_leaves_the_frame_follows_the_camera() -> None:
    start = grid(8)
    start = start[seen(driven(start))]
    with_camera, without = (errors(replace(SETTINGS, camera=least), start, driven(start)) for least in (0.85, 0.0))
    assert len(without) > 1000 and without.mean() > 0.5
    assert with_camera.mean() < 0.1 * without.mean()


def test_what_moves_by_itself_leaves_as_its_matches_say() -> None:
    start = grid(8)
    own = start[:, 0] > 110
    end = torch.where(own[:, None], start + torch.tensor([0.0, -25.0]), driven(start))
    start, end = start[seen(end)], end[seen(end)]
    flows = [
        interpolate(start, end, np.full(SIZE, 0.1), settings=replace(SETTINGS, camera=least)).flow
        for least in (0.85, 0)
    ]
    assert (flows[0] != flows[1]).any()
    np.testing.assert_array_equal(flows[0][:, 130:], flows[1][:, 130:])


def test_a_few_matches_say_nothing_about_a_camera() -> None:
    start = grid(8)
    start = start[seen(driven(start))][::5][:29]
    found = [errors(replace(SETTINGS, camera=least), start, driven(start)) for least in (0.85, 0)]
    assert torch.equal(*found)


@pytest.mark.parametrize("wrong", [0.0, 0.1])
def test_wrong_matches_do_not_change_the_camera(wrong: float) -> None:
    rng = torch.Generator().manual_seed(0)
    start = torch.rand(600, 2, generator=rng, dtype=torch.float64) * 2 * MIDDLE
    depths = 1 + 3 * torch.rand(600, 1, generator=rng, dtype=torch.float64)
    x = torch.cat([(start - MIDDLE) * PIXEL, torch.ones_like(depths)], dim=1)
    moved = x * depths - torch.tensor([0.1, 0.02, 0.2], dtype=torch.float64)
    y = moved / moved[:, 2:]
    is_wrong = torch.rand(600, generator=rng) < wrong
    given = y.clone()
    given[is_wrong, :2] += torch.randn(int(is_wrong.sum()), 2, generator=rng, dtype=torch.float64) * 0.05
    camera = camera_of(x, given, torch.ones(600, dtype=torch.float64), PIXEL)
    assert epipolar_distances(camera.fundamental, x, y)[0].mean() < 0.03 * PIXEL
    epipole = camera.epipole[:2] / camera.epipole[2]
    torch.testing.assert_close(epipole, torch.tensor([0.5, 0.1], dtype=torch.float64), atol=2 * PIXEL, rtol=0)
    to = x @ camera.plane.T
    volume = torch.linalg.det(torch.stack([to, camera.epipole.expand_as(to), y], dim=1))  # 0: y lies between A x and e
    assert volume.abs().mean() < 0.1 * PIXEL


def test_the_frame_is_that_of_the_second_image() -> None:
    start = grid(8)
    start = start[seen(driven(start))]
    matches = MatchTensors(start, driven(start), start[:, 0], torch.ones(len(start), dtype=torch.bool))
    edges = torch.full(SIZE, 0.1)
    flows = [sparse_to_dense(matches, edges, settings=SETTINGS, size1=size1).flow for size1 in (None, SIZE, (48, 80))]
    assert torch.equal(flows[0], flows[1])
    changed = (flows[2] != flows[1]).any(dim=2)
    ends = grid(1) + flows[1].reshape(-1, 2)
    assert changed.any() and (ends > torch.tensor([79.0, 47.0]) - 1).any(dim=1)[changed.flatten()].all()
