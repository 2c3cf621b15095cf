"""+, UP, arg-max and verification: matches from Q_{1/2}, S_{1/2} and m_0, without Q_0."""

import numpy as np
import torch
from torch import Tensor

from deepmatching.geometry.discretization import Geometry
from deepmatching.geometry.targets import Best
from deepmatching.kernels.cpu.compilation import kernel
from deepmatching.kernels.cpu.matching.aggregation import NOTHING, window_places
from deepmatching.kernels.cpu.running import arrays_of, run_in_threads
from deepmatching.settings import Reciprocal


def best_pooled(coarse: Tensor, pooled: Tensor, switches: Tensor, geometry: Geometry, reciprocal: Reciprocal) -> Best:
    """See :func:`deepmatching.network.operators.decoding.best_pooled`."""
    shape = (len(coarse), *geometry.grid(0))
    scores, cells = np.empty(shape, dtype=np.float32), np.empty(shape, dtype=np.int64)
    tables = []
    for pair in range(shape[0]):
        volumes = arrays_of(coarse[pair], pooled[pair], switches[pair])
        tables.append(_decode(volumes, geometry, reciprocal, scores[pair], cells[pair]))
    return Best(torch.from_numpy(scores), torch.from_numpy(cells), torch.from_numpy(np.stack(tables)))


def _decode(
    volumes: list[np.ndarray], geometry: Geometry, reciprocal: Reciprocal, scores: np.ndarray, cells: np.ndarray
) -> np.ndarray:
    """Fill in scores and cells of one pair, (H_0, W_0); returns the table of the best scores."""
    extent = tuple(size // geometry.gamma for size in geometry.used1)
    step = geometry.alpha // geometry.gamma
    # A match competes with all others in its bin of ``step`` × ``step`` target positions, or at its own position.
    side = {"bins": step, "exact": 1, "none": max(extent)}[reciprocal]
    tables = max(1, min(torch.get_num_threads(), scores.size))
    best = np.full((tables, -(-extent[0] // side), -(-extent[1] // side)), NOTHING, dtype=np.float32)
    top, left = (first - geometry.R(0) if geometry.relative else 0 for first in geometry.first_cell)
    run_in_threads(
        _best_matches, tables,
        *volumes, geometry.pool_offset(0), window_places(geometry), geometry.window(0)[1],
        top, left, step if geometry.relative else 0,
        *(np.arange(positions) // side for positions in extent), best, scores, cells,
    )  # fmt: skip
    return best.max(axis=0)


@kernel
def _best_matches(
    begin, end, coarse, pooled, switches, offset, places, window,
    first_row, first_column, shift, row_bins, column_bins, best, scores, cells
):  # fmt: skip
    """Find the best match of each point, and the best score in each bin. Each table in ``best`` covers some points.

    Of several cells with the highest score, the first in raster order of the level-0 window counts.

    Args:
        coarse, pooled, switches: (H_0, W_0, h_1, w_1).
        places: see ``window_places``.
        window: w_0.
        first_row, first_column, shift: target position of the first cell of point (0, 0), and from point to point.
        row_bins, column_bins: bin of each target position on which a match may lie, along each axis.
        best: (tables, bin rows, bin columns), −∞ at first.
        scores, cells: (H_0, W_0), the result; cell 0 without a match.
    """
    tables = best.shape[0]
    columns = coarse.shape[1]
    points = coarse.shape[0] * columns
    for table in range(begin, end):
        for point in range(table * points // tables, (table + 1) * points // tables):
            i, j = point // columns, point % columns
            top, left = first_row + i * shift, first_column + j * shift
            score, cell = NOTHING, 0
            for u in range(coarse.shape[2]):
                for v in range(coarse.shape[3]):
                    place = switches[i, j, u, v]
                    y = 2 * u + offset + places[place, 0]
                    x = 2 * v + offset + places[place, 1]
                    if not (0 <= top + y < row_bins.shape[0] and 0 <= left + x < column_bins.shape[0]):
                        continue
                    value = coarse[i, j, u, v] + pooled[i, j, u, v]
                    row, column = row_bins[top + y], column_bins[left + x]
                    if value > best[table, row, column]:
                        best[table, row, column] = value
                    if value > score or (value == score and value > NOTHING and y * window + x < cell):
                        score, cell = value, y * window + x
            scores[i, j], cells[i, j] = score, cell
