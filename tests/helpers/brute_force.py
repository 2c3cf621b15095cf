"""Slow, obvious versions of the operators: loops over pixel positions, taken from the paper's equations."""

import math
from functools import lru_cache
from itertools import product

import torch
from torch import Tensor

from deepmatching.geometry.discretization import CORNERS, Geometry


@lru_cache(maxsize=16)
def points(geometry: Geometry, l: int) -> tuple[list[float], list[float]]:
    """Return the rows and columns of the reference points, in pixels."""
    ys, xs = geometry.reference_points(l)
    return ys.tolist(), xs.tolist()


def target(geometry: Geometry, l: int, i: int, j: int, a: int, b: int) -> tuple[float, float]:
    """Return the position of target cell (a, b) of reference point (i, j), in pixels."""
    rows, columns = targets(geometry, l)
    return rows[i if geometry.relative else 0][a], columns[j if geometry.relative else 0][b]


@lru_cache(maxsize=16)
def targets(geometry: Geometry, l: int) -> tuple[list[list[float]], list[list[float]]]:
    """Return the rows and columns of the target cells, in pixels; for each reference point on the relative lattice."""
    rows, columns = geometry.target_points(l)
    return rows.tolist(), columns.tolist()


def brute_max_pooling(S: Tensor, geometry: Geometry, l: int) -> tuple[Tensor, Tensor]:
    """Pool by eq. (3): (H, W, h, w) → values and raster index of the arg-max in the whole map of S."""
    pooled = torch.full((*S.shape[:2], *geometry.window(l + 1)), -math.inf, dtype=S.dtype)
    chosen = torch.full(pooled.shape, -1, dtype=torch.long)
    for i, j, c, d in product(*map(range, pooled.shape)):
        cells = window_cells(geometry, l, i, j, *pooled_target(geometry, l, i, j, c, d))
        values = {(a, b): S[i, j, a, b].item() for a, b in cells}
        if values and max(values.values()) > -math.inf:
            a, b = max(values, key=values.__getitem__)  # the first in raster order
            pooled[i, j, c, d], chosen[i, j, c, d] = values[a, b], a * S.shape[3] + b
    return pooled, chosen


def brute_soft_pooling(S: Tensor, geometry: Geometry, l: int, temperature: float) -> Tensor:
    """Take 1/β log of the mean of e^{βS} over the finite cells of each window: (H, W, h, w) → (H, W, h', w')."""
    result = torch.full((*S.shape[:2], *geometry.window(l + 1)), -math.inf, dtype=S.dtype)
    for i, j, c, d in product(*map(range, result.shape)):
        cells = window_cells(geometry, l, i, j, *pooled_target(geometry, l, i, j, c, d))
        values = [S[i, j, a, b].item() for a, b in cells if math.isfinite(S[i, j, a, b])]
        if values:
            powers = [math.exp(temperature * (value - max(values))) for value in values]
            result[i, j, c, d] = max(values) + math.log(sum(powers) / len(powers)) / temperature
    return result


def pooled_target(geometry: Geometry, l: int, i: int, j: int, c: int, d: int) -> tuple[float, float]:
    """Return the position of cell (c, d) of S_{l+1/2} of reference point (i, j) of level l, in pixels."""
    stride, R = geometry.stride(l + 1), geometry.R(l + 1) if geometry.relative else 0
    y, x = (points(geometry, l)[axis][n] if geometry.relative else 0 for axis, n in ((0, i), (1, j)))
    return y + stride * (c - R), x + stride * (d - R)


def window_cells(geometry: Geometry, l: int, i: int, j: int, y: float, x: float) -> list[tuple[int, int]]:
    """Return the cells of point (i, j) in the pooling window of level l around a position, in raster order."""
    rows, columns = (
        [n for n, q in enumerate(places[index if geometry.relative else 0]) if abs(q - centre) <= 2**l * geometry.eta]
        for places, index, centre in zip(targets(geometry, l), (i, j), (y, x), strict=True)
    )
    return [(a, b) for a in rows for b in columns]


def brute_aggregation(pooled: Tensor, geometry: Geometry, l: int) -> Tensor:
    """Aggregate by eq. (4) without its power: (H_l, W_l, h, w) → (H_{l+1}, W_{l+1}, h, w)."""
    ys, xs = points(geometry, l)
    result = torch.zeros(*geometry.shape(l + 1), dtype=pooled.dtype)
    h, w = pooled.shape[2:]
    for (i, y), (j, x) in product(*map(enumerate, points(geometry, l + 1))):
        children = []
        for ey, ex in CORNERS:
            dy, dx = 2**l * geometry.delta / 2 * ey, 2**l * geometry.delta / 2 * ex
            if y + dy in ys and x + dx in xs:
                child = pooled[ys.index(y + dy), xs.index(x + dx)]
                if not geometry.relative:  # the child's map, read 2^l δ_i further on; 0 off the map
                    shift_y, shift_x = (int(d / geometry.stride(l + 1)) for d in (dy, dx))
                    moved = torch.zeros_like(child)
                    for a, b in product(range(h), range(w)):
                        if 0 <= a + shift_y < h and 0 <= b + shift_x < w:
                            moved[a, b] = child[a + shift_y, b + shift_x]
                    child = moved
                children.append(child)
        if children:
            result[i, j] = sum(children) / len(children)
    return result


def chosen_cells(switches: Tensor, geometry: Geometry, l: int) -> Tensor:
    """Return the raster index in S_l's window of each switch."""
    side = 2 * geometry.pool_reach + 1
    h, w = switches.shape[-2:]
    rows = 2 * torch.arange(h)[:, None] + geometry.pool_offset(l) - geometry.pool_reach + switches.long() // side
    columns = 2 * torch.arange(w) + geometry.pool_offset(l) - geometry.pool_reach + switches.long() % side
    return rows * geometry.window(l)[1] + columns


def brute_correlation(cells0: Tensor, cells1: Tensor, geometry: Geometry, patch: int) -> Tensor:
    """Take ⟨φ(p), φ(q)⟩ cell by cell; a target patch counts its visible cells only, scaled up to a whole one."""
    result = torch.zeros(*geometry.shape(0), dtype=cells0.dtype)
    ys, xs = points(geometry, 0)
    offsets = range(-(patch // 2), patch - patch // 2)
    for i, j, a, b in product(*map(range, result.shape)):
        (qy, qx), (y, x) = target(geometry, 0, i, j, a, b), (ys[i], xs[j])
        if not (0 <= qy <= geometry.used1[0] and 0 <= qx <= geometry.used1[1]):
            continue
        total, visible = 0.0, 0
        for dy, dx in product(offsets, repeat=2):
            row, column, v, u = (int(n) // geometry.gamma + d for n, d in ((y, dy), (x, dx), (qy, dy), (qx, dx)))
            if 0 <= v < cells1.shape[1] and 0 <= u < cells1.shape[2]:
                visible += 1
                total += (cells0[:, row, column] * cells1[:, v, u]).sum().item()
        result[i, j, a, b] = total * patch**2 / visible
    return result
