"""CORR, PW and MP in one pass: S_{1/2} and m_0 without S_0 (eqs. 2 and 3 of the paper).

The inner loop has a few reference points against a stretch of target positions. Numba cannot keep a block of sums in
registers, so this loop is written in LLVM's intermediate representation. It is a matrix product whose right-hand side
is never assembled: the target's cells of one patch row are neighbours in memory, and a table says where each row of the
matrix starts.
"""

from typing import Any

import llvmlite.binding
import numpy as np
import torch
from llvmlite import ir
from numba import types
from numba.extending import intrinsic
from torch import Tensor

from deepmatching.geometry.discretization import Geometry
from deepmatching.geometry.strips import target_bands, target_pitch
from deepmatching.geometry.targets import rectification, reference_patches
from deepmatching.kernels.cpu.compilation import helper, kernel
from deepmatching.kernels.cpu.matching.pooling import NO_CELL, pool_row, pool_rows, vector_width
from deepmatching.kernels.cpu.running import empty, run_in_threads

ZERO = np.float32(0)
POINTS = 4  #: reference points that share the target's cells


def _vectors() -> tuple[int, int]:
    """Return (floats in a vector, vectors per point) for all sums and operands to fit into this CPU's registers."""
    features = llvmlite.binding.get_host_cpu_features()
    if features.get("avx512f"):
        return 16, 6  # 4 × 6 sums of 32 registers
    if features.get("avx"):
        return 8, 3  # 4 × 3 sums of 16 registers
    return 4, 6 if features.get("neon") else 2


