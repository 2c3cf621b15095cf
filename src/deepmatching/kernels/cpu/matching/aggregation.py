"""AG, PW and MP in one pass (eqs. 4 and 3 of the paper), UP and DA in one pass (eqs. 6 and 5), and AG and DA alone."""

from typing import Any

import numpy as np
import torch
from torch import Tensor

from deepmatching.geometry.discretization import Geometry
from deepmatching.kernels.cpu.compilation import helper, kernel
from deepmatching.kernels.cpu.matching.pooling import NO_CELL, ONE, pool_row, pool_rows, vector_width
from deepmatching.kernels.cpu.matching.power import raised
from deepmatching.kernels.cpu.running import arrays_of, empty, run_in_threads

ZERO = np.float32(0)
NOTHING = np.float32(-np.inf)


def aggregate_and_pool(pooled: Tensor, geometry: Geometry, l: int, exponent: float) -> tuple[Tensor, Tensor]:
    """See :func:`deepmatching.network.operators.fused.aggregate_and_pool`."""
    shape = (len(pooled), *geometry.grid(l + 1), *geometry.window(l + 2))
    result, switches = empty(shape), empty(shape, torch.uint8)
    pooling = geometry.pool_offset(l + 1), geometry.pool_reach, np.float32(exponent)
    _run(_aggregate_and_pool, (pooled, result, switches), geometry, l, *pooling)
    return result, switches


def aggregate(pooled: Tensor, geometry: Geometry, l: int, exponent: float) -> Tensor:
    """See :func:`deepmatching.network.operators.fused.aggregate`."""
    result = empty((len(pooled), *geometry.grid(l + 1), *pooled.shape[3:]))
    _run(_aggregate, (pooled, result), geometry, l, np.float32(exponent))
    return result


def disaggregate(scores: Tensor, geometry: Geometry, l: int) -> Tensor:
    """See :func:`deepmatching.network.operators.fused.disaggregate`."""
    result = empty((len(scores), *geometry.grid(l), *scores.shape[3:]))
    _run(_disaggregate, (scores, result), geometry, l)
    return result


def unpool_and_disaggregate(coarse: Tensor, pooled: Tensor, switches: Tensor, geometry: Geometry, l: int) -> Tensor:
    """See :func:`deepmatching.network.operators.fused.unpool_and_disaggregate`."""
    result = empty((len(coarse), *geometry.grid(l), *geometry.window(l + 1)))
    unpooling = geometry.pool_offset(l + 1), window_places(geometry)
    _run(_unpool_and_disaggregate, (coarse, pooled, switches, result), geometry, l, *unpooling)
    return result


def _run(kernel: Any, volumes: tuple[Tensor, ...], geometry: Geometry, l: int, *arguments: Any) -> None:
    """Call a kernel for all points of each pair of volumes: those of the last one, with the links of level l."""
    links = np.array(geometry.links(l), dtype=np.int64)
    for pair in zip(*volumes, strict=True):
        run_in_threads(kernel, pair[-1].shape[:2].numel(), *arrays_of(*pair), links, *arguments)


def window_places(geometry: Geometry) -> np.ndarray:
    """Return the cell that each switch stands for: (row, column) from the centre of a pooling window, (side², 2)."""
    reach = geometry.pool_reach
    return np.argwhere(np.ones((2 * reach + 1, 2 * reach + 1))).astype(np.int64) - reach


@helper
def _children(scores, links, i, j, children):
    """Fill in the children of point (i, j), (4, 2): row and column on the grid, or −1. Return their number."""
    count = 0
    for n in range(4):
        a, b = i + links[n, 0], j + links[n, 1]
        exists = 0 <= a < scores.shape[0] and 0 <= b < scores.shape[1]
        children[n, 0], children[n, 1] = (a, b) if exists else (-1, -1)
        count += exists
    return count


@helper
def _mean_row(scores, links, children, count, y, mean, lead):
    """Set mean[lead + x] = max(0, mean over the ``_children`` of their scores at cell (y, x) + cell shift).

    A missing cell of a child counts 0. The scores are (H_l, W_l, h, w).
    """
    height, width = scores.shape[2:]
    start = np.uintp(lead)  # unsigned: only an index that cannot be negative allows vectors
    for x in range(width):
        mean[start + np.uintp(x)] = ZERO
    for n in range(4):
        a, b, v, shift = children[n, 0], children[n, 1], y + links[n, 2], links[n, 3]
        if a >= 0 and 0 <= v < height:
            for x in range(max(0, -shift), min(width, width - shift)):
                mean[start + np.uintp(x)] += scores[a, b, v, np.uintp(x + shift)]
    scale = ONE / np.float32(max(count, 1))  # 1, 1/2 or 1/4: exact
    for x in range(width):
        mean[start + np.uintp(x)] = max(mean[start + np.uintp(x)] * scale, ZERO)


