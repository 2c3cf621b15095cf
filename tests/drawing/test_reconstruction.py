"""Pictures of match graphs and of models."""

import numpy as np
import pytest

from deepmatching.drawing.reconstruction import draw_match_graph, draw_model


@pytest.mark.parametrize("count", [0, 1, 5, 200])
def test_a_match_graph_has_a_line_for_each_pair(count: int) -> None:
    names = [f"$photo_{n}.jpg" for n in range(count)]
    matches = {(names[n], names[n + 1]): 10 + n for n in range(count - 1)}
    without, with_lines = draw_match_graph(names, {}), draw_match_graph(names, matches)
    assert without.shape == with_lines.shape == (960, 900, 3)
    assert np.array_equal(without, with_lines) == (not matches)


def test_a_model_shows_its_points_in_their_colours_and_its_cameras() -> None:
    generator = np.random.default_rng(0)
    points = generator.normal((0, 0, 8), 1, (2000, 3))
    colors = np.full((2000, 3), (0, 0, 200), np.uint8)
    centres, rotations = generator.normal(0, 1, (3, 3)), np.stack([np.eye(3)] * 3)
    shown = draw_model(points, colors, centres, rotations).astype(int)
    assert shown.shape == (520, 1200, 3)
    for color in ((0, 0, 200), (213, 94, 0)):
        assert (np.abs(shown - color).max(axis=2) < 40).sum() > 100
    assert (draw_model(points[:0], colors[:0], centres, rotations) < 250).any()  # without points
