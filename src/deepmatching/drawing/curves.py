"""Curves of a training run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from deepmatching.drawing.figure import new_figure, picture

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Colours that people with red-green colour blindness can tell apart (Okabe and Ito).
_COLORS = {"loss": "#0072b2", "acc@2": "#0072b2", "acc@5": "#d55e00", "acc@10": "#009e73"}
_LOGARITHMIC_FROM = 20  # a loss whose largest value is this many times its smallest is drawn on a logarithmic scale


@picture
def draw_training_curves(rows: Sequence[Mapping[str, float]]) -> Figure:
    """Draw the loss (on a logarithmic scale if it spans a lot) beside acc@2, 5 and 10, over the steps.

    Each row of the log has a ``step`` and some of ``loss``, ``acc@2``, ``acc@5`` and ``acc@10``.
    """
    from matplotlib.ticker import EngFormatter, MaxNLocator

    figure = new_figure(960, 320)
    grid = {"left": 0.075, "right": 0.98, "bottom": 0.15, "top": 0.9, "wspace": 0.18}
    loss_axes, accuracy_axes = figure.subplots(1, 2, gridspec_kw=grid)
    last = max((row["step"] for row in rows), default=0.0)
    _draw_loss(loss_axes, *_series(rows, "loss"))
    for name in ("acc@2", "acc@5", "acc@10"):
        steps, values = _series(rows, name)
        if len(steps):
            label = f"{name}: {values[-1]:.1f} %"
            accuracy_axes.plot(steps, values, "o-", color=_COLORS[name], linewidth=2, markersize=4, label=label)
    if accuracy_axes.lines:
        accuracy_axes.legend(fontsize=9, framealpha=0.8)
    titles = (loss_axes, "Training loss", "loss"), (accuracy_axes, "Validation accuracy", "% of pixels")
    for axes, title, label in titles:
        axes.set_title(title, loc="left", fontsize=11)
        axes.set_xlabel("step", fontsize=9, labelpad=1)
        axes.set_ylabel(label, fontsize=9)
        axes.set_xlim(-0.01 * max(last, 1.0), 1.01 * max(last, 1.0))
        axes.xaxis.set_major_locator(MaxNLocator(nbins=7, integer=True))
        axes.xaxis.set_major_formatter(EngFormatter(sep=""))
        axes.tick_params(labelsize=9)
        axes.grid(axis="y", color="0.88")
        axes.spines[["top", "right"]].set_visible(False)
        if not axes.lines:
            axes.set_yticks(())
            axes.text(0.5, 0.5, "no values yet", transform=axes.transAxes, ha="center", color="0.5")
    return figure


def _series(rows: Sequence[Mapping[str, float]], name: str) -> tuple[np.ndarray, np.ndarray]:
    """Return steps (N) and values (N) of the rows in which a quantity is finite."""
    values = np.array([(row["step"], row.get(name, np.nan)) for row in rows], np.float64).reshape(-1, 2)
    steps, known = values[np.isfinite(values[:, 1])].T
    return steps, known


def _draw_loss(axes: Axes, steps: np.ndarray, loss: np.ndarray) -> None:
    """Draw every value pale and the mean with the neighbours, within a twentieth of the curve, strong."""
    from matplotlib.ticker import LogLocator, NullFormatter

    if not len(loss):
        return
    reach = max(1, len(loss) // 20)
    means = [loss[max(0, n - reach) : n + reach + 1].mean() for n in range(len(loss))]
    axes.plot(steps, loss, color=_COLORS["loss"], alpha=0.35, linewidth=1, label="each logged step")
    axes.plot(steps, means, color=_COLORS["loss"], linewidth=2, label="running mean")
    axes.legend(fontsize=9, framealpha=0.8)
    if 0 < loss.min() * _LOGARITHMIC_FROM < loss.max():
        axes.set_yscale("log")
        axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axes.yaxis.set_major_formatter("{x:g}")
        axes.yaxis.set_minor_formatter(NullFormatter())
