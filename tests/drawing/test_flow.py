"""Figures of a flow; the plain pictures are tested with :class:`deepmatching.flow.result.FlowResult`."""

from inspect import unwrap

import numpy as np

from deepmatching.drawing.flow import draw_flow, draw_flow_figure, flow_range

build_flow_figure = unwrap(draw_flow_figure)
RNG = np.random.default_rng(0)


def test_the_panels_are_named_and_the_confidence_has_a_scale_from_0_to_1() -> None:
    image = RNG.integers(0, 256, (60, 80, 3), np.uint8)
    flow, confidence = RNG.normal(0, 3, (60, 80, 2)).astype(np.float32), RNG.random((60, 80)).astype(np.float32)
    for image1, names in (
        (None, ["Image 0", "Flow", "Confidence"]),
        (image, ["Image 0", "Image 1 warped by the flow", "Flow", "Confidence"]),
    ):
        figure = build_flow_figure(image, flow, confidence, image1)
        assert [axes.get_title(loc="left") for axes in figure.axes] == names
        (bar,) = figure.axes[-1].child_axes
        assert [label.get_text() for label in bar.get_xticklabels()] == ["0", "0.25", "0.5", "0.75", "1"]


def test_a_flow_of_usual_size_has_a_legend_unless_told_otherwise() -> None:
    flow = np.full((200, 300, 2), 0, np.float32)
    flow[..., 0] = 5
    plain = draw_flow(flow, legend=False)
    assert (plain == plain[0, 0]).all()
    changed = (draw_flow(flow) != plain).any(axis=2)
    assert changed[-30:, -30:].any() and not changed[:100].any() and not changed[:, :200].any()


def test_unknown_flow_is_black_and_does_not_count_for_the_range() -> None:
    flow = np.full((20, 20, 2), np.nan, np.float32)
    flow[0, 0] = (3, 4)
    assert flow_range(flow) == 5
    picture = draw_flow(flow)
    assert picture[0, 0].any() and not picture[1:].any()
