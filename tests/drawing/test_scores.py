"""Figures of score maps."""

from inspect import unwrap

import numpy as np
import pytest
from matplotlib.colors import to_rgba

from deepmatching.drawing.scores import NO_SCORE, draw_score_maps
from deepmatching.errors import DeepMatchingError

build_score_maps = unwrap(draw_score_maps)


def test_a_score_map_is_grey_where_minus_infinite_and_bright_at_its_maximum(rng: np.random.Generator) -> None:
    scores = rng.random((10, 20))
    scores[:5] = -np.inf
    scores[8, 15] = 2.0
    picture = draw_score_maps([[("S_0", scores)]])
    axes = build_score_maps([[("S_0", scores)]]).axes[0]
    axes.figure.draw_without_rendering()  # an equal aspect is applied when drawing
    places = axes.transData.transform([(10, 2), (15, 8)]).round().astype(int)
    unknown, (red, green, blue) = (picture[len(picture) - y, x].tolist() for x, y in places)
    assert unknown == list(NO_SCORE) and red > 200 and green > 200 and blue < 80


def test_the_maximum_is_ringed_and_the_range_is_written() -> None:
    scores = np.zeros((7, 9))
    scores[0, 0], scores[4, 6], scores[2, 1] = -np.inf, 0.875, -0.25
    axes = build_score_maps([[("Q_3", scores)]]).axes[0]
    assert {(float(line.get_xdata()[0]), float(line.get_ydata()[0])) for line in axes.lines} == {(6, 4)}
    assert axes.get_title(loc="left") == "Q_3   9 × 7"
    assert axes.get_xlabel() == "-0.25 … 0.875"


def test_columns_of_all_rows_line_up(rng: np.random.Generator) -> None:
    small, large = ("S_1", rng.random((3, 4))), ("S_0", rng.random((300, 400)))
    one, two = draw_score_maps([[large, small]]), draw_score_maps([[large, small], [small]])
    assert one.shape[1] == two.shape[1] and two.shape[0] > one.shape[0]
    first, _, below, _ = build_score_maps([[large, small], [small]]).axes
    assert first.get_position().x0 == below.get_position().x0


def test_constant_unknown_and_single_cell_maps_draw() -> None:
    maps = [
        ("a", np.ones((4, 4))),
        ("b", np.full((3, 3), -np.inf)),
        ("c", np.zeros((1, 1))),
        ("d" * 60, np.eye(2)),
    ]
    picture = draw_score_maps([maps])
    assert picture.dtype == np.uint8 and picture.ndim == 3 and picture.shape[2] == 3
    assert build_score_maps([maps]).axes[1].get_xlabel() == "no scores"
    for bad in (np.zeros(3), np.zeros((0, 3))):
        with pytest.raises(DeepMatchingError, match="score map 'x'"):
            draw_score_maps([[("x", bad)]])
    for empty in ([], [[]]):
        with pytest.raises(DeepMatchingError, match="no score maps"):
            draw_score_maps(empty)


def test_points_are_marked_in_both_images_and_frame_their_maps_in_their_colours(rng: np.random.Generator) -> None:
    images = np.zeros((48, 64, 3), np.uint8), np.zeros((40, 64, 3), np.uint8)
    rows = [[(f"{n}: {letter}_0", rng.random((5, 5)))] * 4 for n in (1, 2) for letter in "SQ"]
    figure = build_score_maps(rows, images, [(10, 20), (30.5, 5)], [(12, 18), None])
    first, second, *maps = figure.axes[:-1]  # the last one is the colour bar
    for axes, expected in ((first, {(10.0, 20.0), (30.5, 5.0)}), (second, {(12.0, 18.0)})):
        assert {(float(line.get_xdata()[0]), float(line.get_ydata()[0])) for line in axes.lines} == expected
        assert [text.get_text() for text in axes.texts] == ["1", "2"][: len(expected)]
    frames = [axes.spines["left"].get_edgecolor() for axes in maps]
    assert len(maps) == 16 and len(set(frames[:8])) == len(set(frames[8:])) == 1 and frames[0] != frames[-1]
    assert frames[0] == to_rgba(first.lines[1].get_color()) == to_rgba(first.texts[0].get_color())
    heights = [axes.get_window_extent().height / axes.get_window_extent().width for axes in (first, second)]
    assert heights == pytest.approx([48 / 64, 40 / 64])
    assert all(second.get_window_extent().y0 > axes.get_window_extent().y1 for axes in maps)
