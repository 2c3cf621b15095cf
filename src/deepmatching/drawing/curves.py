"""Curves of a training run: what falls and what rises."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import cv2
import numpy as np

from deepmatching.drawing.canvas import PAPER, SHIFT, TEXT_HEIGHT, beside, fixed, framed, put_text, text_size
from deepmatching.drawing.colors import Color
from deepmatching.errors import DeepMatchingError

Points = Sequence[tuple[float, float]]

#: Colours that also people who see red and green alike can tell apart (Okabe and Ito).
_COLORS: tuple[Color, ...] = (
    (0, 114, 178),
    (213, 94, 0),
    (0, 158, 115),
    (204, 121, 167),
    (230, 159, 0),
    (86, 180, 233),
)
_GRID: Color = (225, 225, 225)
_AXIS: Color = (150, 150, 150)
_WIDTH, _HEIGHT = 460, 280
_LEFT, _RIGHT, _TOP, _BOTTOM = 56, 14, TEXT_HEIGHT + 6, 30
_TEXT = 0.4


def draw_training_curves(rows: Sequence[Mapping[str, float]]) -> np.ndarray:
    """The loss (on a logarithmic scale if it spans a lot) beside acc@2, 5 and 10, over the steps.

    Args:
        rows: of the log: each has a ``step``, and some of ``loss``, ``acc@2``, ``acc@5``, ``acc@10``.

    Returns:
        (rows, columns, 3) uint8 RGB.
    """
    last = max((row["step"] for row in rows), default=1.0)
    loss = {"loss": _series(rows, "loss")}
    accuracies = {name: _series(rows, name) for name in ("acc@2", "acc@5", "acc@10")}
    return framed(
        beside(
            [
                _panel("loss", loss, last, smooth=True, logarithmic=True),
                _panel("validation, % of pixels", accuracies, last),
            ]
        )
    )


def _series(rows: Sequence[Mapping[str, float]], name: str) -> list[tuple[float, float]]:
    return [(row["step"], row[name]) for row in rows if name in row and math.isfinite(row[name])]


def _panel(
    title: str, curves: Mapping[str, Points], last: float, smooth: bool = False, logarithmic: bool = False
) -> np.ndarray:
    """Named curves over the steps 0 … ``last``; ``smooth`` draws the points pale and their running mean strong."""
    panel = np.full((_HEIGHT, _WIDTH, 3), PAPER, np.uint8)
    put_text(panel, title, _LEFT, TEXT_HEIGHT - 9, 0.5)
    known = [point for points in curves.values() for point in points]
    if not known:
        put_text(panel, "nothing yet", _LEFT + 8, _HEIGHT // 2, _TEXT, _AXIS)
        return panel
    values = np.array([value for _, value in known])
    logarithmic = logarithmic and values.min() > 0 and values.max() > 20 * values.min()
    x_axis = _Axis(0.0, max(last, 1.0), _LEFT, _WIDTH - _RIGHT)
    y_axis = _Axis(*_padded(values.min(), values.max(), logarithmic), _HEIGHT - _BOTTOM, _TOP, logarithmic)
    _draw_grid(panel, x_axis, y_axis)
    for color, points in zip(_COLORS, curves.values(), strict=False):
        if smooth:
            _draw_line(panel, points, x_axis, y_axis, _pale(color), 1)
            points = _running_mean(points)
        _draw_line(panel, points, x_axis, y_axis, color, 2)
        if not smooth:
            for x, y in fixed(_places(points, x_axis, y_axis)):
                cv2.circle(panel, (x, y), 3 << SHIFT, color, -1, cv2.LINE_AA, SHIFT)
    if len(curves) > 1:
        _draw_names(panel, curves, y_axis)
    return panel


class _Axis:
    """Values to pixels along one side, linear or logarithmic."""

    def __init__(self, low: float, high: float, start: int, end: int, logarithmic: bool = False) -> None:
        if not high > low:
            raise DeepMatchingError(f"An axis must rise, not go from {low} to {high}.")
        self.low, self.high, self.start, self.end, self.logarithmic = low, high, start, end, logarithmic

    def place(self, value: float) -> float:
        low, high = (math.log(v) if self.logarithmic else v for v in (self.low, self.high))
        value = math.log(value) if self.logarithmic else value
        return self.start + (self.end - self.start) * (value - low) / (high - low)

    def ticks(self) -> list[float]:
        """Round numbers, about five of them."""
        if self.logarithmic:
            powers = range(math.floor(math.log10(self.low)), math.ceil(math.log10(self.high)) + 1)
            ticks = [factor * 10.0**power for power in powers for factor in (1, 2, 5)]
            inside = [tick for tick in ticks if self.low <= tick <= self.high]
            return inside if len(inside) <= 7 else [t for t in inside if f"{t:e}".startswith("1.0")]
        rough = (self.high - self.low) / 6
        unit = 10.0 ** math.floor(math.log10(rough))
        step = next(factor * unit for factor in (1, 2, 5, 10) if factor * unit >= rough * 0.999)
        first = math.ceil(self.low / step - 1e-9)
        return [n * step for n in range(first, math.floor(self.high / step + 1e-9) + 1)]


def _padded(low: float, high: float, logarithmic: bool) -> tuple[float, float]:
    """A little room above and below, and some where there is only one value."""
    if logarithmic:
        return low / 1.1, high * 1.1
    room = 0.06 * (high - low) or max(0.05 * abs(high), 1e-3)
    return low - room, high + room


def _draw_grid(panel: np.ndarray, x_axis: _Axis, y_axis: _Axis) -> None:
    for tick in y_axis.ticks():
        y = round(y_axis.place(tick))
        cv2.line(panel, (_LEFT, y), (_WIDTH - _RIGHT, y), _GRID, 1)
        label = f"{tick:.4g}"
        put_text(panel, label, _LEFT - 6 - text_size(label, _TEXT)[0], y + 4, _TEXT)
    for tick in x_axis.ticks():
        if tick != int(tick):
            continue
        x = round(x_axis.place(tick))
        cv2.line(panel, (x, _HEIGHT - _BOTTOM), (x, _HEIGHT - _BOTTOM + 4), _AXIS, 1)
        label = f"{tick / 1000:g}k" if tick >= 10_000 else f"{tick:g}"
        width = text_size(label, _TEXT)[0]
        put_text(panel, label, min(x - width // 2, _WIDTH - width - 2), _HEIGHT - _BOTTOM + 18, _TEXT)
    put_text(panel, "step", _LEFT - 44, _HEIGHT - _BOTTOM + 18, _TEXT)
    cv2.line(panel, (_LEFT, _HEIGHT - _BOTTOM), (_WIDTH - _RIGHT, _HEIGHT - _BOTTOM), _AXIS, 1)


def _draw_names(panel: np.ndarray, curves: Mapping[str, Points], y_axis: _Axis) -> None:
    """Names with their last values, in a row below the title."""
    x = _WIDTH - _RIGHT
    for color, (name, points) in reversed(list(zip(_COLORS, curves.items(), strict=False))):
        label = f"{name} {points[-1][1]:.1f}" if points else name
        x -= text_size(label, _TEXT)[0]
        put_text(panel, label, x, TEXT_HEIGHT - 9, _TEXT, color)
        x -= 12


def _draw_line(panel: np.ndarray, points: Points, x_axis: _Axis, y_axis: _Axis, color: Color, width: int) -> None:
    places = np.array(fixed(_places(points, x_axis, y_axis)), np.int32)
    if len(places) > 1:
        cv2.polylines(panel, [places.reshape(-1, 1, 2)], False, color, width, cv2.LINE_AA, SHIFT)


def _places(points: Points, x_axis: _Axis, y_axis: _Axis) -> np.ndarray:
    return np.array([(x_axis.place(x), y_axis.place(y)) for x, y in points], np.float64).reshape(-1, 2)


def _running_mean(points: Points) -> list[tuple[float, float]]:
    """Each value with its neighbours within a twentieth of the curve."""
    reach = max(1, len(points) // 20)
    values = [y for _, y in points]
    return [(x, float(np.mean(values[max(0, n - reach) : n + reach + 1]))) for n, (x, _) in enumerate(points)]


def _pale(color: Color) -> Color:
    red, green, blue = (255 - (255 - channel) * 35 // 100 for channel in color)
    return red, green, blue
