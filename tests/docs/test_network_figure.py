"""The figure of the network, which the site shows."""

import runpy
from inspect import unwrap
from pathlib import Path

import pytest

from deepmatching import Geometry

draw_network = runpy.run_path(str(Path(__file__).parents[2] / "docs" / "network_figure.py"))["draw_network"]
build_network_figure = unwrap(draw_network)


def words(geometry: Geometry) -> str:
    (axes,) = build_network_figure(geometry, "HOG", 9).axes
    return "\n".join(text.get_text() for text in axes.texts)


@pytest.mark.parametrize("radius", [80, None])
def test_every_volume_has_its_shape(radius: int | None) -> None:
    geometry = Geometry((436, 1024), (400, 1000), radius=radius)
    text = words(geometry)
    for l in range(geometry.L + 1):
        assert f"S_{l}\n" in text and f"Q_{l}" in text
        assert text.count(" × ".join(map(str, geometry.shape(l))) + "  =  ") == 2
    for l in range(geometry.L):
        half = " × ".join(map(str, (*geometry.grid(l), *geometry.window(l + 1))))
        assert f"MP  {half}\nAG, PW" in text and f"DA  {half}\nUP" in text
    assert "436 × 1024,  400 × 1000 px" in text and "216 × 512 × 9 and 200 × 500 × 9" in text
    assert ("radius 80 px" if radius else "no radius") in text


def test_the_picture_grows_with_the_levels_and_everything_is_inside() -> None:
    heights = []
    for levels in (0, 1, 5):
        geometry = Geometry((436, 1024), (436, 1024), levels=levels)
        figure = build_network_figure(geometry, "HOG", 9)
        heights.append(draw_network(geometry, "HOG", 9).shape[0])
        for text in figure.axes[0].texts:
            extent = text.get_window_extent()
            assert extent.x0 >= 0 and extent.x1 <= figure.bbox.width
            assert extent.y0 >= 0 and extent.y1 <= figure.bbox.height
    assert heights == sorted(set(heights))
