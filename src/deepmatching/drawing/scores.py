"""Figures of score maps."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from deepmatching.drawing.figure import fit, new_figure, picture
from deepmatching.drawing.pictures import Color
from deepmatching.errors import DeepMatchingError
from deepmatching.io.points import check_points

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Point = tuple[float, float]  #: (x, y) in pixels, centres at integers
NO_SCORE: Color = (150, 150, 150)
_SIDE = 170  #: the side of a map, in px as all lengths here
_GAP = 12  #: between two maps of a row
_TEXT = 46  #: height of the text around a map
_MARGIN = 14  #: around the figure
_BAR = 40  #: height of the colour bar with its labels
_POINT_COLORS = ("#e6194b", "#ff9f1a", "#00a0ff", "#c837f0", "#19b04b")  #: colours of the points, again and again


def points_in(points: Any, size: tuple[int, int], shrunk: tuple[int, int]) -> list[Point]:
    """Return one point (x, y) or several of an image of this size (rows, columns), in the image it was shrunk to."""
    is_one = np.ndim(points) == 1 and np.size(points) == 2
    places = check_points([points] if is_one else points, size)
    scale = np.array([shrunk[1] / size[1], shrunk[0] / size[0]])
    return [(x, y) for x, y in ((places + 0.5) * scale - 0.5).tolist()]


@picture
def draw_score_maps(
    rows: Sequence[Sequence[tuple[str, np.ndarray]]],
    images: Sequence[np.ndarray] = (),
    points: Sequence[Point] = (),
    matches: Sequence[Point | None] = (),
) -> Figure:
    """Draw a figure of score maps: rows of (title, map (H,W)).

    Every map is coloured by its own range, which is written below it; −inf (and NaN) is grey, a ring marks the maximum.
    Columns line up, so that rows of the same levels can be compared.

    Two images (H,W,3), if given, come first, with the points of the first one and their matches in the second marked.
    The rows are then divided equally among the points, and maps are framed in the colours of their points.
    """
    from matplotlib.cm import ScalarMappable

    if not any(rows):
        raise DeepMatchingError("There are no score maps to draw; pass at least one (title, map).")
    width = 2 * _MARGIN - _GAP + max(len(row) for row in rows) * (_SIDE + _GAP)
    room = (width - 2 * _MARGIN - _GAP) / 2  # of an image, which is not taller than three maps
    scales = [min(room / image.shape[1], 3 * _SIDE / image.shape[0]) for image in images]
    panels = [(image.shape[1] * scale, image.shape[0] * scale) for image, scale in zip(images, scales, strict=True)]
    top = _MARGIN + (round(max(down for _, down in panels)) + _TEXT // 2 if panels else 0)
    height = top + len(rows) * (_SIDE + _TEXT) + _BAR
    figure = new_figure(width, height)

    def axes_at(left: float, bottom: float, across: float, down: float) -> Axes:
        """Return axes at this place: px from the left border and, to their lower side, from the upper one."""
        return figure.add_axes((left / width, 1 - bottom / height, across / width, down / height))

    left = float(_MARGIN)
    marks = ("first image, the points", points, "+"), ("second image, their matches", matches, "o")
    for image, (across, down), (title, places, marker) in zip(images, panels, marks, strict=False):
        axes = axes_at(left, _MARGIN + _TEXT / 2 + down, across, down)
        axes.imshow(image, origin="upper", interpolation="antialiased", aspect="auto")
        axes.set_axis_off()
        fit(axes.set_title(title, loc="left", fontsize=9, pad=4), across)
        _mark(axes, places, marker)
        left += across + _GAP
    for i, row in enumerate(rows):
        for j, (title, scores) in enumerate(row):
            bottom = top + (i + 1) * (_SIDE + _TEXT) - _TEXT / 2
            axes = axes_at(_MARGIN + j * (_SIDE + _GAP), bottom, _SIDE, _SIDE)
            _show_map(axes, title, scores)
            if points:
                axes.spines[:].set(color=_color(i * len(points) // len(rows)), linewidth=2)
    bar = axes_at(_MARGIN, height - 24, _SIDE, 10)
    figure.colorbar(ScalarMappable(cmap="viridis"), cax=bar, orientation="horizontal", ticks=(0, 1))
    bar.set_xticks((0, 1), ("minimum", "maximum"), fontsize=8)
    bar.get_xticklabels()[0].set_horizontalalignment("left")
    bar.get_xticklabels()[1].set_horizontalalignment("right")
    figure.text((_MARGIN + _SIDE + _GAP) / width, 24 / height, "of each map; grey: no score; ring: maximum", fontsize=8)
    return figure


def _color(point: int) -> str:
    return _POINT_COLORS[point % len(_POINT_COLORS)]


def _mark(axes: Axes, points: Sequence[Point | None], marker: str) -> None:
    """Draw numbered marks in the colours of the points."""
    for n, point in enumerate(points):
        if point is None:
            continue
        for color, line in (("white", 4.5), (_color(n), 2.2)):
            axes.plot(*point, marker, markersize=13, color=color, fillstyle="none", markeredgewidth=line)
        style: dict[str, Any] = {"fontsize": 11, "weight": "bold", "color": _color(n)}
        text = axes.annotate(str(n + 1), point, (9, 6), textcoords="offset points", **style)
        text.set_bbox({"facecolor": "white", "edgecolor": "none", "pad": 1.0, "alpha": 0.8})


def _show_map(axes: Axes, title: str, scores: np.ndarray) -> None:
    """Draw one score map (H,W) between its title and its range."""
    scores = np.asarray(scores, np.float64)
    if scores.ndim != 2 or scores.size == 0:
        raise DeepMatchingError(f"The score map '{title}' must be a non-empty (H,W), not {scores.shape}.")
    height, width = scores.shape
    known = np.isfinite(scores)
    low, high = (float(reduce(scores[known])) if known.any() else 0.0 for reduce in (np.min, np.max))
    room = 0.5 if low == high else 0.0  # a constant map gets the middle of the colours
    axes.imshow(
        np.ma.masked_array(scores, ~known),
        cmap="viridis",
        vmin=low - room,
        vmax=high + room,
        origin="upper",
        interpolation="antialiased",  # where cells are smaller than pixels
        interpolation_stage="rgba",  # a lone score among unknown ones then fades instead of vanishing
    )
    axes.set(facecolor=np.array(NO_SCORE) / 255, xticks=(), yticks=(), anchor="NW")
    if known.any():
        row, column = np.unravel_index(np.argmax(np.where(known, scores, -np.inf)), scores.shape)
        for color, line in (("black", 3.0), ("white", 1.3)):
            axes.plot(column, row, "o", markersize=11, color=color, fillstyle="none", markeredgewidth=line)
    fit(axes.set_title(f"{title}   {width} × {height}", loc="left", fontsize=9, pad=4), _SIDE)
    axes.set_xlabel(f"{low:.3g} … {high:.3g}" if known.any() else "no scores", fontsize=8, labelpad=3, loc="left")
