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
    shape, extent = (len(coarse), *geometry.grid(0)), [size // geometry.gamma for size in geometry.used1]
    scores, cells = np.empty(shape, dtype=np.float32), np.empty(shape, dtype=np.int64)
    # A match competes with all others in its bin of target positions, or at its own position.
    side = {"bins": geometry.step, "exact": 1, "none": max(extent)}[reciprocal]
    threads, tables = max(1, min(torch.get_num_threads(), scores[0].size)), []
    for pair in range(len(coarse)):
        best = np.full((threads, *(-(-positions // side) for positions in extent)), NOTHING, dtype=np.float32)
        run_in_threads(
            _best_matches, threads, *arrays_of(coarse[pair], pooled[pair], switches[pair]),
            geometry.pool_offset(0), window_places(geometry), geometry.window(0)[1],
            *geometry.first_target, geometry.shift,
            *(np.arange(positions) // side for positions in extent), best, scores[pair], cells[pair],
        )  # fmt: skip
        tables.append(best.max(axis=0))
    return Best(*map(torch.from_numpy, (scores, cells, np.stack(tables))))


@kernel
def _best_matches(
    begin, end, coarse, pooled, switches, offset, places, window,
    first_row, first_column, shift, row_bins, column_bins, best, scores, cells
):  # fmt: skip
    """Find the best match of each point, and the best score in each bin. Each table in ``best`` covers some points.

    Of several cells with the highest score, the first in raster order of the level-0 window counts. The volumes are
    (H_0, W_0, h_1, w_1), ``places`` come from ``window_places``, and ``window`` is w_0. ``row_bins`` and
    ``column_bins`` are the bins of the target positions on which a match may lie. The results are ``best``, (tables,
    bin rows, bin columns), −∞ at first, scores and cells, (H_0, W_0), with cell 0 where there is no match.
    """
    tables, columns = best.shape[0], coarse.shape[1]
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
