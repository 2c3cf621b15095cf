"""Figures: images in titled panels, colour bars, and the legend of the displacement colours."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ParamSpec

import cv2
import numpy as np

from deepmatching.drawing.pictures import displacement_colors, drawing_scale, resize

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.text import Text

#: The longer side of a panel in inches, as all lengths here, whatever its pixels: two panels side by side have text of
#: 14 px when they are shown 1200 px wide.
_PANEL = 6.0
_NARROWEST_PANEL = 2.4  #: panels are no narrower than this
_GAP = 0.13  #: between panels, and around them
_TITLE = 0.26  #: height of a title
_BAR = 0.12  #: height of a colour bar
_P = ParamSpec("_P")


def picture(build: Callable[_P, Figure]) -> Callable[_P, np.ndarray]:
    """Decorate a function that builds a figure: it then returns the rendered picture, uint8 RGB (H,W,3)."""

    @functools.wraps(build)
    def draw(*args: _P.args, **kwargs: _P.kwargs) -> np.ndarray:
        return render(build(*args, **kwargs))

    return draw


def new_figure(width: float, height: float, dpi: float = 100.0) -> Figure:
    """Make an empty white figure of `width` x `height` px, outside pyplot's global state."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    # The canvas truncates to whole pixels; a rounding error must not cost one.
    figure = Figure(figsize=((width + 1e-3) / dpi, (height + 1e-3) / dpi), dpi=dpi, facecolor="white")
    FigureCanvasAgg(figure)
    return figure


def render(figure: Figure) -> np.ndarray:
    """Render a figure from :func:`new_figure`: uint8 RGB (H,W,3)."""
    canvas: Any = figure.canvas
    canvas.draw()
    return np.ascontiguousarray(np.asarray(canvas.buffer_rgba())[..., :3])


def fit(text: Text, width: float) -> None:
    """Set a text smaller if it is wider than `width` px. A dollar sign in it is a dollar sign, not mathematics."""
    text.set_parse_math(False)
    needed = text.get_window_extent().width
    if needed > width:
        text.set_fontsize(float(text.get_fontsize()) * width / needed)


@dataclass(frozen=True)
class Panels:
    """A figure of named panels, whose coordinates are those of the images: pixel centres at integers."""

    figure: Figure
    axes: dict[str, Axes]
    scale: float  #: the factor by which images are resized

    def show(
        self,
        name: str,
        rgb: np.ndarray,
        title: str,
        enlarge: int | None = cv2.INTER_CUBIC,
        max_norm: float | None = None,
    ) -> None:
        """Show a picture in the upper left corner of a panel, resized unless `enlarge` is None.

        With `max_norm`, the legend of the displacement colours is above all that is drawn in the panel.
        """
        rgb = rgb if enlarge is None else resize(rgb, self.scale, enlarge)
        height, width = rgb.shape[:2]
        parts = [(slice(0, height), slice(0, width))]
        if max_norm is not None and (legend := add_legend(rgb, max_norm)) is not None:
            parts.append(legend)
        axes = self.axes[name]
        for (rows, columns), order in zip(parts, (0, 5), strict=False):
            corners = (columns.start, columns.stop, rows.stop, rows.start)
            extent: Any = tuple(corner / self.scale - 0.5 for corner in corners)
            axes.imshow(rgb[rows, columns], extent=extent, interpolation="none", aspect="auto", zorder=order)
        panel = axes.get_window_extent()
        axes.set(xlim=(-0.5, panel.width / self.scale - 0.5), ylim=(panel.height / self.scale - 0.5, -0.5))
        axes.set_axis_off()
        fit(axes.set_title(title, loc="left", fontsize=10, pad=4), panel.width)

    def add_color_bar(self, name: str, **options: Any) -> None:
        """Draw a horizontal colour bar below a panel; the options are those of `Figure.colorbar`."""
        axes = self.axes[name]
        inch = self.figure.dpi / axes.get_window_extent().height
        bar = axes.inset_axes((0, -1.6 * _BAR * inch, 1, _BAR * inch))
        self.figure.colorbar(cax=bar, orientation="horizontal", **options).outline.set_visible(False)  # type: ignore[operator]
        bar.tick_params(labelsize=9, length=2, pad=1.5)


