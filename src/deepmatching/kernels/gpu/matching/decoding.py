"""Decoding from the pooled scores.

Γ(p) and the table of the best score at every target bin (or target point) come from one pass over Q_{1/2} + S_{1/2},
then two passes over the reference points decide which point keeps a bin.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from deepmatching.geometry.discretization import Geometry
from deepmatching.geometry.targets import Best, Decoded, bin_side, positions
from deepmatching.kernels.gpu.indexing import NOTHING, cells_of, fetch, launch, reference_point, row_and_column
from deepmatching.settings import RECIPROCAL, Reciprocal

LOWEST = -2139095041  #: ``ordered`` of −∞
POINTS = 128  #: reference points of one program of the passes over points


@triton.jit
def ordered(score):
    """Return an integer that orders like the score, for atomic maxima; −0 and +0 are equal."""
    bits = (score + 0.0).to(tl.int32, bitcast=True)
    return tl.where(bits >= 0, bits, bits ^ 0x7FFFFFFF)


@triton.jit
def _best_cells(
    coarse, pooled, switches, scores, cells, table, rows, columns, h, w, w_fine, offset,
    origin_y, origin_x, step, rows1, columns1, bin_rows, bin_columns,
    PER_BIN: tl.constexpr, REACH: tl.constexpr, TABLE: tl.constexpr, BLOCK: tl.constexpr
):  # fmt: skip
    """Find argmax_k Q_0(k|p), first in raster order, where Q_0(m_0(q')|p) = Q_{1/2}(q'|p) + S_{1/2}(q'|p)."""
    SIDE: tl.constexpr = 2 * REACH + 1
    pair, i, j = reference_point(rows, columns)
    source = cells_of(pair, i, j, rows, columns, h * w)
    coarse += source
    pooled += source
    switches += source
    table += pair * (bin_rows * bin_columns)
    best_score = float("-inf")
    best_cell = tl.full((), 0, tl.int32)
    for start in range(0, h * w, BLOCK):
        q = start + tl.arange(0, BLOCK)
        inside = q < h * w
        code = tl.load(switches + q, mask=inside, other=255).to(tl.int32)
        on = inside & (code != NOTHING)
        score = tl.load(coarse + q, mask=on, other=float("-inf"))
        score += fetch(pooled + q, on).to(tl.float32)
        q_y, q_x = row_and_column(q, w)
        k_y = 2 * q_y + offset - REACH + code // SIDE
        k_x = 2 * q_x + offset - REACH + code % SIDE
        y, x = origin_y + step * i + k_y, origin_x + step * j + k_x  # the target, in cells from the image's corner
        on = on & (y >= 0) & (y < rows1) & (x >= 0) & (x < columns1)
        score = tl.where(on, score, float("-inf"))

        if TABLE:
            key = ordered(score)
            at = table + ((y // PER_BIN) * bin_columns + x // PER_BIN)
            candidate = on & (score > float("-inf"))
            # Few scores raise a maximum: look first (past L1, which may be stale), and keep atomics for those.
            current = tl.load(at, mask=candidate, other=0, cache_modifier=".cg")
            tl.atomic_max(at, key, mask=candidate & (key > current), sem="relaxed")

        top = tl.max(score, axis=0)
        cell = tl.min(tl.where(score == top, k_y * w_fine + k_x, 0x7FFFFFFF), axis=0)
        better = (top > best_score) | ((top == best_score) & (top > float("-inf")) & (cell < best_cell))
        best_cell = tl.where(better, cell, best_cell)
        best_score = tl.where(better, top, best_score)
    point = tl.program_id(0)
    tl.store(scores + point, best_score)
    tl.store(cells + point, best_cell.to(tl.int64))


@triton.jit
def claim_of(
    scores, cells, table, point, inside, rows, columns, w_fine, origin_y, origin_x, step, per_bin, bin_rows, bin_columns
):
    """Tell whether a point's score is the best in its bin, and return the bin's index in the table."""
    score = tl.load(scores + point, mask=inside, other=float("-inf"))
    cell = fetch(cells + point, inside).to(tl.int32)
    finite = inside & (score > float("-inf")) & (score < float("inf"))
    i, j = (point // columns) % rows, point % columns
    y = (origin_y + step * i + cell // w_fine) // per_bin
    x = (origin_x + step * j + cell % w_fine) // per_bin
    at = (point // (rows * columns)) * (bin_rows * bin_columns) + y * bin_columns + x
    return finite & (ordered(score) >= fetch(table + at, finite)), at


@triton.jit
def _verify(
    scores, cells, table, first, verified, points,
    rows, columns, w_fine, origin_y, origin_x, step, per_bin, bin_rows, bin_columns,
    CLAIM: tl.constexpr, FIRST: tl.constexpr, BLOCK: tl.constexpr
):  # fmt: skip
    """With ``CLAIM``, set first[bin] to the first reference point in raster order that claims the bin; else verify."""
    point = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    claims, at = claim_of(
        scores, cells, table, point, point < points,
        rows, columns, w_fine, origin_y, origin_x, step, per_bin, bin_rows, bin_columns,
    )  # fmt: skip
    if CLAIM:
        tl.atomic_min(first + at, point, mask=claims, sem="relaxed")
    else:
        if FIRST:
            claims = claims & (tl.load(first + at, mask=claims, other=-1) == point)
        tl.store(verified + point, claims.to(tl.uint8), mask=point < points)


def targets(geometry: Geometry, reciprocal: Reciprocal) -> tuple[int, ...]:
    """Return (w_fine, origin_y, origin_x, step, per_bin, bin_rows, bin_columns): where a point's targets lie.

    These are w_0, the first target of point (0, 0) in cells from the image's corner, the step from point to point, and
    the bins of the table, of α₀ pixels or, for ``exact``, of one target position.
    """
    per_bin = bin_side(geometry, reciprocal)
    bins = (-(-(size // geometry.gamma) // per_bin) for size in geometry.used1)
    return geometry.window(0)[1], *geometry.first_target, geometry.shift, per_bin, *bins


def _best(
    coarse: Tensor, pooled: Tensor, switches: Tensor, geometry: Geometry, reciprocal: Reciprocal
) -> tuple[Tensor, Tensor, Tensor]:
    """Return scores and cells, (B, H_0, W_0), and the table of keys, (B, bin rows, bin columns)."""
    pairs, rows, columns, h, w = coarse.shape
    scores = coarse.new_empty((pairs, rows, columns))
    cells = torch.empty_like(scores, dtype=torch.int64)
    w_fine, *origin, step, per_bin, bin_rows, bin_columns = targets(geometry, reciprocal)
    bins = (pairs, bin_rows, bin_columns) if reciprocal != "none" else (pairs, 0, 0)
    table = torch.full(bins, LOWEST, dtype=torch.int32, device=coarse.device)
    block = min(2048, triton.next_power_of_2(h * w))
    launch(
        _best_cells, (pairs * rows * columns,),
        coarse.contiguous(), pooled.contiguous(), switches.contiguous(), scores, cells, table,
        rows, columns, h, w, w_fine, geometry.pool_offset(0), *origin, step,
        *(size // geometry.gamma for size in geometry.used1), bin_rows, bin_columns,
        PER_BIN=per_bin, REACH=geometry.pool_reach, TABLE=reciprocal != "none", BLOCK=block, num_warps=4,
    )  # fmt: skip
    return scores, cells, table


def best_pooled(coarse: Tensor, pooled: Tensor, switches: Tensor, geometry: Geometry, reciprocal: Reciprocal) -> Best:
    """See :func:`deepmatching.network.operators.decoding.best_pooled`."""
    scores, cells, table = _best(coarse, pooled, switches, geometry, reciprocal)
    return Best(scores, cells, torch.where(table >= 0, table, table ^ 0x7FFFFFFF).view(torch.float32))


def decode_pooled(
    coarse: Tensor, pooled: Tensor, switches: Tensor, geometry: Geometry, reciprocal: Reciprocal = RECIPROCAL
) -> Decoded:
    """See :func:`deepmatching.network.operators.decoding.decode_pooled`."""
    scores, cells, table = _best(coarse, pooled, switches, geometry, reciprocal)
    if reciprocal == "none":
        return Decoded(*positions(cells, geometry), scores, cells, torch.isfinite(scores))
    verified = torch.empty_like(scores, dtype=torch.bool)
    at = (scores.numel(), *scores.shape[1:], *targets(geometry, reciprocal))
    grid = (triton.cdiv(scores.numel(), POINTS),)
    has_first = reciprocal == "bins"
    first = torch.full_like(table, 2**31 - 1) if has_first else table
    for claim in (True, False) if has_first else (False,):
        tensors = (scores, cells, table, first, verified.view(torch.uint8))
        launch(_verify, grid, *tensors, *at, CLAIM=claim, FIRST=has_first, BLOCK=POINTS)
    return Decoded(*positions(cells, geometry), scores, cells, verified)
