"""Evidence of matches: one pass over the points finds the best claim on every target bin, another writes all channels.

A claim on a bin is one 64-bit number with the score above and, below, the point's place in raster order, the first
highest: an atomic maximum leaves the first of the best claims.
"""

import math

import torch
import triton
import triton.language as tl
from torch import Tensor

from deepmatching.geometry.discretization import Geometry
from deepmatching.geometry.targets import Decoded
from deepmatching.kernels import constants
from deepmatching.kernels.gpu.indexing import fetch, launch
from deepmatching.kernels.gpu.matching.decoding import ordered, targets

POINTS = 32  #: reference points of one program
CHANNELS = 64  #: channels of the descriptors that are multiplied at a time
NO_CLAIM = -(2**63)  #: below the claim of any score

FINE_SCALE = tl.constexpr(constants.FINE_SCALE)
COARSE_SCALE = tl.constexpr(constants.COARSE_SCALE)
NO_SCORE = tl.constexpr(constants.NO_SCORE)
PARTS = tl.constexpr(constants.SIMILARITY_PARTS)
FIXED = tl.constexpr(72)  #: channels before the parts of the similarity


@triton.jit
def squashed(length, SCALE: tl.constexpr):
    """Return x / (|x| + s)."""
    return length / (tl.abs(length) + SCALE)


