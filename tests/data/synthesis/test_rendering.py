"""Rendered scenes: flow and occlusion are exact, and the frames agree with them."""

from dataclasses import replace

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from deepmatching.data.synthesis import PRESETS, Photos, Synthesizer
from deepmatching.data.synthesis.generator import to_device
from deepmatching.data.synthesis.layers import fetch, render, without_detail
from deepmatching.data.synthesis.motions import Waves
from deepmatching.data.synthesis.scene import Scene, Windows, draw_scene, to_window

PLAIN = replace(PRESETS["chairs"], cutouts=0.5)  #: no effect of light or camera
SIZE = (120, 160)


def look_back(image1: Tensor, flow: Tensor) -> Tensor:
    """image1 (n, 3, H, W) at the places where `flow` (n, H, W, 2) leads."""
    height, width = flow.shape[1:3]
    y, x = torch.meshgrid(torch.arange(height), torch.arange(width), indexing="ij")
    grid = torch.stack([(x + flow[..., 0]) * 2 / (width - 1) - 1, (y + flow[..., 1]) * 2 / (height - 1) - 1], -1)
    return F.grid_sample(image1, grid, padding_mode="border", align_corners=True)


@pytest.mark.parametrize("kind", ["small", "still", "driving", "viewpoint", None])
@pytest.mark.parametrize("nonrigid", [0.0, 1.0])
def test_visible_pixels_of_image0_lie_along_the_flow(photos: Photos, kind: str | None, nonrigid: float) -> None:
    settings = replace(PLAIN, max_displacement=40.0, nonrigid=nonrigid, **{kind: 1.0} if kind else {})
    pair = Synthesizer(photos, SIZE, settings).batch(3, torch.Generator().manual_seed(1))
    error = (look_back(pair.image1, pair.flow) - pair.image0).abs().mean(1)
    seen = error[~pair.occluded]
    # What remains is resampling, and the soft edges of things, where two motions share a pixel.
    assert seen.median() < 0.006
    assert seen.quantile(0.9) < 0.03
    assert seen.mean() < 0.015
    shifted = (look_back(pair.image1, pair.flow + torch.tensor([1.0, 0.5])) - pair.image0).abs().mean(1)
    assert shifted[~pair.occluded].median() > 2.5 * seen.median()


def test_both_frames_are_equally_sharp(photos: Photos) -> None:
    pair = Synthesizer(photos, SIZE, PLAIN).batch(16, torch.Generator().manual_seed(0))
    slope = [image.diff(dim=3).abs().mean() for image in pair[:2]]
    assert 0.95 < slope[0] / slope[1] < 1.05


def whole_windows(photos: Photos, index: int, shape: tuple[int, ...], step: float = 1.0, start: float = 0.0) -> Windows:
    offset, height, width = (np.full(shape, value) for value in photos.table[index, 0])
    steps, starts = np.full(shape, step), np.full(shape, start)
    return Windows(offset, height, width, starts, starts.copy(), steps, steps.copy(), np.ones(shape, bool))


def box_scene(photos: Photos, move: tuple[int, int]) -> Scene:
    """Return a square of 20 × 20 pixels at (30, 40) that moves by `move` before a resting background."""
    step = 1 / 20
    textures = whole_windows(photos, 1, (1, 1))
    masks = whole_windows(photos, photos.box, (1, 1), step, 1 + 0.5 * step)
    motion = np.tile(np.eye(3), (2, 1, 1, 1))
    motion[0, 0, :2, 2] = move
    placement = np.array([[1, 0, -30], [0, 1, -40], [0, 0, 1.0]])
    lookup = np.stack([to_window(64) @ placement, to_window(256)])[:, None]
    inverse = np.linalg.inv(motion)
    zero = np.zeros((2, 1, 3))
    return Scene(
        whole_windows(photos, 0, (1,)),
        Windows(*(np.stack(both) for both in zip(vars(textures).values(), vars(masks).values(), strict=True))),
        np.stack([lookup, lookup @ inverse], 2),
        motion,
        inverse,
        Waves(np.zeros((2, 1, 3, 2)), np.zeros((2, 1, 3, 2)), zero),
        np.zeros((0, 1)),
        np.zeros(0, np.int64),
        64,
        256,
    )


@pytest.mark.parametrize("move", [(7, 0), (-3, 12), (25, 25), (-40, 5), (0, 0)])
def test_flow_and_occlusion_of_a_moving_square(photos: Photos, move: tuple[int, int]) -> None:
    scene = to_device(box_scene(photos, move), torch.device("cpu"))
    result = render(scene, photos.texels, SIZE)
    square, moved = np.zeros(SIZE, bool), np.zeros(SIZE, bool)
    square[40:60, 30:50] = True
    y, x = np.nonzero(square)
    x, y = x + move[0], y + move[1]
    is_inside = (x >= 0) & (x < SIZE[1]) & (y >= 0) & (y < SIZE[0])
    moved[y[is_inside], x[is_inside]] = True
    occluded = moved & ~square
    occluded[40:60, 30:50] = ~is_inside.reshape(20, 20)
    expected = np.where(square[..., None], np.array(move), 0)
    np.testing.assert_allclose(result.flow[0], expected, atol=1e-4)
    np.testing.assert_array_equal(result.occluded[0], occluded)


