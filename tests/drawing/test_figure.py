"""Panels, captions and legends."""

import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from deepmatching.drawing.figure import add_legend, fit, new_figure, panel_figure, render
from deepmatching.drawing.pictures import flow_to_color, resize


def test_a_figure_has_the_pixels_asked_for() -> None:
    for width, height, dpi in ((1316, 1048, 107.0), (961, 33, 213 + 1 / 3), (100, 100, 100 / 3)):
        picture = render(new_figure(width, height, dpi))
        assert picture.shape == (height, width, 3)
        assert picture.dtype == np.uint8 and picture.flags["C_CONTIGUOUS"] and (picture == 255).all()


@pytest.mark.parametrize("size", [(600, 900), (30, 40), (1500, 2000)])
def test_a_panel_shows_its_image_pixel_by_pixel(size: tuple[int, int], rng: np.random.Generator) -> None:
    image = rng.integers(0, 256, (*size, 3), np.uint8)
    panels = panel_figure([["a", "b"], ["c", "d"]], [image], "a caption", bar=True)
    shown = resize(image, panels.scale)
    panels.show("d", image, "a title")
    picture = render(panels.figure)
    box = panels.axes["d"].get_window_extent()
    left, top = round(box.x0), len(picture) - round(box.y1)
    np.testing.assert_array_equal(picture[top : top + len(shown), left : left + shown.shape[1]], shown)


def test_coordinates_of_a_panel_are_those_of_the_image() -> None:
    small, large = np.zeros((300, 500, 3), np.uint8), np.zeros((400, 700, 3), np.uint8)
    panels = panel_figure([["a", "b"]], [small, large])
    for name, image in (("a", small), ("b", large)):
        panels.show(name, image, name)
        axes = panels.axes[name]
        box, corner = axes.get_window_extent(), axes.transData.transform((-0.5, -0.5))
        np.testing.assert_allclose(corner, (box.x0, box.y1), atol=0.05)
        across = axes.transData.transform((99.5, 99.5)) - corner
        np.testing.assert_allclose(across, (100 * panels.scale, -100 * panels.scale), rtol=1e-3)


def test_a_long_text_is_set_smaller_and_a_short_one_is_not() -> None:
    figure = new_figure(300, 100)
    long, short = figure.text(0, 0, "$many$ words " * 20, fontsize=10), figure.text(0, 0, "few", fontsize=10)
    for text in (long, short):
        fit(text, 290)
    assert long.get_fontsize() < 5 < short.get_fontsize() == 10
    render(figure)


def test_the_legend_is_the_wheel_in_the_lower_right_corner_unless_it_hides_the_picture() -> None:
    picture = np.zeros((480, 640, 3), np.uint8)
    add_legend(picture, 44.0)
    rows, columns = np.flatnonzero(picture.any(axis=(1, 2))), np.flatnonzero(picture.any(axis=(0, 2)))
    assert 360 < rows.min() < rows.max() < 480 and 540 < columns.min() < columns.max() < 640
    # Right of the centre is the colour of a motion to the right, and so on round the wheel.
    card = picture[rows.min() : rows.max() + 1, columns.min() : columns.max() + 1]
    y, x = 5 + 34, card.shape[1] // 2
    for dx, dy in ((1, 0), (-1, 0), (0, 1), (0, -1)):
        expected = flow_to_color(np.array([[[25.0 * dx, 25.0 * dy]]]), 34.0)[0, 0].astype(int)
        assert np.abs(card[y + 25 * dy, x + 25 * dx] - expected).max() < 60, (dx, dy)
    small = np.zeros((40, 60, 3), np.uint8)
    assert add_legend(small, 44.0) is None and not small.any()


def test_figures_are_drawn_in_threads_as_they_are_alone() -> None:
    def draw(number: int) -> np.ndarray:
        image = np.full((60, 80, 3), 20 * number, np.uint8)
        panels = panel_figure([["a"]], [image], f"caption {number}")
        panels.show("a", image, f"title {number}")
        return render(panels.figure)

    alone = [draw(number) for number in range(8)]
    with ThreadPoolExecutor(4) as pool:
        for ours, theirs in zip(alone, pool.map(draw, range(8)), strict=True):
            np.testing.assert_array_equal(ours, theirs)


@pytest.mark.slow
def test_matplotlib_is_imported_only_to_draw_and_pyplot_never() -> None:
    code = (
        "import sys, numpy as np, deepmatching.cli\n"
        "from deepmatching.drawing import curves, draw_match_figure, flow\n"
        "assert 'matplotlib' not in sys.modules\n"
        "image = np.zeros((9, 9, 3), np.uint8)\n"
        "draw_match_figure(image, image, np.ones((1, 2)), np.ones((1, 2)))\n"
        "assert 'matplotlib' in sys.modules and 'matplotlib.pyplot' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
