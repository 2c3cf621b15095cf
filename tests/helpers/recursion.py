"""The original program's recursive decoder, without memoisation: slow, and the oracle for the network.

The original starts from every cell of the top level with its score and walks down to the four children. In each child
it moves to the arg-max of the scores within the window of max pooling and adds that score. At level 0 it keeps the best
sum that arrives at each (p, q)::

    Q_0(q_0|p_0) = max over paths of Σ_l S_l(q_l|p_l),
    p_l = p_{l+1} + 2^l δ_i,   q_l = argmax { S_l(q|p_l) : ‖q − (q_{l+1} + 2^l δ_i)‖_∞ ≤ 2^l η₀ }

With soft pooling a path may go to any q_l of the window, at a price of c β_l (max − S_l).

The paper claims that disaggregation, unpooling and sum compute the same numbers. This module uses none of the network's
index arithmetic. It works on pixel positions, so the two lattices differ only in the positions of their points, and a
comparison with the network checks both.
"""

import math

import torch
from torch import Tensor

from deepmatching.geometry.discretization import CORNERS, Geometry
from deepmatching.network.operators.soft_pooling import COST

Point = tuple[float, float]


def recursive_decoding(S: list[Tensor], geometry: Geometry, temperatures: list[float] | None = None) -> Tensor:
    """Compute Q_0 of one pair by recursion over all paths. Exponential in L: for small volumes only.

    S_l is (H_l, W_l, h_l, w_l), and so is Q_0; it is −∞ outside the target image and where no path arrives.
    ``temperatures`` β_l are those of soft pooling.
    """
    levels = [_by_position(scores, geometry, l) for l, scores in enumerate(S)]
    best: dict[tuple[Point, Point], float] = {}

    def descend(l: int, p: Point, q: Point, total: float) -> None:
        if l == 0:
            best[p, q] = max(total, best.get((p, q), -math.inf))
            return
        for ey, ex in CORNERS:
            dy, dx = (2 ** (l - 1) * geometry.delta / 2 * e for e in (ey, ex))
            child, centre = (p[0] + dy, p[1] + dx), (q[0] + dy, q[1] + dx)
            if child not in levels[l - 1]:
                continue
            reach = 2 ** (l - 1) * geometry.eta
            window = [
                (score, at)
                for at, score in levels[l - 1][child].items()
                if abs(at[0] - centre[0]) <= reach and abs(at[1] - centre[1]) <= reach
            ]
            # On the absolute lattice a child's cell can lie outside the pooled map, and then its path ends.
            if window and (geometry.relative or _is_pooled(centre, geometry, l)):
                top = max(window, key=lambda item: item[0])  # the first maximum: raster order
                for score, at in window if temperatures else [top]:
                    price = COST * temperatures[l - 1] * (top[0] - score) if temperatures else 0.0
                    descend(l - 1, child, at, total + score - price)

    for p, targets in levels[-1].items():
        for q, score in targets.items():
            descend(len(S) - 1, p, q, score)

    result = torch.full_like(S[0], -torch.inf)
    rows, columns = geometry.used1
    for i, p in enumerate(levels[0]):
        for k, q in enumerate(levels[0][p]):
            if 0 <= q[0] <= rows and 0 <= q[1] <= columns:
                result.view(-1, *S[0].shape[2:])[i].view(-1)[k] = best.get((p, q), -math.inf)
    return result


def _by_position(scores: Tensor, geometry: Geometry, l: int) -> dict[Point, dict[Point, float]]:
    """Return {p: {q: S_l(q|p)}} in raster order of p and q, positions in pixels."""
    ys, xs = (p.tolist() for p in geometry.reference_points(l))
    stride, result = geometry.stride(l), {}
    h, w = scores.shape[2:]
    for i, y in enumerate(ys):
        for j, x in enumerate(xs):
            first = (y - stride * (h // 2), x - stride * (w // 2)) if geometry.relative else (0.0, 0.0)
            values = scores[i, j].tolist()
            result[y, x] = {
                (first[0] + stride * a, first[1] + stride * b): values[a][b] for a in range(h) for b in range(w)
            }
    return result


def _is_pooled(centre: Point, geometry: Geometry, l: int) -> bool:
    h, w = geometry.window(l)
    return 0 <= centre[0] <= geometry.stride(l) * (h - 1) and 0 <= centre[1] <= geometry.stride(l) * (w - 1)