def test_a_window_repeats_the_edge_or_mirrors_the_picture(photos: Photos) -> None:
    offset, height, width = photos.table[0, 0]
    picture = photos.texels[offset : offset + height * width].view(height, width)
    for clamp in (True, False):
        windows = whole_windows(photos, 0, (1,), start=-10.0 + 200)
        windows.clamp[:] = clamp
        found = fetch(photos.texels, to_device(windows, torch.device("cpu")), 400)
        found = found.movedim(1, 3).contiguous().view(torch.int32)[0, :, :, 0]
        mode = "edge" if clamp else "symmetric"
        after = ((10, 400 - 10 - int(height)), (10, 400 - 10 - int(width)))
        np.testing.assert_array_equal(found, np.pad(picture.numpy(), after, mode=mode))


def test_plain_scenes_keep_their_motion_and_lose_their_detail(photos: Photos) -> None:
    scenes = (draw_scene(np.random.default_rng(4), photos, SIZE, 3, s) for s in (PLAIN, replace(PLAIN, plain=1.0)))
    textured, plain = (render(to_device(scene, torch.device("cpu")), photos.texels, SIZE) for scene in scenes)
    assert torch.equal(textured.flow, plain.flow) and torch.equal(textured.visible, plain.visible)
    roughness = [(r.frames.diff(dim=-1).abs()).mean() for r in (textured, plain)]
    assert roughness[1] < 0.6 * roughness[0]  # outlines stay
    assert plain.frames.min() >= 0 and plain.frames.max() <= 1 + 1e-5


def test_a_picture_without_detail_keeps_its_outline_and_its_mean_colour() -> None:
    generator = torch.Generator().manual_seed(0)
    alpha = torch.zeros(1, 1, 32, 32)
    alpha[..., 8:24, 8:24] = 1
    tiles = torch.cat([torch.rand(1, 3, 32, 32, generator=generator) * alpha, alpha], dim=1)
    found = without_detail(tiles, torch.ones(1))
    assert torch.equal(found[:, 3:], alpha) and not found[:, :3][alpha.expand(1, 3, -1, -1) == 0].any()
    inside = found[0, :3, 8:24, 8:24]
    assert inside.std() < 0.2 * tiles[0, :3, 8:24, 8:24].std()
    torch.testing.assert_close(inside.mean((1, 2)), tiles[0, :3, 8:24, 8:24].mean((1, 2)), atol=0.03, rtol=0)
    assert torch.equal(without_detail(tiles, torch.zeros(1)), tiles)


def test_occlusion_agrees_with_the_foremost_layers_of_both_frames(photos: Photos) -> None:
    settings = replace(PLAIN, nonrigid=0.5, driving=0.3, max_displacement=40.0, min_layers=4)
    scene = to_device(draw_scene(np.random.default_rng(0), photos, SIZE, 5, settings), torch.device("cpu"))
    result = render(scene, photos.texels, SIZE)
    y, x = torch.meshgrid(torch.arange(SIZE[0]), torch.arange(SIZE[1]), indexing="ij")
    column, row = (x + result.flow[..., 0]).round().long(), (y + result.flow[..., 1]).round().long()
    inside = (column >= 0) & (column < SIZE[1]) & (row >= 0) & (row < SIZE[0])
    pair = torch.arange(5)[:, None, None]
    there = result.visible[pair, 1, row.clamp(0, SIZE[0] - 1), column.clamp(0, SIZE[1] - 1)]
    assert result.occluded[~inside].all()
    here = result.visible[:, 0]
    # Only along edges, where the nearest pixel of frame 1 may be another layer's, can the two differ.
    assert (there == here)[inside & ~result.occluded].float().mean() > 0.97
    assert (there < here)[inside & result.occluded].float().mean() > 0.9
    assert 0.02 < (inside & result.occluded).float().mean() < 0.4


def test_flow_does_not_depend_on_the_precision_that_a_training_run_chooses(photos: Photos) -> None:
    maker = Synthesizer(photos, SIZE, PLAIN)
    plain = maker.batch(2, torch.Generator().manual_seed(4))
    with torch.autocast("cpu", torch.bfloat16):
        again = maker.batch(2, torch.Generator().manual_seed(4))
    assert all(torch.equal(one, other) for one, other in zip(plain[:4], again[:4], strict=True))
