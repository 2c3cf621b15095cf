"""Sub-pixel matches: the scores around each match, computed again from the descriptors, and their mean position."""

import triton
import triton.language as tl
from torch import Tensor

from deepmatching.geometry.discretization import Geometry
from deepmatching.geometry.targets import Decoded
from deepmatching.kernels.constants import SUBPIXEL_REACH
from deepmatching.kernels.gpu.indexing import fetch, launch, powered, reference_point
from deepmatching.kernels.gpu.matching.decoding import targets
from deepmatching.kernels.gpu.matching.evidence import target_of

CHANNELS = 64  #: channels of the descriptors that are multiplied at a time
POINTS = 16  #: reference points of one program of the refinement

REACH = tl.constexpr(SUBPIXEL_REACH)
SIDE = tl.constexpr(2 * SUBPIXEL_REACH + 1)  #: cells along the side of the square around a match
SQUARE = tl.constexpr((2 * SUBPIXEL_REACH + 1) ** 2)  #: cells of it
PADDED = tl.constexpr(32)  #: these, as a power of two


@triton.jit
def _scores_around(
    cells, cells0, cells1, exponent, out, rows, columns, w_fine, origin_y, origin_x, step, last_y, last_x,
    channels, h, w, first_y, first_x, cell_step, a_b, a_c, a_y, a_x, b_b, b_c, b_y, b_x,
    PATCH: tl.constexpr, CHANNELS: tl.constexpr, LEARNED: tl.constexpr
):  # fmt: skip
    """Compute S_0 of the 5 × 5 target positions around the match of one reference point."""
    pair, i, j = reference_point(rows, columns)
    point, k = tl.program_id(0), tl.arange(0, PADDED)
    y, x = target_of(cells, point, point >= 0, rows, columns, w_fine, origin_y, origin_x, step)
    y = tl.minimum(tl.maximum(y, 0), last_y) + k // SIDE - REACH
    x = tl.minimum(tl.maximum(x, 0), last_x) + k % SIDE - REACH
    on = (k < SQUARE) & (y >= 0) & (y <= last_y) & (x >= 0) & (x <= last_x)
    cells0 += pair * a_b + (first_y + cell_step * i).to(tl.int64) * a_y + (first_x + cell_step * j) * a_x
    cells1 += pair * b_b
    total, visible = tl.zeros((PADDED,), tl.float32), tl.zeros((PADDED,), tl.int32)
    for n in range(PATCH * PATCH):
        p_y, p_x = n // PATCH, n % PATCH
        at_y, at_x = y + (p_y - PATCH // 2), x + (p_x - PATCH // 2)
        seen = on & (at_y >= 0) & (at_y < h) & (at_x >= 0) & (at_x < w)
        visible += seen.to(tl.int32)
        ours, theirs = cells0 + p_y * a_y + p_x * a_x, cells1 + at_y.to(tl.int64) * b_y + at_x * b_x
        for begin in range(0, channels, CHANNELS):
            channel = begin + tl.arange(0, CHANNELS)
            valid = channel < channels
            a = fetch(ours + channel * a_c, valid)
            b = fetch(theirs[:, None] + (channel * b_c)[None, :], seen[:, None] & valid[None, :])
            total += tl.sum(a[None, :] * b, axis=1)
    total *= PATCH * PATCH / tl.maximum(visible, 1).to(tl.float32)
    nu = tl.load(exponent) if LEARNED else exponent
    tl.store(out + point * SQUARE + k, tl.where(on, powered(total, nu), float("-inf")), mask=k < SQUARE)


@triton.jit
def _refine(
    around, points0, points1, sharpness, moved, points, places, gamma, radius, last_x, last_y,
    LIMITED: tl.constexpr, POINTS: tl.constexpr
):  # fmt: skip
    """Move matches to the mean position around them."""
    point = tl.program_id(0) * POINTS + tl.arange(0, POINTS)
    k = tl.arange(0, PADDED)
    on = point < points
    read = on[:, None] & (k < SQUARE)[None, :]
    scores = tl.load(around + (point * SQUARE)[:, None] + k[None, :], mask=read, other=float("-inf"))
    finite = (scores > float("-inf")) & (scores < float("inf"))
    logits = tl.where(finite, tl.load(sharpness) * scores, float("-inf"))
    top = tl.max(logits, axis=1)
    weights = tl.where(finite, tl.exp(logits - tl.where(top > float("-inf"), top, 0.0)[:, None]), 0.0)
    whole = tl.maximum(tl.sum(weights, axis=1), 1e-30)
    for c in tl.static_range(2):
        steps = (k % SIDE if c == 0 else k // SIDE) - REACH
        to = fetch(points1 + 2 * point + c, on) + gamma * (tl.sum(weights * steps[None, :], axis=1) / whole)
        if LIMITED:
            start = fetch(points0 + 2 * (point % places) + c, on)
            to = tl.minimum(tl.maximum(to, start - radius), start + radius)
        to = tl.minimum(tl.maximum(to, 0.0), last_x if c == 0 else last_y)
        tl.store(moved + 2 * point + c, to, mask=on)


def scores_around(
    decoded: Decoded, cells0: Tensor, cells1: Tensor, geometry: Geometry, patch: int, exponent: Tensor | float
) -> Tensor:
    """See :func:`deepmatching.network.operators.subpixel.scores_around`."""
    batch, rows, columns = decoded.scores.shape
    out = cells0.new_empty((batch, rows, columns, SIDE.value, SIDE.value))
    first = (cell - patch // 2 for cell in geometry.first_cell)
    launch(
        _scores_around, (batch * rows * columns,),
        decoded.cells.contiguous(), cells0, cells1, exponent, out, rows, columns, *targets(geometry, "none")[:4],
        *(size // geometry.gamma for size in geometry.used1), cells0.shape[1], *cells1.shape[2:], *first,
        geometry.step, *cells0.stride(), *cells1.stride(),
        PATCH=patch, CHANNELS=min(CHANNELS, triton.next_power_of_2(cells0.shape[1])),
        LEARNED=isinstance(exponent, Tensor), num_warps=4,
    )  # fmt: skip
    return out


def refine_to_subpixel(decoded: Decoded, around: Tensor, geometry: Geometry, sharpness: Tensor) -> Decoded:
    """See :func:`deepmatching.network.operators.subpixel.refine_to_subpixel`."""
    points0, points1 = decoded.points0.contiguous(), decoded.points1.contiguous()
    moved, points = points1.new_empty(points1.shape), decoded.scores.numel()
    launch(
        _refine, (triton.cdiv(points, POINTS),),
        around.contiguous(), points0, points1, sharpness, moved, points, points0[..., 0].numel(),
        float(geometry.gamma), float(geometry.radius or 0), *(size - 0.5 for size in reversed(geometry.used1)),
        LIMITED=geometry.radius is not None, POINTS=POINTS, num_warps=4,
    )  # fmt: skip
    return decoded._replace(points1=moved)
