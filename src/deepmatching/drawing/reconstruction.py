"""Pictures of a reconstruction: the graph of its matches, its points and its cameras."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from deepmatching.drawing.figure import fit, new_figure, picture
from deepmatching.errors import counted

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_MAX_NAMES = 60  #: with more images, only some are named
_ORANGE = "#d55e00"  #: orange, for cameras and for images without a match
#: Share of the points, nearest to the median, that are drawn: single wrong points would shrink the rest.
_SHARE_SHOWN = 0.98


@picture
def draw_match_graph(names: Sequence[str], matches: Mapping[tuple[str, str], int]) -> Figure:
    """Draw images in order around a circle, and a line for each pair with verified matches, the more the darker."""
    from matplotlib.cm import ScalarMappable
    from matplotlib.collections import LineCollection
    from matplotlib.colors import LogNorm
    from matplotlib.ticker import LogLocator, NullLocator

    figure = new_figure(900, 960)
    axes = figure.add_axes((0.15, 0.21, 0.7, 0.7 * 900 / 960))
    angles = np.pi / 2 - 2 * np.pi * np.arange(len(names)) / max(1, len(names))
    places = {name: (np.cos(angle), np.sin(angle)) for name, angle in zip(names, angles, strict=True)}
    strongest_last = sorted(matches, key=lambda pair: matches[pair])
    counts = np.array([matches[pair] for pair in strongest_last], float)
    fewest = max(1.0, counts.min(initial=np.inf if len(counts) else 1.0))
    colors = ScalarMappable(LogNorm(fewest, max(fewest + 1, counts.max(initial=0))), "viridis_r")
    lines = [[places[name] for name in pair] for pair in strongest_last]
    axes.add_collection(LineCollection(lines, colors=colors.to_rgba(counts), linewidths=1.2, zorder=1))
    joined = {name for pair in matches for name in pair}
    for name, (x, y) in places.items():
        axes.plot(x, y, "o", color="0.2" if name in joined else _ORANGE, markersize=5, zorder=2)
    step = max(1, -(-len(names) // _MAX_NAMES))
    for angle, (name, (x, y)) in list(zip(angles, places.items(), strict=True))[::step]:
        turn, side = (180, "right") if x < -1e-9 else (0, "left")
        label = name if len(name) <= 18 else f"…{name[-17:]}"
        style = {"rotation": np.rad2deg(angle) + turn, "rotation_mode": "anchor", "ha": side, "va": "center"}
        axes.text(1.05 * x, 1.05 * y, label, fontsize=8, parse_math=False, **style)
    axes.set(xlim=(-1.05, 1.05), ylim=(-1.05, 1.05))
    axes.set_axis_off()
    alone = len(names) - len(joined)
    text = f"{counted(len(names), 'image')}, {counted(len(matches), 'verified pair')}"
    text += f", {counted(alone, 'image')} without one" if alone else ""
    fit(figure.text(0.03, 0.965, text, fontsize=13, weight="bold"), 850)
    if len(matches):
        bar = figure.add_axes((0.25, 0.07, 0.5, 0.016))
        figure.colorbar(colors, cax=bar, orientation="horizontal").outline.set_visible(False)
        bar.set_title("verified matches of a pair", fontsize=9)
        bar.xaxis.set_major_locator(LogLocator(subs=(1, 2, 3, 5)))
        bar.xaxis.set_major_formatter("{x:.0f}")
        bar.xaxis.set_minor_locator(NullLocator())
    return figure


@picture
def draw_model(points: np.ndarray, colors: np.ndarray, centres: np.ndarray, rotations: np.ndarray) -> Figure:
    """Draw the scene as the cameras see it, from a little further back, and from above.

    Args:
        points, colors: (N, 3) positions, and uint8 RGB.
        centres: (M, 3), positions of the cameras.
        rotations: (M, 3, 3), from each camera (x right, y down, z forward) to the world.
    """
    figure = new_figure(1200, 520)
    grid = {"left": 0.01, "right": 0.99, "bottom": 0.02, "top": 0.92, "wspace": 0.02}
    left, right = figure.subplots(1, 2, gridspec_kw=grid)
    u, _, v = np.linalg.svd(rotations.mean(axis=0) if len(rotations) else np.eye(3))
    axes_of_view = u @ np.diag([1, 1, np.sign(np.linalg.det(u @ v))]) @ v  # the rotation nearest to the cameras' mean
    middle = np.median(points, axis=0) if len(points) else centres.mean(axis=0)
    distances = np.linalg.norm(points - middle, axis=1)
    kept = distances <= np.quantile(distances, _SHARE_SHOWN) if len(points) else np.zeros(0, bool)
    scene, cameras = ((array - middle) @ axes_of_view for array in (points[kept], centres))
    turned = np.einsum("ab,mbc->mac", axes_of_view.T, rotations)
    tilt = np.deg2rad(20)
    behind = np.array([[1, 0, 0], [0, np.cos(tilt), np.sin(tilt)], [0, -np.sin(tilt), np.cos(tilt)]])
    above = np.array([[1.0, 0, 0], [0, 0, -1.0], [0, 1.0, 0]])  # forward becomes up
    titles = f"{len(points)} points, from behind the cameras", f"{len(centres)} cameras, from above"
    for axes, view, title in zip((left, right), (behind, above), titles, strict=True):
        _show(axes, scene @ view.T, colors[kept], cameras @ view.T, view @ turned)
        axes.set_title(title, loc="left", fontsize=11)
    return figure


def _show(axes: Axes, points: np.ndarray, colors: np.ndarray, centres: np.ndarray, rotations: np.ndarray) -> None:
    """Draw points and cameras, seen along z; y is down."""
    far_first = np.argsort(-points[:, 2], kind="stable")
    x, y, _ = points[far_first].T
    axes.scatter(x, y, s=1.5, c=colors[far_first] / 255.0, linewidths=0)
    size = 0.03 * float(np.ptp(np.concatenate([points, centres])[:, :2], axis=0).max() or 1.0)
    corners = size * np.array([[-1, -0.75, 1.5], [1, -0.75, 1.5], [1, 0.75, 1.5], [-1, 0.75, 1.5], [-1, -0.75, 1.5]])
    for centre, rotation in zip(centres, rotations, strict=True):
        rim = centre + corners @ rotation.T
        axes.plot(*rim[:, :2].T, color=_ORANGE, linewidth=1)
        for corner in rim[:4]:
            axes.plot(*np.stack([centre, corner])[:, :2].T, color=_ORANGE, linewidth=0.7)
    axes.set_aspect("equal", adjustable="datalim")
    axes.invert_yaxis()
    axes.set_axis_off()