@triton.jit
def target_of(cells, point, on, rows, columns, w_fine, origin_y, origin_x, step):
    """Return (row, column) of Γ(p), in cells from the image's corner."""
    cell = fetch(cells + point, on).to(tl.int32)
    i, j = (point // columns) % rows, point % columns
    return origin_y + step * i + cell // w_fine, origin_x + step * j + cell % w_fine


@triton.jit
def bin_of(y, x, per_bin, bin_rows, bin_columns):
    """Return (row, column) of the target's bin."""
    row = tl.minimum(tl.maximum(y // per_bin, 0), bin_rows - 1)
    return row, tl.minimum(tl.maximum(x // per_bin, 0), bin_columns - 1)


@triton.jit
def _claim(
    scores, cells, points0, points1, table, shares, moved, points, levels,
    rows, columns, w_fine, origin_y, origin_x, step, per_bin, bin_rows, bin_columns,
    POINTS: tl.constexpr
):  # fmt: skip
    """Store Q/(L+1) and d(p), 0 where no path reaches p, and the best claim on every bin."""
    point = tl.program_id(0) * POINTS + tl.arange(0, POINTS)
    on = point < points
    score = fetch(scores + point, on)
    reached = (score > float("-inf")) & (score < float("inf"))
    score = tl.where(reached, score / levels, 0.0)
    tl.store(shares + point, score, mask=on)
    pair, place = point // (rows * columns), point % (rows * columns)
    for c in tl.static_range(2):
        to = fetch(points1 + 2 * point + c, on & reached)
        start = fetch(points0 + 2 * place + c, on & reached)
        tl.store(moved + 2 * point + c, to - start, mask=on)
    y, x = target_of(cells, point, on, rows, columns, w_fine, origin_y, origin_x, step)
    row, column = bin_of(y, x, per_bin, bin_rows, bin_columns)
    claim = (ordered(score).to(tl.int64) << 32) | (0x7FFFFFFF - place).to(tl.int64)
    tl.atomic_max(table + (pair * bin_rows + row) * bin_columns + column, claim, mask=on, sem="relaxed")


@triton.jit
def against(claim, score, own_x, own_y, moved, start, on):
    """Return by how much a claim exceeds the score, and the difference between its displacement and the point's."""
    bits = (claim >> 32).to(tl.int32)  # ``ordered`` of its score
    excess = (tl.where(bits >= 0, bits, bits ^ 0x7FFFFFFF).to(tl.float32, bitcast=True) - score) * 4.0
    other = start + (0x7FFFFFFF - (claim & 0xFFFFFFFF)).to(tl.int32)
    x = fetch(moved + 2 * other, on) - own_x
    return excess, x, fetch(moved + 2 * other + 1, on) - own_y


@triton.jit
def store_squashed(out, lengths, SCALE: tl.constexpr, on):
    """Store a tuple of lengths, squashed, beside each other."""
    for n in tl.static_range(len(lengths)):
        tl.store(out + n, squashed(lengths[n], SCALE), mask=on)


@triton.jit
def _describe_match(
    shares, moved, scores, verified, around, points0, cells, table, out, point, on,
    rows, columns, w_fine, origin_y, origin_x, step, per_bin, bin_rows, bin_columns,
    height0, width0, height1, width1, radius, LIMITED: tl.constexpr, POINTS: tl.constexpr
):  # fmt: skip
    """Store all channels but the parts of the similarity. ``out`` has the points' first channels."""
    pair, place = point // (rows * columns), point % (rows * columns)
    start = pair * (rows * columns)
    score = fetch(shares + point, on)
    own_x, own_y = fetch(moved + 2 * point, on), fetch(moved + 2 * point + 1, on)
    raw = fetch(scores + point, on)
    k = tl.arange(0, 32)
    peak = fetch(around + (25 * point)[:, None] + k[None, :], on[:, None] & (k < 25)[None, :])
    peak = tl.where((peak > float("-inf")) & (peak < float("inf")), peak, NO_SCORE)
    tl.store((out + 47)[:, None] + k[None, :], peak, mask=on[:, None] & (k < 25)[None, :])
    tl.store(out, score, mask=on)
    tl.store(out + 1, tl.sum(tl.where((k == 12)[None, :], peak, 0.0), axis=1), mask=on)
    tl.store(out + 2, ((raw > float("-inf")) & (raw < float("inf"))).to(tl.float32), mask=on)

    tl.store(out + 3, (fetch(verified + point, on) != 0).to(tl.float32), mask=on)
    bin_y, bin_x = target_of(cells, point, on, rows, columns, w_fine, origin_y, origin_x, step)
    row, column = bin_of(bin_y, bin_x, per_bin, bin_rows, bin_columns)
    table += pair * (bin_rows * bin_columns)
    claim = fetch(table + row * bin_columns + column, on)
    excess, dx, dy = against(claim, score, own_x, own_y, moved, start, on)
    tl.store(out + 4, excess, mask=on)
    store_squashed(out + 5, (dx, dy), FINE_SCALE, on)
    best = claim
    found = tl.zeros((POINTS,), tl.int32)
    for n in tl.static_range(9):  # of equal scores, that of the first bin
        near_y, near_x = row + (n // 3 - 1), column + (n % 3 - 1)
        valid = on & (near_y >= 0) & (near_y < bin_rows) & (near_x >= 0) & (near_x < bin_columns)
        near = fetch(table + near_y * bin_columns + near_x, valid)
        better = valid & ((found == 0) | ((near >> 32) > (best >> 32)))
        best = tl.where(better, near, best)
        found = tl.where(valid, 1, found)
    excess, dx, dy = against(best, score, own_x, own_y, moved, start, on)
    tl.store(out + 7, excess, mask=on)
    store_squashed(out + 8, (dx, dy, tl.sqrt(dx * dx + dy * dy)), FINE_SCALE, on)

    x, y = fetch(points0 + 2 * place, on), fetch(points0 + 2 * place + 1, on)
    store_squashed(out + 11, (own_x, own_y, x, y, width0 - x, height0 - y), COARSE_SCALE, on)
    x, y = x + own_x, y + own_y
    store_squashed(out + 17, (x, y, width1 - x, height1 - y), COARSE_SCALE, on)
    if LIMITED:
        store_squashed(out + 21, (radius - tl.abs(own_x), radius - tl.abs(own_y)), FINE_SCALE, on)
    else:
        tl.store(out + 21, 1.0, mask=on)
        tl.store(out + 22, 1.0, mask=on)

    i, j = place // columns, place % columns
    for n in tl.static_range(4):  # a neighbour and the opposite one
        step_y, step_x = n // 3 - 1, n % 3 - 1
        up, down = tl.maximum(i + step_y, 0), tl.minimum(i - step_y, rows - 1)
        left = tl.minimum(tl.maximum(j + step_x, 0), columns - 1)
        right = tl.minimum(tl.maximum(j - step_x, 0), columns - 1)
        before, after = moved + 2 * (start + up * columns + left), moved + 2 * (start + down * columns + right)
        for c in tl.static_range(2):
            own = own_x if c == 0 else own_y
            one = fetch(before + c, on) - own
            other = fetch(after + c, on) - own
            tl.store(out + (23 + 2 * n + c), squashed(one, FINE_SCALE), mask=on)
            tl.store(out + (23 + 2 * (7 - n) + c), squashed(other, FINE_SCALE), mask=on)
            tl.store(out + (39 + 2 * n + c), squashed(one + other, FINE_SCALE), mask=on)


@triton.jit
def _evidence(
    shares, moved, scores, verified, around, points0, cells, table, cells0, cells1, out, points,
    rows, columns, w_fine, origin_y, origin_x, step, per_bin, bin_rows, bin_columns,
    height0, width0, height1, width1, radius, channels, h, w, first_y, first_x, cell_step,
    a_b, a_c, a_y, a_x, b_b, b_c, b_y, b_x,
    LIMITED: tl.constexpr, PATCH: tl.constexpr, PER_PART: tl.constexpr, WIDTH: tl.constexpr,
    POINTS: tl.constexpr, CHANNELS: tl.constexpr
):  # fmt: skip
    """Write the first channels of the points in programs (·, 0), the parts of the similarity in the others."""
    point = tl.program_id(0) * POINTS + tl.arange(0, POINTS)
    on = point < points
    SIZE: tl.constexpr = FIXED + (PARTS if PATCH == 1 else PATCH * PATCH)
    out += point.to(tl.int64) * SIZE
    if tl.program_id(1) == 0:
        _describe_match(
            shares, moved, scores, verified, around, points0, cells, table, out, point, on,
            rows, columns, w_fine, origin_y, origin_x, step, per_bin, bin_rows, bin_columns,
            height0, width0, height1, width1, radius, LIMITED, POINTS,
        )  # fmt: skip
    else:
        part = tl.program_id(1) - 1  # a cell of the patch
        pair = (point // (rows * columns)).to(tl.int64)
        i, j = (point // columns) % rows, point % columns
        y, x = target_of(cells, point, on, rows, columns, w_fine, origin_y, origin_x, step)
        y += part // PATCH - PATCH // 2
        x += part % PATCH - PATCH // 2
        seen = on & (y >= 0) & (y < h) & (x >= 0) & (x < w)
        here = (first_y + cell_step * i + part // PATCH).to(tl.int64) * a_y
        a = cells0 + pair * a_b + here + (first_x + cell_step * j + part % PATCH) * a_x
        b = cells1 + pair * b_b + y.to(tl.int64) * b_y + x * b_x
        if PATCH == 1:
            g, n = tl.arange(0, PARTS), tl.arange(0, WIDTH)
            total = tl.zeros((POINTS, PARTS), tl.float32)
            for begin in range(0, PER_PART, WIDTH):
                channel = g[:, None] * PER_PART + begin + n[None, :]
                valid = (begin + n < PER_PART)[None, :] & (channel < channels)
                mask = seen[:, None, None] & valid[None, :, :]
                ours = fetch(a[:, None, None] + (channel * a_c)[None, :, :], mask)
                theirs = fetch(b[:, None, None] + (channel * b_c)[None, :, :], mask)
                total += tl.sum(ours * theirs, axis=2)
            tl.store((out + FIXED)[:, None] + g[None, :], total * PARTS, mask=on[:, None])
        else:
            sums = tl.zeros((POINTS,), tl.float32)
            for begin in range(0, channels, CHANNELS):
                channel = begin + tl.arange(0, CHANNELS)
                mask = seen[:, None] & (channel < channels)[None, :]
                ours = fetch(a[:, None] + (channel * a_c)[None, :], mask)
                theirs = fetch(b[:, None] + (channel * b_c)[None, :], mask)
                sums += tl.sum(ours * theirs, axis=1)
            tl.store(out + FIXED + part, sums * (PATCH * PATCH), mask=on)


def gather_evidence(
    decoded: Decoded, around: Tensor, cells0: Tensor, cells1: Tensor, geometry: Geometry, patch: int
) -> Tensor:
    """See :func:`deepmatching.network.operators.evidence.gather_evidence`."""
    batch, rows, columns = decoded.scores.shape
    scores, cells, points0 = decoded.scores.contiguous(), decoded.cells.contiguous(), decoded.points0.contiguous()
    places, points = (rows, columns, *targets(geometry, "bins")), scores.numel()
    table = torch.full((batch * math.prod(places[-2:]),), NO_CLAIM, dtype=torch.int64, device=scores.device)
    shares, moved = torch.empty_like(scores), scores.new_empty((batch, rows, columns, 2))
    blocks = triton.cdiv(points, POINTS)
    launch(
        _claim, (blocks,),
        scores, cells, points0, decoded.points1.contiguous(), table, shares, moved, points, float(geometry.L + 1),
        *places, POINTS=POINTS, num_warps=1,
    )  # fmt: skip
    out = scores.new_empty((batch, rows, columns, FIXED.value + (PARTS.value if patch == 1 else patch**2)))
    channels, per_part = cells0.shape[1], triton.cdiv(cells0.shape[1], PARTS.value)
    top, left = (cell - patch // 2 for cell in geometry.first_cell)
    launch(
        _evidence, (blocks, 1 + patch**2),
        shares, moved, scores, decoded.verified.contiguous().view(torch.uint8), around.contiguous(), points0, cells,
        table, cells0, cells1, out, points, *places,
        *(float(side) for side in (*geometry.used0, *geometry.used1, geometry.radius or 0)),
        channels, *cells1.shape[2:], top, left, geometry.step, *cells0.stride(), *cells1.stride(),
        LIMITED=geometry.radius is not None, PATCH=patch,
        PER_PART=per_part, WIDTH=min(8, triton.next_power_of_2(per_part)),
        POINTS=POINTS, CHANNELS=CHANNELS, num_warps=4,
    )  # fmt: skip
    return out.permute(0, 3, 1, 2)