def panel_figure(mosaic: list[Any], images: Sequence[np.ndarray], caption: str = "", bar: bool = False) -> Panels:
    """Make a figure of named panels for images (H,W,3), with room for colour bars below the last row if `bar`."""
    rows, columns = len(mosaic), len(mosaic[0])
    height, width = (max(sides) for sides in zip(*(image.shape[:2] for image in images), strict=True))
    scale = drawing_scale(height, width)
    panel_height, panel_width = (max(1, round(side * scale)) for side in (height, width))
    dpi = max(panel_height, panel_width) / _PANEL
    panel_width = max(panel_width, round(_NARROWEST_PANEL * dpi))
    gap, title = round(_GAP * dpi), round(_TITLE * dpi)
    top = gap + (2 * title if caption else title)
    bottom = gap + (round(3 * _BAR * dpi) if bar else 0)
    across = columns * (panel_width + gap) + gap
    down = top + rows * panel_height + (rows - 1) * (gap + title) + bottom
    figure = new_figure(across, down, dpi)
    # Matplotlib before 3.11 stretches an image over one pixel more if its panel is the least bit too large.
    right, lowest = (gap + 2e-3 * columns) / across, (bottom + 2e-3 * rows) / down
    grid = {"left": gap / across, "right": 1 - right, "bottom": lowest, "top": 1 - top / down}
    grid |= {"wspace": gap / panel_width, "hspace": (gap + title) / panel_height}
    if caption:
        text = figure.text(gap / across, 1 - gap / down, caption, fontsize=11, weight="bold", va="top")
        fit(text, across - 2 * gap)
    return Panels(figure, figure.subplot_mosaic(mosaic, gridspec_kw=grid), scale)


def add_legend(rgb: np.ndarray, max_norm: float) -> tuple[slice, slice] | None:
    """Put the colour wheel into the lower right corner, in place; return its rows and columns, None without room."""
    height, width = rgb.shape[:2]
    dpi = max(100.0, max(height, width) / _PANEL)
    legend = _legend(f"{max_norm:g} px", int(np.clip(0.17 * min(height, width), 40, 0.65 * dpi)), dpi)
    bottom, right = height - round(0.05 * dpi), width - round(0.05 * dpi)
    top, left = bottom - legend.shape[0], right - legend.shape[1]
    if min(top, left) <= 0:  # it would hide the picture
        return None
    place = slice(top, bottom), slice(left, right)
    rgb[place] = legend
    return place


@functools.lru_cache(maxsize=16)
def _legend(label: str, diameter: int, dpi: float) -> np.ndarray:
    """Draw the wheel above its label on a white card; cached because all frames of a video have the same."""
    pad, text = 0.05 * dpi, 0.16 * dpi
    width = round(max(diameter, 0.075 * dpi * len(label)) + 2 * pad)
    height = round(diameter + text + 2 * pad)
    across = (np.arange(diameter) - (diameter - 1) / 2) / (diameter / 2)
    vectors = np.stack(np.meshgrid(across, across), axis=2)
    opacity = (1 - np.hypot(vectors[..., 0], vectors[..., 1])) * diameter / 2 + 0.5  # a smooth rim
    disc = np.dstack([displacement_colors(vectors, 1.0) / 255, np.clip(opacity, 0, 1)])
    figure = new_figure(width, height, dpi)
    figure.patch.set(edgecolor="0.67", linewidth=1.0)
    axes = figure.add_axes((0.5 - diameter / width / 2, (text + pad) / height, diameter / width, diameter / height))
    axes.imshow(disc, origin="upper", extent=(-1, 1, 1, -1))
    axes.plot(0, 0, "+", color="0.45", markersize=5, markeredgewidth=0.8)
    axes.set_axis_off()
    figure.text(0.5, (pad + 0.35 * text) / height, label, fontsize=8, ha="center", va="center")
    return render(figure)
