"""Figures of score maps."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from deepmatching.drawing.colors import Color
from deepmatching.drawing.figure import fit, new_figure, picture
from deepmatching.errors import DeepMatchingError

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

NO_SCORE: Color = (150, 150, 150)
# Lengths in px: a map, the gap to the next one with its text, the margin on all sides, the colour bar with its labels.
_SIDE, _GAP, _TEXT, _MARGIN, _BAR = 170, 12, 46, 14, 40


@picture
def draw_score_maps(rows: Sequence[Sequence[tuple[str, np.ndarray]]]) -> Figure:
    """A figure of score maps: rows of (title, map (H,W)).

    Every map is coloured by its own range, which is written below it; −inf (and NaN) is grey, a ring marks the maximum.
    Columns line up, so that rows of the same levels can be compared.
    """
    from matplotlib.cm import ScalarMappable

    if not any(rows):
        raise DeepMatchingError("There are no score maps to draw; pass at least one (title, map).")
    width = 2 * _MARGIN - _GAP + max(len(row) for row in rows) * (_SIDE + _GAP)
    height = _MARGIN + len(rows) * (_SIDE + _TEXT) + _BAR
    figure = new_figure(width, height)
    for i, row in enumerate(rows):
        for j, (title, scores) in enumerate(row):
            left = (_MARGIN + j * (_SIDE + _GAP)) / width
            bottom = 1 - (_MARGIN + (i + 1) * (_SIDE + _TEXT) - _TEXT / 2) / height
            _show_map(figure.add_axes((left, bottom, _SIDE / width, _SIDE / height)), title, scores)
    bar = figure.add_axes((_MARGIN / width, 24 / height, _SIDE / width, 10 / height))
    figure.colorbar(ScalarMappable(cmap="viridis"), cax=bar, orientation="horizontal", ticks=(0, 1))
    bar.set_xticks((0, 1), ("minimum", "maximum"), fontsize=8)
    bar.get_xticklabels()[0].set_horizontalalignment("left")
    bar.get_xticklabels()[1].set_horizontalalignment("right")
    figure.text((_MARGIN + _SIDE + _GAP) / width, 24 / height, "of each map; grey: no score; ring: maximum", fontsize=8)
    return figure


def _show_map(axes: Axes, title: str, scores: np.ndarray) -> None:
    """One score map (H,W) between its title and its range."""
    scores = np.asarray(scores, np.float64)
    if scores.ndim != 2 or scores.size == 0:
        raise DeepMatchingError(f"The score map '{title}' must be a non-empty (H,W), not {scores.shape}.")
    height, width = scores.shape
    known = np.isfinite(scores)
    low, high = (float(scores[known].min()), float(scores[known].max())) if known.any() else (0.0, 0.0)
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
    label = f"{low:.3g} … {high:.3g}" if known.any() else "no scores"
    axes.set_xlabel(label, fontsize=8, labelpad=3, loc="left")
