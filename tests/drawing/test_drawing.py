"""Facts about the pictures: sizes, colours at known places, and that every input draws."""

from pathlib import Path

import cv2
import numpy as np
import pytest
import torch

from deepmatching.drawing import (
    canvas,
    colors,
    draw_displacement,
    draw_match_figure,
    draw_matches_lines,
    draw_matches_overlay,
    draw_score_maps,
    flow_to_color,
    to_uint8_rgb,
    write_image,
)
from deepmatching.drawing.matches import NO_MATCH, choose_lines
from deepmatching.drawing.scores import NO_SCORE
from deepmatching.errors import DeepMatchingError

RNG = np.random.default_rng(0)
NONE = np.zeros((0, 2))


def some_matches(height: int, width: int, count: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    start = RNG.uniform(0, (width - 1, height - 1), (count, 2))
    return start, start + RNG.normal(0, 6, (count, 2)), RNG.random(count)


def is_picture(rgb: np.ndarray) -> bool:
    return rgb.dtype == np.uint8 and rgb.ndim == 3 and rgb.shape[2] == 3 and rgb.flags["C_CONTIGUOUS"]


# --- images ----------------------------------------------------------------------------------------------


def test_to_uint8_rgb_inverts_the_loading_and_copies() -> None:
    rgb = RNG.integers(0, 256, (5, 6, 3), np.uint8)
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
def test_write_image_keeps_the_pixels(tmp_path: Path, suffix: str) -> None:
    rgb = RNG.integers(0, 256, (7, 9, 3), np.uint8)
    path = tmp_path / f"größe{suffix}"
    write_image(path, rgb)
    read = cv2.imdecode(np.fromfile(path, np.uint8), cv2.IMREAD_COLOR)
    np.testing.assert_array_equal(read[:, :, ::-1], rgb)


def test_write_image_refuses(tmp_path: Path) -> None:
    rgb = np.zeros((2, 2, 3), np.uint8)
    with pytest.raises(DeepMatchingError, match="names no image format"):
        write_image(tmp_path / "a.doc", rgb)
    with pytest.raises(DeepMatchingError, match="no folder"):
        write_image(tmp_path / "no" / "a.png", rgb)
    with pytest.raises(DeepMatchingError, match="cannot write"):
        write_image(tmp_path / "a.webp", np.zeros((2, 20000, 3), np.uint8))  # more than WebP can hold
    assert list(tmp_path.iterdir()) == []


# --- colours ---------------------------------------------------------------------------------------------


def test_the_wheel_is_baker_et_als() -> None:
    wheel = colors.color_wheel()
    assert wheel.shape == (55, 3)
    # The original table begins its six runs (15, 6, 4, 11, 13 and 6 long) at these colours.
    starts = np.cumsum([0, 15, 6, 4, 11, 13])
    expected = [[1, 0, 0], [1, 1, 0], [0, 1, 0], [0, 1, 1], [0, 0, 1], [1, 0, 1]]
    np.testing.assert_array_equal(wheel[starts], expected)


def test_flow_colours_of_known_directions() -> None:
    # Right is red, left is cyan-blue, down is yellow, up is blue-violet: the usual picture of the wheel.
    flow = np.array([[[1, 0], [-1, 0], [0, 1], [0, -1], [0, 0], [np.nan, 0]]], np.float32)
    right, left, down, up, still, unknown = flow_to_color(flow)[0].astype(int)
    assert right[0] == 255
    assert max(right[1:]) < 50
    assert left[0] == 0
    assert min(left[1:]) > 150
    assert min(down[:2]) > 200
    assert down[2] == 0
    assert up[2] == 255
    assert up[1] == 0
    assert still.tolist() == [255, 255, 255]
    assert unknown.tolist() == [0, 0, 0]


def test_flow_colour_depends_on_the_ratio_to_max_norm() -> None:
    flow = RNG.normal(0, 3, (8, 9, 2))
    largest = np.hypot(flow[..., 0], flow[..., 1]).max()
    np.testing.assert_array_equal(flow_to_color(flow), flow_to_color(flow, largest))
    np.testing.assert_array_equal(flow_to_color(flow, 10), flow_to_color(2 * flow, 20))
    # White with no motion, more saturated with more of it.
    faint, strong = flow_to_color(np.array([[[1.0, 1.0], [3.0, 3.0]]]), 10)[0].astype(int)
    assert faint.min() > strong.min()
    beyond, rim = flow_to_color(np.array([[[30.0, 0.0], [10.0, 0.0]]]), 10)[0].astype(int)
    assert beyond.max() < rim.max()
    assert (flow_to_color(np.full((2, 2, 2), np.nan)) == 0).all()
    with pytest.raises(DeepMatchingError, match=r"\(H,W,2\)"):
        flow_to_color(np.zeros((2, 2)))


def test_successive_line_colours_differ() -> None:
    distinct = colors.distinct_colors(60).astype(int)
    assert np.abs(np.diff(distinct, axis=0)).sum(axis=1).min() > 120


def test_outliers_do_not_bleach_the_others() -> None:
    moved = np.tile([[10.0, 0.0]], (200, 1))
    moved[0] = (5000, 0)
    assert colors.range_of(moved) == 10
    assert colors.range_of(np.array([[43.2, 0.0]])) == 44
    assert colors.range_of(np.zeros((3, 2))) == 1


# --- matches ---------------------------------------------------------------------------------------------


def test_displacement_squares_are_where_the_matches_are() -> None:
    start = np.array([[10.0, 20.0], [40.0, 5.0]])
    picture = draw_displacement(start, start + np.array([6.0, 0.0]), 32, 64, cell=8)
    assert picture.shape == (32, 64, 3)
    colored = (picture != NO_MATCH).any(axis=2)
    expected = np.zeros((32, 64), bool)
    expected[16:24, 6:14] = expected[1:9, 36:44] = True
    np.testing.assert_array_equal(colored, expected)
    np.testing.assert_array_equal(picture[20, 10], flow_to_color(np.array([[[6.0, 0.0]]]))[0, 0])


def test_the_most_confident_match_is_on_top() -> None:
    start = np.array([[8.0, 8.0], [8.0, 8.0]])
    end = start + np.array([[5.0, 0.0], [-5.0, 0.0]])
    right, left = (draw_displacement(start[:1], end[i : i + 1], 16, 16) for i in range(2))
    np.testing.assert_array_equal(draw_displacement(start, end, 16, 16, scores=np.array([1.0, 0.0])), right)
    np.testing.assert_array_equal(draw_displacement(start, end, 16, 16, scores=np.array([0.0, 1.0])), left)


@pytest.mark.parametrize("size", [(1, 1), (12, 300), (90, 120), (400, 600), (1500, 2000)])
@pytest.mark.parametrize("count", [0, 1, 200])
def test_every_picture_of_every_size_is_drawn(size: tuple[int, int], count: int) -> None:
    height, width = size
    first = torch.rand(3, height, width)
    second = RNG.integers(0, 256, (height + 3, width + 5, 3), np.uint8)
    start, end, scores = some_matches(height, width, count)
    overlay = draw_matches_overlay(first, start, end, scores)
    lines = draw_matches_lines(first, second, start, end, scores)
    figure = draw_match_figure(first, second, start, end, scores)
    for picture in (overlay, lines, figure, draw_displacement(start, end, height, width)):
        assert is_picture(picture)
    # Legible whatever the image: neither tiny nor huge.
    assert 560 <= max(overlay.shape[:2]) <= 1280
    assert figure.shape[1] <= 2 * 1280 + 3 * 12
    assert figure.shape[1] >= lines.shape[1]
    assert figure.shape[0] > lines.shape[0] + 2 * canvas.TEXT_HEIGHT


def test_the_overlay_shows_where_matches_are() -> None:
    image = np.full((600, 800, 3), 128, np.uint8)
    start = np.array([[400.0, 300.0]])
    picture = draw_matches_overlay(image, start, start + np.array([3.0, 0.0]), np.ones(1)).astype(int)
    assert picture[300, 400, 0] > picture[300, 400, 1] + 50  # to the right: red
    assert np.ptp(picture[100, 100]) == 0  # elsewhere grey
    plain = draw_matches_overlay(image, NONE, NONE, np.zeros(0))
    assert (plain == plain[0, 0]).all()  # not even a legend where there is nothing to explain


def test_lines_connect_the_right_pixels() -> None:
    left, right = np.zeros((600, 700, 3), np.uint8), np.zeros((600, 700, 3), np.uint8)
    picture = draw_matches_lines(left, right, np.array([[100.0, 50.0]]), np.array([[300.0, 400.0]]))
    assert picture.shape == (600, 700 + canvas.GAP + 700, 3)
    assert picture[50, 100].any()
    assert picture[400, 700 + canvas.GAP + 300].any()
    middle = (100 + 700 + canvas.GAP + 300) // 2
    assert (picture[225, middle - 2 : middle + 3] != 255).any()
    assert not picture[500, :700].any()


def test_lines_are_few_and_apart() -> None:
    start, end, scores = some_matches(480, 640, 5000)
    start, end, _ = canvas.as_matches(start, end, scores)
    shown = choose_lines(start, end, 480, 640, 40)
    assert 25 <= len(shown) <= 40
    difference = start[shown][:, None] - start[shown][None]
    distance = np.hypot(difference[..., 0], difference[..., 1]) + 1e9 * np.eye(len(shown))
    assert distance.min() > 40
    for side in (
        start[shown, 0] < 320,
        start[shown, 0] >= 320,
        start[shown, 1] < 240,
        start[shown, 1] >= 240,
    ):
        assert side.sum() >= 8
    assert len(choose_lines(start, end, 480, 640, 0)) == 0


def test_wild_matches_do_no_harm() -> None:
    image = np.zeros((60, 80, 3), np.uint8)
    start = np.array([[np.nan, 1.0], [-1e12, 1e12], [5.0, 5.0]])
    end = np.array([[1.0, 1.0], [1e30, 0.0], [1e9, -1e9]])
    assert is_picture(draw_match_figure(image, image, start, end, np.array([np.nan, np.inf, 0.0])))
    with pytest.raises(DeepMatchingError, match="each match needs one of each"):
        draw_match_figure(image, image, start, end[:2])


# --- score maps ------------------------------------------------------------------------------------------


def test_a_score_map_is_grey_where_minus_infinite_and_bright_at_its_maximum() -> None:
    scores = RNG.random((10, 20))
    scores[:5] = -np.inf
    scores[8, 15] = 2.0
    picture = draw_score_maps([("S_0", scores)], side=200)
    top = canvas.GAP + canvas.TEXT_HEIGHT
    panel = picture[top : top + 100, canvas.GAP : canvas.GAP + 200].astype(int)
    assert panel[25, 100].tolist() == list(NO_SCORE)
    peak = panel[85, 155]  # the middle of the cell (8,15), which is 10 px wide
    assert peak[0] > 200
    assert peak[1] > 200
    assert peak[2] < 80


def test_one_row_and_a_list_of_rows() -> None:
    small, large = ("S_1", RNG.random((3, 4))), ("S_0", RNG.random((300, 400)))
    one, two = draw_score_maps([large, small]), draw_score_maps([[large, small], [small]])
    assert is_picture(one)
    assert is_picture(two)
    assert one.shape[1] == two.shape[1]
    assert two.shape[0] > one.shape[0]
    np.testing.assert_array_equal(draw_score_maps([[large, small]]), one)


def test_constant_unknown_and_single_cell_maps_draw() -> None:
    maps = [
        ("a", np.ones((4, 4))),
        ("b", np.full((3, 3), -np.inf)),
        ("c", np.zeros((1, 1))),
        ("d" * 60, np.eye(2)),
    ]
    assert is_picture(draw_score_maps(maps))
    for bad in (np.zeros(3), np.zeros((0, 3))):
        with pytest.raises(DeepMatchingError, match="score map 'x'"):
            draw_score_maps([("x", bad)])
    with pytest.raises(DeepMatchingError, match="no score maps"):
        draw_score_maps([])