@kernel
def _aggregate(begin, end, scores, result, links, exponent):
    """Fill in S_{l+1} (H_{l+1}, W_{l+1}, h, w) from S_{l+1/2} (H_l, W_l, h, w)."""
    columns, height, width = result.shape[1:]
    children = np.empty((4, 2), dtype=np.int64)
    row = np.zeros(vector_width(width), dtype=np.float32)
    for point in range(begin, end):
        i, j = point // columns, point % columns
        count = _children(scores, links, i, j, children)
        for y in range(height):
            _mean_row(scores, links, children, count, y, row, 0)
            if exponent != ONE:
                for x in range(row.shape[0]):
                    row[x] = raised(row[x], exponent)
            for x in range(width):
                result[i, j, y, x] = row[x]


@kernel
def _aggregate_and_pool(begin, end, scores, pooled, switches, links, offset, reach, exponent):
    """Fill in S_{l+3/2} and m_{l+1} from S_{l+1/2}, (H_l, W_l, h_{l+1}, w_{l+1})."""
    columns, pooled_rows, pooled_columns = pooled.shape[1:]
    rows = scores.shape[2]
    side, width = 2 * reach + 1, vector_width(pooled_columns)

    children = np.empty((4, 2), dtype=np.int64)
    row = np.full(2 * width + 32, NO_CELL, dtype=np.float32)
    halves = np.full((2, width + 16), NO_CELL, dtype=np.float32)
    best = np.full((1, side + 1, width), NO_CELL, dtype=np.float32)
    code = np.zeros((1, side + 1, width), dtype=np.int32)
    values, chosen = np.empty(width, dtype=np.float32), np.empty(width, dtype=np.int32)

    for point in range(begin, end):
        i, j = point // columns, point % columns
        count = _children(scores, links, i, j, children)
        k = 0
        for y in range(rows):
            _mean_row(scores, links, children, count, y, row, reach - offset)
            for x in range(halves.shape[1]):
                halves[0, x] = row[2 * x]
                halves[1, x] = row[2 * x + 1]
            pool_row(halves, best, code, 0, y)
            while k < pooled_rows and (2 * k + offset + reach == y or y == rows - 1):
                pool_rows(best, code, 0, 2 * k + offset, rows, exponent, values, chosen)
                for x in range(pooled_columns):
                    pooled[i, j, k, x] = values[x]
                for x in range(pooled_columns):
                    switches[i, j, k, x] = chosen[x]
                k += 1


@kernel
def _disaggregate(begin, end, scores, result, links):
    """Fill in Q_{l+1/2} (H_l, W_l, h, w) from Q_{l+1} (H_{l+1}, W_{l+1}, h, w)."""
    columns, height, width = result.shape[1:]
    for point in range(begin, end):
        i, j = point // columns, point % columns
        result[i, j] = NOTHING
        for n in range(links.shape[0]):
            a, b, down, right = i - links[n, 0], j - links[n, 1], links[n, 2], links[n, 3]
            if not (0 <= a < scores.shape[0] and 0 <= b < scores.shape[1]):
                continue
            for y in range(max(0, down), min(height, height + down)):
                best, parent = result[i, j, y], scores[a, b, y - down]
                for x in range(max(0, right), min(width, width + right)):
                    best[x] = max(best[x], parent[x - right])


@kernel
def _unpool_and_disaggregate(begin, end, coarse, pooled, switches, result, links, offset, places):
    """Fill in Q_{l+1/2} (H_l, W_l, h_{l+1}, w_{l+1}), where the parents' scores are unpooled straight into the map.

    ``coarse``, ``pooled`` and ``switches`` are (H_{l+1}, W_{l+1}, h_{l+2}, w_{l+2}).
    """
    columns, height, width = result.shape[1:]
    best = np.empty((height, width), dtype=np.float32)
    for point in range(begin, end):
        i, j = point // columns, point % columns
        best[:] = NOTHING
        for n in range(links.shape[0]):
            a, b, down, right = i - links[n, 0], j - links[n, 1], links[n, 2], links[n, 3]
            if not (0 <= a < coarse.shape[0] and 0 <= b < coarse.shape[1]):
                continue
            for u in range(coarse.shape[2]):
                for v in range(coarse.shape[3]):
                    place = switches[a, b, u, v]
                    y = 2 * u + offset + places[place, 0] + down
                    x = 2 * v + offset + places[place, 1] + right
                    if 0 <= y < height and 0 <= x < width:
                        value = coarse[a, b, u, v] + pooled[a, b, u, v]
                        best[y, x] = max(best[y, x], value)
        for y in range(height):
            for x in range(width):
                result[i, j, y, x] = best[y, x]
