"""Looking inside: the score maps of one reference point, its best path through the levels, and the patches below.

The volumes S_l and Q_l of a pair take gigabytes, those of one point a few hundred kilobytes. A :class:`Trace` keeps
what decoding keeps, the pooled scores S_{l+1/2} and the switches m_l. From these, the maps of a point follow:

* S_0 from the descriptors, S_l from S_{l−1/2} of the four children;
* Q_l from S_l, the switches and Q_{l+1} of the parents, up to the top level. A point has at most 4^l ancestors at level
  l, whose maps are 4^l times smaller: each level costs about the same.

The path is the one that eq. (1) of the paper maximises: from the match back up, always to the parent and the cell that
gave the score. Below the patch at its top hangs a quadtree: each patch consists of four that move independently, each
by one cell of its level at most.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from deepmatching.errors import DeepMatchingError, failed_allocations
from deepmatching.geometry.discretization import Geometry, Links
from deepmatching.geometry.strips import Rows, children, parents
from deepmatching.network.memory import pooled_cells, require, require_pyramid
from deepmatching.network.network import Network
from deepmatching.network.operators import aggregation, correlation, disaggregation, power
from deepmatching.network.operators.decoding import decode
from deepmatching.network.operators.fused import aggregate_and_pool, correlate_and_pool
from deepmatching.network.operators.pooling import HARD

NO_PATCH = 255  #: in the quadtree: no such patch, because it would lie off the grid or off the target map


@torch.no_grad()
def draw_scores(
    network: Network, image0: Tensor, image1: Tensor, points: Sequence[tuple[float, float]], memory: int | None = None
) -> np.ndarray:
    """Draw S_0 … S_L and Q_0 … Q_L of points (x, y) of the first of two images (C, H, W): (rows, columns, 3) uint8."""
    from deepmatching.drawing import draw_score_maps, to_uint8_rgb

    geometry = network.geometry_of(image0[None], image1[None])
    require_pyramid(network, geometry, 1, image0.device, memory)
    pyramid = network(image0[None], image1[None])
    starts, ends = decode(pyramid.Q[0], geometry, "none").at_pixel_centres(0)
    indices = [[geometry.nearest_point(l, point) for l in range(geometry.L + 1)] for point in points]
    numbers = [f"{n + 1}: " for n in range(len(points))] if len(points) > 1 else [""]
    rows = [
        [(f"{number}{letter}_{l}", volumes[l][0][index].cpu().numpy()) for l, index in enumerate(at)]
        for number, at in zip(numbers, indices, strict=True)
        for letter, volumes in (("S", pyramid.S), ("Q", pyramid.Q))
    ]
    marked = [[tuple(places[at[0]].tolist()) for at in indices] for places in (starts, ends)]
    return draw_score_maps(rows, [to_uint8_rgb(image0), to_uint8_rgb(image1)], *marked)


@dataclass(frozen=True)
class Step:
    """One patch of the best path: level l, its centre p in the first image and q in the second, as pixel corners."""

    level: int
    index: tuple[int, int]  #: (row, column) of p on the grid of its level
    cell: tuple[int, int]  #: (row, column) of q in p's map
    p: tuple[float, float]  #: (x, y)
    q: tuple[float, float]
    S: float  #: S_l(q|p)
    Q: float  #: Q_l(q|p), the sum of S over this patch and those above it


@dataclass(frozen=True, eq=False)
class Map:
    """S_l(·|p) and Q_l(·|p) of one point of level l, over the second image; −∞ where there is no score."""

    level: int
    p: tuple[float, float]  #: (x, y) of the point, a pixel corner
    first: tuple[float, float]  #: (x, y) of cell (0, 0)
    step: int  #: pixels between cells
    S: np.ndarray  #: (h, w) float32
    Q: np.ndarray  #: (h, w) float32


@dataclass(frozen=True, eq=False)
class Inspection:
    """What there is to see of one reference point."""

    index: tuple[int, int]  #: (row, column) on the grid of level 0
    path: list[Step]  #: from level 0 up; empty if no path reaches the point
    maps: list[Map]  #: of the patches on the path, from level 0 up
    second: Step | None  #: the best match at least a patch away from the best one
    tree: np.ndarray  #: uint8, see :meth:`Trace.tree`


class Block(NamedTuple):
    """The reference points of a level in these rows and columns."""

    rows: Rows
    columns: Rows

    @property
    def first(self) -> tuple[int, int]:
        """The index of the first point."""
        return self.rows[0], self.columns[0]

    @property
    def size(self) -> tuple[int, int]:
        """The number of rows and columns."""
        return self.rows[1] - self.rows[0], self.columns[1] - self.columns[0]

    @property
    def slices(self) -> tuple[slice, slice]:
        """The rows and columns."""
        return slice(*self.rows), slice(*self.columns)

    def links_to(self, below: "Block", geometry: Geometry, l: int) -> Links:
        """Return the links from this block of level l + 1 down to a block of level l, as ``Geometry.links``."""
        down, right = (own - other for own, other in zip(self.first, below.first, strict=True))
        return [(row + down, column + right, y, x) for row, column, y, x in geometry.links(l)]


class Trace:
    """What is kept of a pair, with descriptors (1, C, h, w) of both images, in order to inspect its points.

    ``memory`` is how many bytes may be used; None for a safe fraction of the free memory.
    """

    def __init__(
        self, network: Network, cells0: Tensor, cells1: Tensor, geometry: Geometry, memory: int | None = None
    ) -> None:
        require(trace_bytes(geometry), cells0.device, memory)
        self.geometry, self.cells0, self.cells1 = geometry, cells0, cells1
        self.patch = network.descriptor.patch
        nu = network.exponents.tolist()
        self.exponents = nu + nu[-1:] * (geometry.L + 1 - len(nu))
        volumes = self._pool()
        self.pooled, self.switches = [pooled for pooled, _ in volumes], [switches for _, switches in volumes]
        self._row: tuple[int, Tensor] | None = None  # S_0 of the last row of points that was looked at

    @torch.no_grad()
    @failed_allocations()
    def _pool(self) -> list[tuple[Tensor, Tensor]]:
        """Compute S_{l+1/2} and m_l for l = 0 … L − 1."""
        if self.geometry.L == 0:
            return []
        volumes = [correlate_and_pool(self.cells0, self.cells1, self.geometry, self.patch, self.exponents[0])]
        for l in range(1, self.geometry.L):
            volumes.append(aggregate_and_pool(volumes[-1][0], self.geometry, l - 1, self.exponents[l]))
        return volumes

    @cached_property
    def bytes(self) -> int:
        """Memory that this trace holds."""
        kept = (self.cells0, self.cells1, *self.pooled, *self.switches)
        return sum(tensor.numel() * tensor.element_size() for tensor in kept)

    @torch.no_grad()
    @failed_allocations()
    def inspect(self, row: int, column: int) -> Inspection:
        """Return the maps, the path and the quadtree of a reference point of level 0."""
        rows, columns = self.geometry.grid(0)
        if not (0 <= row < rows and 0 <= column < columns):
            grid = f"the grid has {rows} rows and {columns} columns"
            raise DeepMatchingError(f"There is no reference point in row {row}, column {column}: {grid}.")
        around = _Ancestors(self, row, column)
        path = around.path(around.best)
        second = around.path(around.second)[:1] if path else []
        chain = path or [around.nearest(l) for l in range(len(around.S))]
        maps = [around.map(step) for step in chain]
        tree = self.tree(path[-1]) if path else np.zeros(0, np.uint8)
        return Inspection((row, column), path, maps, second[0] if second else None, tree)

    def first_scores(self, row: int, column: int) -> Tensor:
        """Return S_0(·|p), (h_0, w_0)."""
        if self._row is None or self._row[0] != row:
            strip = self.geometry.strip((row, row + 1))
            scores = power(correlation(self.cells0, self.cells1, strip, self.patch), self.exponents[0])
            self._row = (row, scores[0, 0])
        return self._row[1][column]

    def scores(self, l: int, points: Block) -> Tensor:
        """Return S_l of a block of points, l ≥ 1: (rows, columns, h_l, w_l)."""
        geometry = self.geometry
        below = Block(*(children(geometry, l - 1, span, axis) for axis, span in enumerate(points)))
        pooled = self.pooled[l - 1][:, *below.slices].float()
        return power(aggregation(pooled, points.size, points.links_to(below, geometry, l - 1)), self.exponents[l])[0]

    def tree(self, top: Step) -> np.ndarray:
        """Return the quadtree below a patch of the top level, as the switches that moved its patches.

        Level by level from L − 1 down to 0, the four children of every patch in the order of ``geometry.CORNERS``. The
        number of a child is the raster index of d in {−1, 0, 1}²: it has moved by 2^l γ₀ d from where its parent is.
        """
        geometry, side = self.geometry, 2 * self.geometry.pool_reach + 1
        nodes = np.array([[*top.index, *top.cell]])
        alive = np.ones(1, bool)
        codes = []
        for l in reversed(range(top.level)):
            (rows, columns), (h, w) = geometry.grid(l), geometry.window(l + 1)
            nodes = (nodes[:, None] + np.array(geometry.links(l))[None]).reshape(-1, 4)
            i, j, y, x = nodes.T
            alive = np.repeat(alive, 4) & (i >= 0) & (i < rows) & (j >= 0) & (j < columns)
            alive &= (y >= 0) & (y < h) & (x >= 0) & (x < w)
            at = tuple(torch.from_numpy(np.where(alive, k, 0)).to(self.switches[l].device) for k in (i, j, y, x))
            code = self.switches[l][0][at].cpu().numpy().astype(np.int64)
            codes.append(np.where(alive, code, NO_PATCH).astype(np.uint8))
            offset = geometry.pool_offset(l) - geometry.pool_reach
            nodes = np.stack([i, j, 2 * y + offset + code // side, 2 * x + offset + code % side], axis=1)
        return np.concatenate(codes) if codes else np.zeros(0, np.uint8)


class _Ancestors:
    """The maps S_l and Q_l of a point and of all its ancestors."""

    def __init__(self, trace: Trace, row: int, column: int) -> None:
        self.trace, self.geometry = trace, trace.geometry
        geometry = self.geometry
        self.points = [Block((row, row + 1), (column, column + 1))]
        self.S = [trace.first_scores(row, column)[None, None].float()]
        for l in range(geometry.L):
            above = Block(*(parents(geometry, l, span, axis) for axis, span in enumerate(self.points[l])))
            if min(above.size) <= 0:
                break
            self.points.append(above)
            self.S.append(trace.scores(l + 1, above))
        self._descend()

    def _descend(self) -> None:
        """Compute Q_l from the top down, and Q_{l+1/2}, which the path needs."""
        geometry, top = self.geometry, len(self.S) - 1
        self.Q = [self.S[top] if top == geometry.L else torch.full_like(self.S[top], -torch.inf)]
        self.above: list[Tensor] = []
        for l in reversed(range(top)):
            links = self.points[l + 1].links_to(self.points[l], geometry, l)
            above = disaggregation(self.Q[0][None], self.points[l].size, links)
            reached = HARD.unpool(above, self.trace.switches[l][:, *self.points[l].slices], None, geometry, l)
            self.Q.insert(0, self.S[l] + reached[0])
            self.above.insert(0, above[0])
        # Targets off the image have no Q_0, and a match lies on none of its last border lines.
        self.Q[0] = self.Q[0].masked_fill(self._off_image(border=True), -torch.inf)
        self.match_scores = self.Q[0][0, 0].masked_fill(self._off_image(border=False), -torch.inf)

    def _off_image(self, border: bool) -> Tensor:
        """Return which targets of the point a score, or without the ``border`` a match, cannot have: (h_0, w_0)."""
        rows, columns = self.geometry.on_target(border)
        place = self.points[0].first if self.geometry.relative else (0, 0)
        return ~(rows[place[0]][:, None] & columns[place[1]]).to(self.S[0].device)

    @property
    def best(self) -> tuple[int, int] | None:
        """The cell of the match, or None."""
        return _highest(self.match_scores)

    @property
    def second(self) -> tuple[int, int] | None:
        """The cell of the highest score at least a patch of level 0 away from the match, along an axis."""
        if (best := self.best) is None:
            return None
        scores = self.match_scores.clone()
        reach = self.geometry.patch - 1
        scores[*(slice(max(0, at - reach), at + reach + 1) for at in best)] = -torch.inf
        return _highest(scores)

    def path(self, cell: tuple[int, int] | None) -> list[Step]:
        """Return the patches whose scores add up to Q_0 of a cell, from level 0 up."""
        if cell is None:
            return []
        index = self.points[0].first
        steps = [self._step(0, index, cell)]
        for l in range(self.geometry.L):
            index, cell = self._up(l, index, cell)
            steps.append(self._step(l + 1, index, cell))
        return steps

    def _up(self, l: int, index: tuple[int, int], cell: tuple[int, int]) -> tuple[tuple[int, int], tuple[int, int]]:
        """Find the parent and its cell that gave Q_l of a cell; the first in raster order wins ties."""
        geometry, side = self.geometry, 2 * self.geometry.pool_reach + 1
        above = self.above[l][self._at(l, index)]
        m = self.trace.switches[l][0][index]
        chosen, best = None, -torch.inf
        for code in reversed(range(side * side)):  # the window that comes first sees the cell last
            offset = geometry.pool_offset(l) - geometry.pool_reach
            y, x = cell[0] - offset - code // side, cell[1] - offset - code % side
            if y % 2 or x % 2 or not (0 <= y // 2 < m.shape[0] and 0 <= x // 2 < m.shape[1]):
                continue
            pooled = (y // 2, x // 2)
            if int(m[pooled]) == code and float(above[pooled]) > best:
                chosen, best = pooled, float(above[pooled])
        assert chosen is not None, "a finite score has a window that chose it"
        h, w = geometry.window(l + 1)
        for down, right, y, x in reversed(geometry.links(l)):
            parent, at = (index[0] - down, index[1] - right), (chosen[0] - y, chosen[1] - x)
            is_there = all(k in range(*span) for k, span in zip(parent, self.points[l + 1], strict=True))
            is_there = is_there and 0 <= at[0] < h and 0 <= at[1] < w
            if is_there and float(self.Q[l + 1][self._at(l + 1, parent)][at]) == best:
                return parent, at
        raise AssertionError("a score of Q_{l+1/2} has a parent")

    def _at(self, l: int, index: tuple[int, int]) -> tuple[int, int]:
        row, column = self.points[l].first
        return index[0] - row, index[1] - column

    def _step(self, l: int, index: tuple[int, int], cell: tuple[int, int]) -> Step:
        p, (x, y), at = self._position(l, index), self._first(l, index), self._at(l, index)
        stride = self.geometry.stride(l)
        q = (x + stride * cell[1], y + stride * cell[0])
        return Step(l, index, cell, p, q, float(self.S[l][at][cell]), float(self.Q[l][at][cell]))

    def nearest(self, l: int) -> Step:
        """Return the ancestor of level l nearest to a point that no path reaches, and the best cell of S_l there."""
        x, y = self._position(0, self.points[0].first)
        ys, xs = (points.tolist() for points in self.geometry.reference_points(l))
        row = min(range(*self.points[l].rows), key=lambda i: abs(ys[i] - y))
        column = min(range(*self.points[l].columns), key=lambda j: abs(xs[j] - x))
        scores = self.S[l][self._at(l, (row, column))]
        return self._step(l, (row, column), _highest(scores) or (0, 0))

    def map(self, step: Step) -> Map:
        """Return the maps of a patch."""
        at = self._at(step.level, step.index)
        S, Q = (volumes[step.level][at].cpu().numpy() for volumes in (self.S, self.Q))
        first = self._first(step.level, step.index)
        return Map(step.level, step.p, first, self.geometry.stride(step.level), S, Q)

    def _position(self, l: int, index: tuple[int, int]) -> tuple[float, float]:
        ys, xs = self.geometry.reference_points(l)
        return float(xs[index[1]]), float(ys[index[0]])

    def _first(self, l: int, index: tuple[int, int]) -> tuple[float, float]:
        """Return (x, y) of the first cell of a point's map."""
        if not self.geometry.relative:
            return 0.0, 0.0
        x, y = self._position(l, index)
        reach = self.geometry.stride(l) * self.geometry.R(l)
        return x - reach, y - reach


def trace_bytes(geometry: Geometry) -> int:
    """Return the memory of the trace of a pair: a score and a switch for each cell of S_{l+1/2}."""
    return 5 * sum(pooled_cells(geometry, l) for l in range(geometry.L))


def _highest(scores: Tensor) -> tuple[int, int] | None:
    """Return the first cell with the highest score; None if all are −∞."""
    row, column = divmod(int(scores.argmax()), scores.shape[1])
    return (row, column) if scores[row, column].isfinite() else None
