"""Colours of displacements."""

import numpy as np
import pytest

from deepmatching.drawing.pictures import WHEEL, displacement_colors, flow_range, flow_to_color, range_of
from deepmatching.errors import DeepMatchingError


def test_the_wheel_is_baker_et_als() -> None:
    assert WHEEL.shape == (55, 3)
    # The original table begins its six runs (15, 6, 4, 11, 13 and 6 long) at these colours.
    starts = np.cumsum([0, 15, 6, 4, 11, 13])
    expected = [[1, 0, 0], [1, 1, 0], [0, 1, 0], [0, 1, 1], [0, 0, 1], [1, 0, 1]]
    np.testing.assert_array_equal(WHEEL[starts], expected)


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
    colors = displacement_colors(rng.normal(0, 5, (500, 2)), 10.0)
    assert (colors.max(axis=1) == 255).all()


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
