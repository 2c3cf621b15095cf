"""Slow, obvious versions of the operators: loops over pixel positions, taken from the paper's equations."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from deepmatching.geometry import CORNERS, Geometry


def points(geometry: Geometry, l: int) -> tuple[list[float], list[float]]:
    """Rows and columns of the reference points, in pixels."""
    ys, xs = geometry.reference_points(l)
    return ys.tolist(), xs.tolist()


def target(geometry: Geometry, l: int, i: int, j: int, a: int, b: int) -> tuple[float, float]:
    """Position of target cell (a, b) of reference point (i, j), in pixels."""
    rows, columns = geometry.target_points(l)
    return rows[i if geometry.relative else 0, a].item(), columns[j if geometry.relative else 0, b].item()


def brute_max_pooling(S: Tensor, geometry: Geometry, l: int) -> tuple[Tensor, Tensor]:
    """Eq. (3): (H, W, h, w) → pooled values and raster index of the arg-max in the whole map of S."""
    H, W, h, w = S.shape
    pooled = torch.full((H, W, *geometry.window(l + 1)), -math.inf, dtype=S.dtype)
    chosen = torch.full(pooled.shape, -1, dtype=torch.long)
    reach, stride = 2**l * geometry.eta, geometry.stride(l + 1)
    for i in range(H):
        for j in range(W):
            # the centre of pooled cell (c, d): on the relative lattice it is counted from the same point p
            if geometry.relative:
                y0, x0 = (points(geometry, l)[axis][n] for axis, n in ((0, i), (1, j)))
                y0, x0 = y0 - stride * geometry.R(l + 1), x0 - stride * geometry.R(l + 1)
            else:
                y0 = x0 = 0.0
            positions = [target(geometry, l, i, j, a, b) for a in range(h) for b in range(w)]
            values = S[i, j].flatten().tolist()
            for c in range(pooled.shape[2]):
                for d in range(pooled.shape[3]):
                    y, x = y0 + stride * c, x0 + stride * d
                    for k, (qy, qx) in enumerate(positions):
                        if max(abs(qy - y), abs(qx - x)) <= reach and values[k] > pooled[i, j, c, d]:
                            pooled[i, j, c, d], chosen[i, j, c, d] = values[k], k
    return pooled, chosen


def brute_aggregation(pooled: Tensor, geometry: Geometry, l: int) -> Tensor:
    """Eq. (4) without its power: (H_l, W_l, h, w) → (H_{l+1}, W_{l+1}, h, w)."""
    ys, xs = points(geometry, l)
    parents = points(geometry, l + 1)
    result = torch.zeros(*geometry.shape(l + 1), dtype=pooled.dtype)
    h, w = pooled.shape[2:]
    for i, y in enumerate(parents[0]):
        for j, x in enumerate(parents[1]):
            children = []
            for ey, ex in CORNERS:
                dy, dx = 2**l * geometry.delta / 2 * ey, 2**l * geometry.delta / 2 * ex
                if y + dy in ys and x + dx in xs:
                    child = pooled[ys.index(y + dy), xs.index(x + dx)]
                    if not geometry.relative:  # the child's map, read 2^l δ_i further on; 0 off the map
                        shift_y, shift_x = (int(d / geometry.stride(l + 1)) for d in (dy, dx))
                        moved = torch.zeros_like(child)
                        for a in range(h):
                            for b in range(w):
                                if 0 <= a + shift_y < h and 0 <= b + shift_x < w:
                                    moved[a, b] = child[a + shift_y, b + shift_x]
                        child = moved
                    children.append(child)
            if children:
                result[i, j] = sum(children) / len(children)
    return result


def chosen_cells(switches: Tensor, geometry: Geometry, l: int) -> Tensor:
    """Raster index in S_l's window of each switch."""
    side = 2 * geometry.pool_reach + 1
    h, w = switches.shape[-2:]
    rows = 2 * torch.arange(h)[:, None] + geometry.pool_offset(l) - geometry.pool_reach + switches.long() // side
    columns = 2 * torch.arange(w) + geometry.pool_offset(l) - geometry.pool_reach + switches.long() % side
    return rows * geometry.window(l)[1] + columns


def brute_correlation(cells0: Tensor, cells1: Tensor, geometry: Geometry, patch: int) -> Tensor:
    """⟨φ(p), φ(q)⟩ cell by cell; a target patch counts its visible cells only, scaled up to a whole one."""
    result = torch.zeros(*geometry.shape(0), dtype=cells0.dtype)
    ys, xs = (p.tolist() for p in geometry.reference_points(0))
    rows, columns = geometry.target_points(0)
    half = patch // 2
    for i, y in enumerate(ys):
        for j, x in enumerate(xs):
            for a, qy in enumerate(rows[i if geometry.relative else 0].tolist()):
                for b, qx in enumerate(columns[j if geometry.relative else 0].tolist()):
                    if not (0 <= qy <= geometry.used1[0] and 0 <= qx <= geometry.used1[1]):
                        continue
                    total, visible = 0.0, 0
                    for dy in range(patch):
                        for dx in range(patch):
                            v, u = (
                                int(qy) // geometry.gamma - half + dy,
                                int(qx) // geometry.gamma - half + dx,
                            )
                            if 0 <= v < cells1.shape[1] and 0 <= u < cells1.shape[2]:
                                visible += 1
                                row, column = (
                                    int(y) // geometry.gamma - half + dy,
                                    int(x) // geometry.gamma - half + dx,
                                )
                                total += (cells0[:, row, column] * cells1[:, v, u]).sum().item()
                    result[i, j, a, b] = total * patch**2 / visible
    return result
