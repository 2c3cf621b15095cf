"""A picture of a match graph: images on a circle, pairs as lines between them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from deepmatching.drawing.figure import fit, new_figure, picture

if TYPE_CHECKING:
    from matplotlib.figure import Figure

#: With more images, only some are named.
_NAMED = 60


@picture
def draw_match_graph(names: Sequence[str], matches: Mapping[tuple[str, str], int]) -> Figure:
    """Images in order around a circle, and a line for each pair with verified matches, the more the darker.

    Args:
        names: of all images.
        matches: number of verified matches of the pairs that have some.
    """
    from matplotlib.cm import ScalarMappable
    from matplotlib.collections import LineCollection
    from matplotlib.colors import LogNorm
    from matplotlib.ticker import LogLocator, NullLocator

    figure = new_figure(900, 960)
    axes = figure.add_axes((0.15, 0.21, 0.7, 0.7 * 900 / 960))
    angles = np.pi / 2 - 2 * np.pi * np.arange(len(names)) / max(1, len(names))
    places = dict(zip(names, np.stack([np.cos(angles), np.sin(angles)], axis=1), strict=True))
    counts = np.array(list(matches.values()), float)
    fewest = max(1.0, counts.min()) if len(counts) else 1.0
    norm = LogNorm(fewest, max(fewest + 1, counts.max(initial=0)))
    order = np.argsort(counts, kind="stable")  # the strongest on top
    pairs = list(matches)
    lines = [(tuple(places[pairs[i][0]]), tuple(places[pairs[i][1]])) for i in order]
    colors = ScalarMappable(norm, "viridis_r")
    axes.add_collection(LineCollection(lines, colors=colors.to_rgba(counts[order]), linewidths=1.2, zorder=1))
    joined = {name for pair in matches for name in pair}
    for name, (x, y) in places.items():
        axes.plot(x, y, "o", color="0.2" if name in joined else "#d55e00", markersize=5, zorder=2)
    step = max(1, -(-len(names) // _NAMED))
    for angle, (name, (x, y)) in list(zip(angles, places.items(), strict=True))[::step]:
        is_left = x < -1e-9
        turn = np.rad2deg(angle) + (180 if is_left else 0)
        side = "right" if is_left else "left"
        label = name if len(name) <= 18 else f"…{name[-17:]}"
        axes.text(
            *(1.05 * x, 1.05 * y, label),
            **{"rotation": turn, "rotation_mode": "anchor", "ha": side, "va": "center", "fontsize": 8},
        ).set_parse_math(False)
    axes.set(xlim=(-1.05, 1.05), ylim=(-1.05, 1.05))
    axes.set_axis_off()
    alone = len(names) - len(joined)
    text = f"{len(names)} images, {len(matches)} verified pairs" + (f", {alone} images without one" if alone else "")
    fit(figure.text(0.03, 0.965, text, fontsize=13, weight="bold"), 850)
    if len(matches):
        bar = figure.add_axes((0.25, 0.07, 0.5, 0.016))
        figure.colorbar(colors, cax=bar, orientation="horizontal").outline.set_visible(False)
        bar.set_title("verified matches of a pair", fontsize=9)
        bar.xaxis.set_major_locator(LogLocator(subs=(1, 2, 3, 5)))
        bar.xaxis.set_major_formatter("{x:.0f}")
        bar.xaxis.set_minor_locator(NullLocator())
    return figure
