"""Figures of a flow, of its confidence and of errors; the plain pictures are tested with ``FlowResult``."""

from inspect import unwrap

import numpy as np
import pytest

from deepmatching.drawing.flow import (
    NO_TRUTH,
    STEPS,
    UNMATCHED,
    draw_flow,
    draw_flow_errors,
    draw_flow_figure,
    draw_match_errors,
    error_colors,
)
from deepmatching.drawing.pictures import displacement_colors, flow_range
from deepmatching.errors import DeepMatchingError

build_flow_figure = unwrap(draw_flow_figure)


def test_the_panels_are_named_and_the_confidence_has_a_scale_from_0_to_1(rng: np.random.Generator) -> None:
    image = rng.integers(0, 256, (60, 80, 3), np.uint8)
    flow, confidence = rng.normal(0, 3, (60, 80, 2)).astype(np.float32), rng.random((60, 80)).astype(np.float32)
    for image1, names in (
        (None, ["Image 0", "Flow", "Confidence"]),
        (image, ["Image 0", "Image 1 warped by the flow", "Flow", "Confidence"]),
    ):
        figure = build_flow_figure(image, flow, confidence, image1)
        assert [axes.get_title(loc="left") for axes in figure.axes] == names
        (bar,) = figure.axes[-1].child_axes
        assert [label.get_text() for label in bar.get_xticklabels()] == ["0", "0.25", "0.5", "0.75", "1"]


def test_the_warp_is_grey_where_the_second_image_hides_a_pixel() -> None:
    image, hidden = np.full((300, 400, 3), 250, np.uint8), np.zeros((300, 400), bool)
    hidden[100:200, 100:200] = True
    still, sure = np.zeros((300, 400, 2), np.float32), np.ones((300, 400), np.float32)
    for given, title, color in ((None, "Image 1 warped by the flow", 250), (hidden, "; grey: hidden or outside", 128)):
        axes = build_flow_figure(image, still, sure, image, given).axes[1]
        assert axes.get_title(loc="left").endswith(title)
        pixels = np.asarray(axes.images[0].get_array())
        rows, columns = pixels.shape[:2]
        assert pixels[rows // 2, columns * 3 // 8, 0] == color and pixels[5, 5, 0] == 250


def test_a_flow_of_usual_size_has_a_legend_unless_told_otherwise() -> None:
    flow = np.full((200, 300, 2), (5, 0), np.float32)
    plain = draw_flow(flow, legend=False)
    assert (plain == plain[0, 0]).all()
    changed = (draw_flow(flow) != plain).any(axis=2)
    assert changed[-30:, -30:].any() and not changed[:100].any() and not changed[:, :200].any()


def test_the_colour_changes_at_the_steps_and_nowhere_else() -> None:
    errors = [0.0, *(step + offset for step in STEPS for offset in (-1e-3, 0, 1e-3)), 1e6]
    field = np.zeros((1, len(errors), 2), np.float32)
    field[0, :, 0] = errors
    colors = error_colors(field, np.zeros_like(field))[0]
    assert len(np.unique(colors, axis=0)) == len(STEPS) + 1
    for below, at, above in colors[1:-1].reshape(-1, 3, 3):
        assert (below == at).all() and (at != above).any()  # acc@T counts an error of T as right


def test_unknown_pixels_are_grey() -> None:
    field, truth = np.zeros((2, 2, 2)), np.zeros((2, 2, 2))
    field[0, 0] = field[0, 1] = np.nan
    truth[0, 1] = truth[1, 1] = np.nan
    colors = error_colors(field, truth)
    assert tuple(colors[0, 0]) == UNMATCHED and (colors[:, 1] == NO_TRUTH).all()
    assert tuple(colors[1, 0]) not in (UNMATCHED, NO_TRUTH)
    with pytest.raises(DeepMatchingError, match="one size"):
        error_colors(field, truth[:1])


@pytest.mark.parametrize("known", [1.0, 0.2, 0.0])
@pytest.mark.parametrize("count", [0, 40])
def test_figures_are_drawn_of_anything(known: float, count: int) -> None:
    rng = np.random.default_rng(0)
    image0, image1 = (rng.integers(0, 255, (48, 64, 3)).astype(np.uint8) for _ in range(2))
    truth = rng.normal(0, 5, (48, 64, 2)).astype(np.float32)
    truth[rng.random((48, 64)) > known] = np.nan
    flow = rng.normal(0, 5, truth.shape).astype(np.float32)
    start = rng.uniform(0, 48, (count, 2))
    matches = (start, start + rng.normal(0, 4, (count, 2)), rng.random(count))
    picture = draw_match_errors(image0, image1, matches, np.full_like(truth, np.nan), truth, "a caption")
    assert picture.dtype == np.uint8 and picture.ndim == 3 and picture.min() < picture.max()
    assert draw_flow_errors(image0, flow, truth, "a caption").shape[2] == 3


def test_the_caption_is_above_and_the_steps_are_below_the_errors() -> None:
    image, flow = np.zeros((40, 60, 3), np.uint8), np.zeros((40, 60, 2), np.float32)
    caption = "EPE 0.00 px, $1 and $2"
    for figure in (
        unwrap(draw_flow_errors)(image, flow, flow, caption),
        unwrap(draw_match_errors)(image, image, (np.ones((1, 2)),) * 2 + (np.ones(1),), flow, flow, caption),
    ):
        assert [text.get_text() for text in figure.texts] == [caption]
        assert figure.axes[-1].get_title(loc="left") == "Error in px; grey: truth unknown"
        (bar,) = figure.axes[-1].child_axes
        assert [float(label.get_text()) for label in bar.get_xticklabels()] == list(STEPS)


def test_estimate_and_truth_have_one_scale_of_colours() -> None:
    image = np.zeros((600, 600, 3), np.uint8)
    truth = np.full((600, 600, 2), 10.0, np.float32)
    start = np.array([[300.0, 300.0]])
    matches = (start, start + 5.0, np.ones(1))  # half as long as the truth
    figure = unwrap(draw_match_errors)(image, image, matches, truth / 2, truth)
    expected = displacement_colors(np.array([[5.0, 5.0], [10.0, 10.0]]), flow_range(truth)).tolist()
    for drawn, panels in ((figure, (3, 4)), (unwrap(draw_flow_errors)(image, truth / 2, truth), (2, 1))):
        assert [drawn.axes[number].images[0].get_array()[300, 300].tolist() for number in panels] == expected


def test_sparse_truth_is_drawn_as_crosses_of_its_own_colour() -> None:
    image, truth = np.zeros((600, 600, 3), np.uint8), np.full((600, 600, 2), np.nan, np.float32)
    truth[100, 200], truth[300, 50] = (8, 0), (0, 8)
    shown = unwrap(draw_flow_errors)(image, np.zeros_like(truth), truth).axes[1].images[0].get_array()
    for y, x in ((100, 200), (300, 50)):
        color = displacement_colors(truth[y, x], 8.0).tolist()
        cross = [(y, x), (y - 1, x), (y + 1, x), (y, x - 1), (y, x + 1)]
        assert all(shown[place].tolist() == color for place in cross)
        assert shown[y + 1, x + 1].tolist() == shown[y, x + 2].tolist() == list(NO_TRUTH)
