"""Cutting the work: the lowest levels into strips of reference rows, and correlation on a CPU into bands of them."""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

from deepmatching.geometry.discretization import Geometry, Strip

Rows = tuple[int, int]  #: first, and one past the last
TARGET_BYTES = 2**26  #: on a CPU, the target's cells are copied in pieces of about this many bytes


@dataclass(frozen=True)
class Tiling:
    """How the work on one batch is cut."""

    strips: int = 1  #: number of strips; 1 for none
    levels: int = 1  #: number of levels, from level 0 on, that are held one strip at a time; fewer than L

    def is_split(self, geometry: Geometry) -> bool:
        """Return whether anything is cut: strips need a level above them."""
        return self.strips > 1 and geometry.L > 1


WHOLE = Tiling()  #: nothing is cut


def strips_up(geometry: Geometry, tiling: Tiling) -> Iterator[Strip]:
    """Yield strips that partition the rows of the first level held whole, each with all that it is computed from."""
    top = min(tiling.levels, geometry.L - 1)
    for rows in ranges(geometry.grid(top)[0], tiling.strips):
        yield _with_children(geometry, top, rows)


def strips_down(geometry: Geometry, tiling: Tiling) -> Iterator[tuple[Strip, Strip]]:
    """Yield strips that partition the rows of level 0, each with its ancestors up to the first level held whole.

    The second strip of each is what the ancestors below that level are computed from.
    """
    top = min(tiling.levels, geometry.L - 1)
    for rows in ranges(geometry.grid(0)[0], tiling.strips):
        found = [rows]
        for l in range(top):
            found.append(parents(geometry, l, found[-1]))
        yield geometry.strip(*found), _with_children(geometry, top - 1, found[top - 1])


def _with_children(geometry: Geometry, top: int, rows: Rows) -> Strip:
    """Return the strip of rows of level ``top`` and of all that they are computed from."""
    found = [rows]
    for l in reversed(range(top)):
        found.insert(0, children(geometry, l, found[0]))
    return geometry.strip(*found)


def children(geometry: Geometry, l: int, rows: Rows, axis: int = 0) -> Rows:
    """Return the rows (or columns, ``axis`` 1) of level l that hold the children of these of level l + 1."""
    minus, plus = geometry.child_shifts(l)
    return max(0, rows[0] + minus), min(geometry.grid(l)[axis], rows[1] + plus)


def parents(geometry: Geometry, l: int, rows: Rows, axis: int = 0) -> Rows:
    """Return the rows (or columns, ``axis`` 1) of level l + 1 that hold the parents of these of level l."""
    minus, plus = geometry.child_shifts(l)
    return max(0, rows[0] - plus), min(geometry.grid(l + 1)[axis], rows[1] - minus)


def ranges(rows: int, count: int) -> Iterator[Rows]:
    """Cut 0 … rows − 1 into ``count`` consecutive ranges of about equal length; fewer if there are fewer rows."""
    count = min(count, rows)
    return pairwise(rows * n // count for n in range(count + 1))


def target_bands(geometry: Geometry, patch: int, channels: int, pitch: int) -> tuple[int, int]:
    """Return how many reference rows a CPU correlates at a time, and the most rows of target cells that these need.

    The target's cells are copied into rows of ``channels`` × ``pitch`` floats, up to ``TARGET_BYTES``. With a radius,
    neighbouring bands need some of the same rows: a band is at least as high as a window, so that none is copied more
    than twice. Without one, every reference row needs the whole target.
    """
    rows, height = geometry.grid(0)[0], geometry.used1[0] // geometry.gamma + patch
    if not geometry.relative:
        return rows, height
    step, side = geometry.step, 2 * geometry.R(0) + patch
    band = min(rows, max(TARGET_BYTES // (4 * channels * pitch) - side, side) // step + 1)
    return band, min(height, (band - 1) * step + side, rows * step + geometry.R(0) + patch)


def target_pitch(geometry: Geometry, patch: int, beyond: int) -> int:
    """Return the floats from one channel of a row of the target's cells to the next, with zeros around and ``beyond``.

    An odd multiple of a cache line, so that the rows of a patch do not compete for the same lines.
    """
    step, first, columns = geometry.step, geometry.first_cell[1], geometry.grid(0)[1]
    overhang = max(0, -geometry.first_target[1])
    last = first + (columns - 1) * step + geometry.R(0) if geometry.relative else geometry.window(0)[1]
    return -(-(overhang + last + 2 * patch + beyond) // 32) * 32 + 16
