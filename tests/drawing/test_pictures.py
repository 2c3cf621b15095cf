"""Pictures as arrays and as files, and the colours of displacements."""

from pathlib import Path

import cv2
import numpy as np
import pytest
import torch

from deepmatching.drawing import check_picture_path, flow_to_color, to_uint8_rgb, write_image
from deepmatching.drawing.pictures import WHEEL, displacement_colors, drawing_scale, flow_range, range_of, resize
from deepmatching.errors import DeepMatchingError


def test_to_uint8_rgb_inverts_the_loading_and_copies(rng: np.random.Generator) -> None:
    rgb = rng.integers(0, 256, (5, 6, 3), np.uint8)
    tensor = torch.from_numpy(rgb).permute(2, 0, 1).float() / 255
    np.testing.assert_array_equal(to_uint8_rgb(tensor), rgb)
    np.testing.assert_array_equal(to_uint8_rgb(tensor[:1]), rgb[:, :, [0, 0, 0]])
    np.testing.assert_array_equal(to_uint8_rgb(rgb[:, :, 1]), rgb[:, :, [1, 1, 1]])
    to_uint8_rgb(rgb)[:] = 0
    assert rgb.any()
    assert to_uint8_rgb(torch.tensor([[[-0.2, 1.3]]])).tolist() == [[[0] * 3, [255] * 3]]


@pytest.mark.parametrize("bad", [np.zeros((3, 4, 5), np.uint8), np.zeros((4, 4, 3)), torch.zeros(4, 4, 3)])
def test_to_uint8_rgb_refuses_others(bad: np.ndarray | torch.Tensor) -> None:
    with pytest.raises(DeepMatchingError, match="To be drawn"):
        to_uint8_rgb(bad)


@pytest.mark.parametrize("suffix", [".png", ".PPM", ".bmp", ".tiff"])
def test_write_image_keeps_the_pixels(tmp_path: Path, suffix: str, rng: np.random.Generator) -> None:
    rgb = rng.integers(0, 256, (7, 9, 3), np.uint8)
    path = tmp_path / f"größe{suffix}"
    write_image(path, rgb)
    np.testing.assert_array_equal(cv2.imdecode(np.fromfile(path, np.uint8), cv2.IMREAD_COLOR)[:, :, ::-1], rgb)


def test_write_image_refuses_what_it_cannot_write_and_leaves_no_file(tmp_path: Path) -> None:
    rgb = np.zeros((2, 2, 3), np.uint8)
    for refuse in (lambda: write_image(tmp_path / "a.doc", rgb), lambda: check_picture_path(tmp_path / "a.doc")):
        with pytest.raises(DeepMatchingError, match="image format"):
            refuse()
    with pytest.raises(DeepMatchingError, match="no folder"):
        write_image(tmp_path / "no" / "a.png", rgb)
    with pytest.raises(DeepMatchingError, match="cannot write"):
        write_image(tmp_path / "a.webp", np.zeros((2, 20000, 3), np.uint8))  # more than WebP can hold
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("side", [1, 5, 300, 559, 560, 1000, 1280, 1281, 5000])
def test_images_are_drawn_with_a_longer_side_of_560_to_1280(side: int) -> None:
    scale = drawing_scale(side, max(1, side // 2))
    assert 560 <= len(resize(np.zeros((side, max(1, side // 2), 3), np.uint8), scale)) <= 1280
    assert scale <= 1 or scale == int(scale)  # enlarged pixels stay square


def test_the_wheel_is_baker_et_als() -> None:
    assert WHEEL.shape == (55, 3)
    # The original table begins its six runs (15, 6, 4, 11, 13 and 6 long) at these colours.
    starts = np.cumsum([0, 15, 6, 4, 11, 13])
    np.testing.assert_array_equal(WHEEL[starts], [[1, 0, 0], [1, 1, 0], [0, 1, 0], [0, 1, 1], [0, 0, 1], [1, 0, 1]])


def test_flow_colours_of_known_directions() -> None:
    # Right is red, left is cyan-blue, down is yellow, up is blue-violet: the usual picture of the wheel.
    flow = np.array([[[1, 0], [-1, 0], [0, 1], [0, -1], [0, 0], [np.nan, 0]]], np.float32)
    right, left, down, up, still, unknown = flow_to_color(flow)[0].astype(int)
    assert right[0] == 255 and max(right[1:]) < 50
    assert left[0] == 0 and min(left[1:]) > 150
    assert down[2] == 0 and min(down[:2]) > 200
    assert up[1] == 0 and up[2] == 255
    assert still.tolist() == [255, 255, 255] and unknown.tolist() == [0, 0, 0]
    assert flow_to_color(flow, unknown=(1, 2, 3))[0, -1].tolist() == [1, 2, 3]


def test_flow_colour_depends_on_the_ratio_to_max_norm(rng: np.random.Generator) -> None:
    flow = rng.normal(0, 3, (8, 9, 2))
    np.testing.assert_array_equal(flow_to_color(flow), flow_to_color(flow, flow_range(flow)))
    np.testing.assert_array_equal(flow_to_color(flow, 10), flow_to_color(2 * flow, 20))
    # White with no motion, more saturated with more of it, and full from the maximum on.
    faint, strong = flow_to_color(np.array([[[1.0, 1.0], [3.0, 3.0]]]), 10)[0].astype(int)
    assert faint.min() > strong.min()
    beyond, rim = flow_to_color(np.array([[[30.0, 0.0], [10.0, 0.0]]]), 10)[0]
    assert beyond.tolist() == rim.tolist()
    assert (flow_to_color(np.full((2, 2, 2), np.nan)) == 0).all()
    with pytest.raises(DeepMatchingError, match=r"\(H,W,2\)"):
        flow_to_color(np.zeros((2, 2)))


def test_every_colour_has_a_full_channel(rng: np.random.Generator) -> None:
    # Hence no displacement has the grey that stands for none.
    assert (displacement_colors(rng.normal(0, 5, (500, 2)), 10.0).max(axis=1) == 255).all()


def test_outliers_do_not_bleach_the_others() -> None:
    moved = np.tile([[10.0, 0.0]], (200, 1))
    moved[0] = (5000, 0)
    assert range_of(moved) == 10
    assert range_of(np.array([[43.2, 0.0]])) == 44
    assert range_of(np.zeros((3, 2))) == 1
    assert range_of(np.zeros((0, 2))) == 1
    field = np.full((2, 3, 2), np.nan)
    field[0, 0] = (7, 0)
    assert flow_range(field) == 7