LANES, VECTORS = _vectors()
WIDE = LANES * VECTORS  #: target positions of :func:`correlate_wide`
NARROW = LANES * max(1, VECTORS // 2)  #: target positions of :func:`correlate_narrow`


def correlate_and_pool(
    cells0: Tensor, cells1: Tensor, geometry: Geometry, patch: int, exponent: float, half: bool = False
) -> tuple[Tensor, Tensor]:
    """See :func:`deepmatching.network.operators.fused.correlate_and_pool`.

    ``POINTS`` neighbours of a row of reference points share the target's cells. Their scores are computed one row of
    target positions at a time, and rectified and pooled while that row is in the cache.
    """
    shape = (len(cells0), *geometry.grid(0), *geometry.window(1))
    pooled, switches = empty(shape), empty(shape, torch.uint8)
    # The last tile may have points off the grid.
    pitch = target_pitch(geometry, patch, (POINTS - 1) * geometry.step + WIDE)
    band, _ = target_bands(geometry, patch, cells0.shape[1], pitch)
    factors = _factors(geometry, patch)
    for pair in range(shape[0]):
        for first in range(0, shape[1], band):
            rows = slice(first, min(first + band, shape[1]))
            _correlate_rows(
                cells0[pair].detach(), cells1[pair].detach(), geometry, patch, exponent, rows, pitch, factors,
                pooled[pair, rows].numpy(), switches[pair, rows].numpy(),
            )  # fmt: skip
    return pooled.half() if half else pooled, switches


def _correlate_rows(
    cells0: Tensor, cells1: Tensor, geometry: Geometry, patch: int, exponent: float, band: slice, pitch: int,
    factors: tuple[np.ndarray, np.ndarray, np.ndarray], pooled: np.ndarray, switches: np.ndarray,
) -> None:  # fmt: skip
    """Fill in S_{1/2} and m_0 of some rows of reference points, (rows, W_0, h_1, w_1), of one pair."""
    (rows, columns), channels, shift = pooled.shape[:2], cells0.shape[0], geometry.shift
    patches = reference_patches(cells0[None], geometry.strip((band.start, band.stop)), patch)[0].flatten(2)
    start, target_left = geometry.first_target  # of the first point: row, column
    start += band.start * shift
    row_factors, *column_factors = factors
    row_factors = row_factors[band] if geometry.relative else row_factors
    # Target positions on the image that these points see.
    first = max(0, start)
    last = min(cells1.shape[1] - patch % 2, start + (rows - 1) * shift + row_factors.shape[1] - 1)
    overhang = max(0, -target_left)
    cells = _target_rows(cells1, first - patch // 2, max(0, last - first + patch), patch // 2 + overhang, pitch)
    c, dy, dx = np.ogrid[:channels, :patch, :patch]
    offsets = ((dy * channels + c) * pitch + dx).astype(np.int64).ravel()
    run_in_threads(
        _correlate_tiles, rows * -(-columns // POINTS),
        patches.numpy(), cells.numpy().ravel(), overhang + target_left, channels * pitch, offsets,
        start - first, shift, row_factors, *column_factors,
        geometry.pool_offset(0), geometry.pool_reach, np.float32(exponent), pooled, switches,
    )  # fmt: skip


def _factors(geometry: Geometry, patch: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the rectification of rows (H_0 | 1, h_0) and columns (W_0 | 1, 2, n), and 0, or −1 for no cell, (2, n).

    Columns are laid out as pooling wants them: reach − offset places before the first cell, even and odd apart.
    """
    rows, columns = (factors.numpy().astype(np.float32) for factors in rectification(geometry, patch))
    lead, width = geometry.pool_reach - geometry.pool_offset(0), columns.shape[1]
    after = -(lead + width) % 32
    columns = np.pad(columns, ((0, 0), (lead, after)))
    no_cells = np.pad(np.zeros(width, dtype=np.float32), (lead, after), constant_values=NO_CELL)
    halves = columns.reshape(len(columns), -1, 2).transpose(0, 2, 1)
    return rows, np.ascontiguousarray(halves), np.ascontiguousarray(no_cells.reshape(-1, 2).T)


def _target_rows(cells: Tensor, top: int, count: int, left: int, pitch: int) -> Tensor:
    """Return rows ``top`` … of the target's cells (C, h, w), ``left`` zeros before and 0 outside: (count, C, pitch)."""
    height, width = cells.shape[1:]
    rows = torch.from_numpy(np.zeros((count, cells.shape[0], pitch), np.float32))  # unlike PyTorch, writes no zeros
    used = max(0, min(width, pitch - left))  # no window reaches the right of a target much wider than the reference
    first, last = max(0, top), min(height, top + count)
    if first < last:
        rows[first - top : last - top, :, left : left + used] = cells[:, first:last, :used].transpose(0, 1)
    return rows


@helper
def _rectify(scores, r, shift, row_factor, factors, point, no_cells, halves):
    """Split max(0, scores · row factor · column factor), or −1 for a missing cell, into even and odd places.

    The scores of point r of the tile start at place r · ``shift``; ``point`` is its row in ``factors``.
    """
    start = np.uintp(r * shift)  # unsigned: only an index that cannot be negative allows vectors
    for x in range(no_cells.shape[1]):
        n = start + np.uintp(2 * x)
        halves[0, x] = max(scores[r, n] * row_factor * factors[point, 0, x], ZERO) + no_cells[0, x]
        halves[1, x] = max(scores[r, n + np.uintp(1)] * row_factor * factors[point, 1, x], ZERO) + no_cells[1, x]


def _micro_kernel(vectors: int) -> Any:
    def typed(context: Any, filters: Any, cells: Any, first: Any, offsets: Any, scores: Any, column: Any) -> Any:
        signature = types.void(filters, cells, types.intp, offsets, scores, types.intp)

        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            arrays = [context.make_array(signature.args[n])(context, builder, arguments[n]) for n in (0, 1, 3, 4)]
            _emit(builder, vectors, arrays, arguments[2], arguments[5])
            return context.get_dummy_value()

        return signature, generate

    return intrinsic(typed)


def _emit(builder: Any, vectors: int, arrays: Any, first: Any, column: Any) -> None:
    """Emit sums[r][v] += filters[k, r] · vector v of the cells at first + offsets[k], for all k, and scores = sums."""
    filters, cells, offsets, scores = arrays
    index, floats = ir.IntType(64), ir.VectorType(ir.FloatType(), LANES)
    terms = builder.extract_value(offsets.shape, 0)

    before, loop, after = builder.block, builder.append_basic_block("terms"), builder.append_basic_block("sums")
    builder.branch(loop)

    builder.position_at_end(loop)
    k = builder.phi(index)
    k.add_incoming(index(0), before)
    sums = [[builder.phi(floats) for _ in range(vectors)] for _ in range(POINTS)]
    start = builder.add(first, builder.load(builder.gep(offsets.data, [k])))
    values = []
    for v in range(vectors):
        place = builder.gep(cells.data, [builder.add(start, index(v * LANES))])
        values.append(builder.load(builder.bitcast(place, floats.as_pointer()), align=4))
    for r in range(POINTS):
        place = builder.gep(filters.data, [builder.add(builder.mul(k, index(POINTS)), index(r))])
        weight = _broadcast(builder, builder.load(place))
        for v in range(vectors):
            product = builder.fmul(values[v], weight, flags=("contract",))
            total = builder.fadd(sums[r][v], product, flags=("contract",))
            sums[r][v].add_incoming(ir.Constant(floats, None), before)
            sums[r][v].add_incoming(total, loop)
            sums[r][v] = total
    following = builder.add(k, index(1))
    k.add_incoming(following, loop)
    builder.cbranch(builder.icmp_signed("<", following, terms), loop, after)

    builder.position_at_end(after)
    pitch = builder.extract_value(scores.shape, 1)
    for r in range(POINTS):
        row = builder.add(column, builder.mul(pitch, index(r)))
        for v in range(vectors):
            place = builder.gep(scores.data, [builder.add(row, index(v * LANES))])
            builder.store(sums[r][v], builder.bitcast(place, floats.as_pointer()), align=4)


def _broadcast(builder: Any, value: Any) -> Any:
    vector = ir.VectorType(ir.FloatType(), LANES)
    single = builder.insert_element(ir.Constant(vector, ir.Undefined), value, ir.IntType(32)(0))
    return builder.shuffle_vector(single, single, ir.Constant(ir.VectorType(ir.IntType(32), LANES), None))


#: correlate_wide(filters, cells, first, offsets, scores, column):
#: scores[r, column + x] = Σ_k filters[k, r] · cells[first + offsets[k] + x] for r < POINTS, x < WIDE.
#: filters (K, POINTS), cells (N,), offsets (K,) int64 and scores (POINTS, ≥ column + WIDE) are C-contiguous.
correlate_wide = _micro_kernel(VECTORS)

#: The same for NARROW positions.
correlate_narrow = _micro_kernel(max(1, VECTORS // 2))


@kernel
def _correlate_tiles(
    begin, end, patches, cells1, first1, row_pitch, offsets,
    start, shift, row_factors, column_factors, no_cells, offset, reach, exponent, pooled, switches
):  # fmt: skip
    """Fill in the tiles ``begin`` … ``end`` − 1 of POINTS reference points each, in raster order.

    Args:
        patches: (H_0, W_0, K), of the reference points.
        cells1, row_pitch: the flattened rows of ``_target_rows``, and from row to row.
        first1: where the first point's patch starts in a row when it is at its first target position.
        offsets: (K,), to each of the patch's values, in the order (c, dy, dx).
        start, shift: target row of the first cell of point (0, 0), and from point to point.
        row_factors, column_factors, no_cells: see ``_factors``.
        pooled, switches: (H_0, W_0, h_1, w_1), the result.
    """
    columns, pooled_rows, pooled_columns = pooled.shape[1:]
    rows, places = row_factors.shape[1], 2 * column_factors.shape[2]
    side, lead, width = 2 * reach + 1, reach - offset, vector_width(pooled_columns)
    band = (POINTS - 1) * shift
    for parity in range(2):
        for x in range(no_cells.shape[1]):
            band += no_cells[parity, x] == ZERO

    filters = np.zeros((offsets.shape[0], POINTS), dtype=np.float32)
    scores = np.zeros((POINTS, places + band + WIDE), dtype=np.float32)
    halves = np.full((2, max(width, places // 2) + side), NO_CELL, dtype=np.float32)
    best = np.full((POINTS, side + 1, width), NO_CELL, dtype=np.float32)
    code = np.zeros((POINTS, side + 1, width), dtype=np.int32)
    values, chosen = np.empty(width, dtype=np.float32), np.empty(width, dtype=np.int32)

    tiles = (columns + POINTS - 1) // POINTS
    for tile in range(begin, end):
        i, j = tile // tiles, tile % tiles * POINTS
        points = min(POINTS, columns - j)
        for r in range(points):
            for n in range(filters.shape[0]):
                filters[n, r] = patches[i, j + r, n]
        k = 0
        for y in range(rows):
            row_factor = row_factors[i if shift else 0, y]
            if row_factor > ZERO:
                place = (start + i * shift + y) * row_pitch + first1 + j * shift
                x = 0
                while x < band:
                    if band - x > NARROW:
                        correlate_wide(filters, cells1, place + x, offsets, scores, lead + x)
                        x += WIDE
                    else:
                        correlate_narrow(filters, cells1, place + x, offsets, scores, lead + x)
                        x += NARROW
            for r in range(points):
                point = j + r if shift else 0
                _rectify(scores, r, shift, row_factor, column_factors, point, no_cells, halves)
                pool_row(halves, best, code, r, y)
            while k < pooled_rows and (2 * k + offset + reach == y or y == rows - 1):
                for r in range(points):
                    pool_rows(best, code, r, 2 * k + offset, rows, exponent, values, chosen)
                    for x in range(pooled_columns):
                        pooled[i, j + r, k, x] = values[x]
                    for x in range(pooled_columns):
                        switches[i, j + r, k, x] = chosen[x]
                k += 1
