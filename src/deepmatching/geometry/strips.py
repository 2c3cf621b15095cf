"""Cutting the work: the lowest levels into strips of reference rows, and correlation on a CPU into bands of them."""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

from deepmatching.geometry.discretization import Geometry, Strip

Rows = tuple[int, int]  #: first, and one past the last


@dataclass(frozen=True)
class Tiling:
    """How the work on one batch is cut.

    Attributes:
        strips: number of strips; 1 for none.
        levels: number of levels, from level 0 on, that are held one strip at a time; fewer than L.
    """

    strips: int = 1
    levels: int = 1

    def is_split(self, geometry: Geometry) -> bool:
        """Whether anything is cut: strips need a level above them."""
        return self.strips > 1 and geometry.L > 1


#: On a CPU, the target's cells are copied in pieces of about this many bytes.
TARGET_BYTES = 2**26

#: Nothing is cut.
WHOLE = Tiling()


def strips_up(geometry: Geometry, tiling: Tiling) -> Iterator[Strip]:
    """Strips that partition the rows of the first level that is held whole, each with all that it is computed from."""
    top = min(tiling.levels, geometry.L - 1)
    for rows in ranges(geometry.grid(top)[0], tiling.strips):
        found = [rows]
        for l in reversed(range(top)):
            found.insert(0, children(geometry, l, found[0]))
        yield geometry.strip(*found)


def strips_down(geometry: Geometry, tiling: Tiling) -> Iterator[tuple[Strip, Strip]]:
    """Strips that partition the rows of level 0, each with its ancestors up to the first level that is held whole.

    The second strip of each is what the ancestors below that level are computed from.
    """
    top = min(tiling.levels, geometry.L - 1)
    for rows in ranges(geometry.grid(0)[0], tiling.strips):
        found = [rows]
        for l in range(top):
            found.append(parents(geometry, l, found[-1]))
        below = [found[top - 1]]
        for l in reversed(range(top - 1)):
            below.insert(0, children(geometry, l, below[0]))
        yield geometry.strip(*found), geometry.strip(*below)


def children(geometry: Geometry, l: int, rows: Rows, axis: int = 0) -> Rows:
    """Return the rows (or columns, ``axis`` 1) of level l that hold the children of these of level l + 1."""
    minus, plus = geometry.child_shifts(l)
    return max(0, rows[0] + minus), min(geometry.grid(l)[axis], rows[1] + plus)


def parents(geometry: Geometry, l: int, rows: Rows, axis: int = 0) -> Rows:
    """Return the rows (or columns, ``axis`` 1) of level l + 1 that hold the parents of these of level l."""
    minus, plus = geometry.child_shifts(l)
    return max(0, rows[0] - plus), min(geometry.grid(l + 1)[axis], rows[1] - minus)


def ranges(rows: int, count: int) -> Iterator[Rows]:
    """``count`` consecutive ranges of about equal length that make up 0 … rows − 1; fewer if there are fewer rows."""
    count = min(count, rows)
    return pairwise(rows * n // count for n in range(count + 1))


def target_bands(geometry: Geometry, patch: int, channels: int, pitch: int) -> tuple[int, int]:
    """How a CPU cuts correlation: reference rows at a time, and the most rows of the target's cells that these need.

    The target's cells are copied into rows of ``channels`` × ``pitch`` floats, up to ``TARGET_BYTES``. With a radius,
    neighbouring bands need some of the same rows: a band is at least as high as a window, so that none is copied more
    than twice. Without one, every reference row needs the whole target.
    """
    rows, height = geometry.grid(0)[0], geometry.used1[0] // geometry.gamma + patch
    if not geometry.relative:
        return rows, height
    step, side = geometry.step, 2 * geometry.R(0) + patch
    fitting = TARGET_BYTES // (4 * channels * pitch) - side
    band = min(rows, max(fitting, side) // step + 1)
    return band, min(height, (band - 1) * step + side, rows * step + geometry.R(0) + patch)


def target_pitch(geometry: Geometry, patch: int, beyond: int) -> int:
    """Floats from one channel of a row of the target's cells to the next, with zeros around them and ``beyond``.

    An odd multiple of a cache line, so that the rows of a patch do not compete for the same lines.
    """
    step, first, columns = geometry.step, geometry.first_cell[1], geometry.grid(0)[1]
    overhang = max(0, -geometry.first_target[1])
    last = first + (columns - 1) * step + geometry.R(0) if geometry.relative else geometry.window(0)[1]
    return -(-(overhang + last + 2 * patch + beyond) // 32) * 32 + 16
