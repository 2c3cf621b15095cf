"""Pairs of slices that say which elements of one volume feed which elements of another."""

from __future__ import annotations

from typing import NamedTuple

ALL = slice(None)

#: The four links from a point down to its children, each (rows, columns, cell rows, cell columns): ``Geometry.links``.
Links = list[tuple[int, int, int, int]]


class View(NamedTuple):
    """View ``code``: element ``source[s]`` is a candidate for element ``out[o]``; slices of all axes."""

    code: int
    out: tuple[slice, ...]
    source: tuple[slice, ...]


def overlap(shift: int, outputs: int, sources: int, step: int = 1) -> tuple[slice, slice] | None:
    """Slices of o and s = step·o + shift such that both lie within their sizes; None if no o does."""
    first = max(0, -(shift // step))  # smallest o with step·o + shift ≥ 0
    last = min(outputs - 1, (sources - 1 - shift) // step)
    if last < first:
        return None
    return slice(first, last + 1), slice(step * first + shift, step * last + shift + 1, step)


def pooling_views(size: tuple[int, int], pooled: tuple[int, int], offset: int, reach: int) -> list[View]:
    """Views from S_l (``size`` cells) to S_{l+1/2} (``pooled`` cells), one per window position in raster order."""
    side = 2 * reach + 1
    views = []
    for dy in range(side):
        for dx in range(side):
            rows = overlap(offset + dy - reach, pooled[0], size[0], step=2)
            columns = overlap(offset + dx - reach, pooled[1], size[1], step=2)
            if rows and columns:
                out = (ALL, ALL, ALL, rows[0], columns[0])
                source = (ALL, ALL, ALL, rows[1], columns[1])
                views.append(View(side * dy + dx, out, source))
    return views


def aggregation_views(
    parents: tuple[int, int], children: tuple[int, int], window: tuple[int, int], links: Links
) -> list[View]:
    """Views from S_{l+1/2} (``children`` points, ``window`` cells) to S_{l+1} (``parents`` points), one per link."""
    views = []
    for code, shifts in enumerate(links):
        axes = [
            overlap(shift, outputs, sources)
            for shift, outputs, sources in zip(shifts, (*parents, *window), (*children, *window), strict=True)
        ]
        if all(axes):
            out, source = zip(*(axis for axis in axes if axis), strict=True)
            views.append(View(code, (ALL, *out), (ALL, *source)))
    return views
