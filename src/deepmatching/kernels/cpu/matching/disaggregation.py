"""UP and DA in one pass (eqs. 6 and 5 of the paper), and DA alone."""

from __future__ import annotations

from typing import Any

import numpy as np
from torch import Tensor

from deepmatching.geometry.discretization import Geometry
from deepmatching.kernels.cpu.compilation import kernel
from deepmatching.kernels.cpu.memory import empty
from deepmatching.kernels.cpu.threads import run_in_threads

NOTHING = np.float32(-np.inf)


def disaggregate(scores: Tensor, geometry: Geometry, l: int) -> Tensor:
    """See :func:`deepmatching.network.operators.fused.disaggregate`."""
    rows, columns = geometry.grid(l)
    result = empty((scores.shape[0], rows, columns, *scores.shape[3:]))
    for pair in range(scores.shape[0]):
        run_in_threads(
            _disaggregate, rows * columns,
            scores[pair].detach().contiguous().numpy(), np.array(geometry.links(l), dtype=np.int64),
            result[pair].numpy(),
        )  # fmt: skip
    return result


def unpool_and_disaggregate(coarse: Tensor, pooled: Tensor, switches: Tensor, geometry: Geometry, l: int) -> Tensor:
    """See :func:`deepmatching.network.operators.fused.unpool_and_disaggregate`."""
    rows, columns = geometry.grid(l)
    result = empty((coarse.shape[0], rows, columns, *geometry.window(l + 1)))
    places = window_places(geometry)
    for pair in range(coarse.shape[0]):
        run_in_threads(
            _unpool_and_disaggregate, rows * columns,
            *(volume[pair].detach().contiguous().numpy() for volume in (coarse, pooled, switches)),
            np.array(geometry.links(l), dtype=np.int64), geometry.pool_offset(l + 1), places, result[pair].numpy(),
        )  # fmt: skip
    return result


def window_places(geometry: Geometry) -> np.ndarray:
    """The cell that each switch stands for: (row, column) from the centre of a pooling window, (side², 2)."""
    reach = geometry.pool_reach
    return np.argwhere(np.ones((2 * reach + 1, 2 * reach + 1))).astype(np.int64) - reach


@kernel
def _disaggregate(begin: int, end: int, scores: Any, links: Any, result: Any) -> None:
    """Q_{l+1/2} (H_l, W_l, h, w) at the points ``begin`` … ``end`` − 1 from Q_{l+1} (H_{l+1}, W_{l+1}, h, w)."""
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
def _unpool_and_disaggregate(
    begin: int, end: int, coarse: Any, pooled: Any, switches: Any, links: Any, offset: int, places: Any, result: Any
) -> None:
    """Q_{l+1/2} (H_l, W_l, h_{l+1}, w_{l+1}) at the points ``begin`` … ``end`` − 1.

    The parents' scores are unpooled straight into the child's map. ``coarse``, ``pooled`` and ``switches`` are
    (H_{l+1}, W_{l+1}, h_{l+2}, w_{l+2}).
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
