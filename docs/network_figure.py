"""The U-shaped network as a figure (paper, Fig. 2), with the shapes of a pair of images.

``make docs`` calls this program, which writes images/network.png for the demo pair.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from deepmatching import Geometry
from deepmatching.drawing import write_image
from deepmatching.drawing.figure import fit, new_figure, picture

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Lengths in px: a box, the room between two levels, the room between the two arms, the margin.
_WIDTH, _HEIGHT, _BETWEEN, _ACROSS, _MARGIN = 250, 46, 62, 150, 24
_ARM = _WIDTH + _ACROSS
_FOOT = 76  # of the text below the network
_FINE, _COARSE, _DECODING = "#dbe9f6", "#fde6c8", "#f2f2f2"


@picture
def draw_network(geometry: Geometry, descriptor: str, channels: int) -> Figure:
    """Draw the layers D, CORR, MP, AG, PW on the left, DA, UP and + on the right, and the shape of every score volume.

    Args:
        geometry: of the pair.
        descriptor: its name.
        channels: of a descriptor's cell.
    """
    step = _HEIGHT + _BETWEEN
    width = 2 * _MARGIN + 2 * _WIDTH + _ACROSS
    height = 2 * _MARGIN + (geometry.L + 1) * step + _HEIGHT + _FOOT
    figure = new_figure(width, height)
    axes = figure.add_axes((0.0, 0.0, 1.0, 1.0))
    axes.set(xlim=(0, width), ylim=(height, 0))
    axes.set_axis_off()
    first = _MARGIN + step  # top of the boxes of level 0
    _shade(axes, first, geometry.L, step)

    (rows0, columns0), (rows1, columns1) = geometry.size0, geometry.size1
    _box(axes, 0, _MARGIN, "image 0 and image 1", f"{rows0} × {columns0},  {rows1} × {columns1} px", _COARSE)
    _box(axes, 1, _MARGIN, "matches  Γ(p) = argmax Q_0", f"{_points(geometry, 0)} points p, verified", _COARSE)
    cells = " and ".join(
        f"{used[0] // geometry.gamma} × {used[1] // geometry.gamma} × {channels}"
        for used in dict.fromkeys((geometry.used0, geometry.used1))
    )
    _arrow(axes, 0, _MARGIN + _HEIGHT, first, f"D  {descriptor}: {cells}\nCORR, PW")
    _arrow(axes, 1, first, _MARGIN + _HEIGHT, "argmax, reciprocal verification")

    for l in range(geometry.L + 1):
        top = first + l * step
        _box(axes, 0, top, f"S_{l}", _shape(geometry, l), _FINE)
        _box(axes, 1, top, f"Q_{l}" if l < geometry.L else f"Q_{l} = S_{l}", _shape(geometry, l), _FINE)
        y = top + _HEIGHT / 2
        start, end = _MARGIN + _WIDTH, _MARGIN + _ARM
        axes.annotate("", (end, y), (start, y), arrowprops={"arrowstyle": "-|>", "color": "0.35", "linestyle": "--"})
        note = "+" if l < geometry.L else "="
        axes.text((start + end) / 2, y - 4, note, ha="center", va="bottom", fontsize=11)
        if l < geometry.L:
            half = _dimensions((*geometry.grid(l), *geometry.window(l + 1)))
            _arrow(axes, 0, top + _HEIGHT, top + step, f"MP  {half}\nAG, PW")
            _arrow(axes, 1, top + step, top + _HEIGHT, f"DA  {half}\nUP")
    radius = "no radius" if geometry.radius is None else f"radius {geometry.radius} px"
    words = (
        "shapes: rows × columns of the points p, rows × columns of their targets q",
        f"{radius}, α₀ = δ₀ = {geometry.alpha} px, γ₀ = {geometry.gamma} px, L = {geometry.L}",
    )
    for line, text in enumerate(words):
        y = height - _MARGIN - 20 + 18 * line
        fit(axes.text(_MARGIN, y, text, fontsize=8.5, va="center"), width - 2 * _MARGIN)
    return figure


def _shade(axes: Axes, first: int, levels: int, step: int) -> None:
    """The area of the paper's contribution: decoding as a network."""
    from matplotlib.patches import Rectangle

    left, top = _MARGIN + _ARM - 20, first - 14
    tall = levels * step + _HEIGHT + 44
    axes.add_patch(Rectangle((left, top), _WIDTH + 34, tall, facecolor=_DECODING, edgecolor="none", zorder=0))
    axes.text(left + 20, top + tall - 8, "coarse to fine: decoding as layers", fontsize=8.5, color="0.35", va="bottom")


def _box(axes: Axes, arm: int, top: float, title: str, text: str, color: str) -> None:
    from matplotlib.patches import FancyBboxPatch

    left = _MARGIN + arm * _ARM
    box = FancyBboxPatch(
        (left, top), _WIDTH, _HEIGHT, "round,pad=0,rounding_size=6", facecolor=color, edgecolor="0.3", linewidth=1
    )
    axes.add_patch(box)
    centre = left + _WIDTH / 2
    fit(axes.text(centre, top + 15, title, fontsize=10, weight="bold", ha="center", va="center"), _WIDTH - 12)
    fit(axes.text(centre, top + 33, text, fontsize=8.5, ha="center", va="center"), _WIDTH - 12)


def _arrow(axes: Axes, arm: int, start: float, end: float, words: str) -> None:
    """An arrow from a box to the one below or above it, with its layers beside it."""
    x = _MARGIN + arm * _ARM + 30
    axes.annotate("", (x, end), (x, start), arrowprops={"arrowstyle": "-|>", "color": "0.2", "linewidth": 1.4})
    axes.text(x + 12, (start + end) / 2, words, fontsize=8.5, va="center", linespacing=1.35)


def _points(geometry: Geometry, l: int) -> str:
    rows, columns = geometry.grid(l)
    return f"{rows} × {columns}"


def _shape(geometry: Geometry, l: int) -> str:
    """The dimensions of S_l, and their product."""
    return f"{_dimensions(geometry.shape(l))}  =  {_amount(geometry.cells(l))}"


def _dimensions(shape: tuple[int, int, int, int]) -> str:
    return " × ".join(map(str, shape))


def _amount(number: int) -> str:
    """1234 as ``1.23 k``."""
    for power, letter in ((1e9, " G"), (1e6, " M"), (1e3, " k")):
        if number >= power:
            return f"{number / power:.3g}{letter}"
    return str(number)


if __name__ == "__main__":
    demo = Geometry((480, 640), (480, 640), radius=80)
    write_image(Path(__file__).parent / "images" / "network.png", draw_network(demo, "Compact", 64))
