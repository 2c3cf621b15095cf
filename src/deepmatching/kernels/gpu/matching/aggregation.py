"""Aggregation (AG), eq. (4), and disaggregation (DA), eq. (5), with their gradients; and the levels of inference.

Links lead from a point to its children, and with all shifts negated to its parents: along each axis, a point has one
on side 0 (ε = −1) and one on side 1 (ε = +1).
"""

from collections.abc import Sequence
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.autograd.function import once_differentiable

from deepmatching.geometry.discretization import Geometry, Links
from deepmatching.kernels.gpu.indexing import (
    NOTHING,
    block_of_cells,
    cells_of,
    fetch,
    launch_on_volume,
    powered,
    reference_point,
)
from deepmatching.kernels.gpu.matching.pooling import pool, unpool


@triton.jit
def shifted(index, minus, plus, SIDE: tl.constexpr):
    """Return the index of the linked point on a side along an axis."""
    if SIDE == 0:
        return index + minus
    else:
        return index + plus


@triton.jit
def existing(index, points):
    """Return 1 if the grid has such a point along an axis, else 0."""
    return tl.where((index >= 0) & (index < points), 1.0, 0.0)


@triton.jit
def linked(
    pair, i, j, y, x, inside, rows, columns, h, w, up, down, left, right, cell_shift,
    SIDE_Y: tl.constexpr, SIDE_X: tl.constexpr, SHIFTED: tl.constexpr
):  # fmt: skip
    """Return the other end of a link on a grid of rows × columns: offsets of the point and of its cells, which of these
    are on the map, and whether the point exists (1 or 0). For a missing point, they are those of the nearest one.
    """
    other_i, other_j = shifted(i, up, down, SIDE_Y), shifted(j, left, right, SIDE_X)
    cell_y, cell_x = y + (2 * SIDE_Y - 1) * cell_shift, x + (2 * SIDE_X - 1) * cell_shift
    near_i, near_j = tl.minimum(tl.maximum(other_i, 0), rows - 1), tl.minimum(tl.maximum(other_j, 0), columns - 1)
    point = cells_of(pair, near_i, near_j, rows, columns, h * w)
    on = inside
    if SHIFTED:
        on = inside & (cell_y >= 0) & (cell_y < h) & (cell_x >= 0) & (cell_x < w)
    return point, cell_y * w + cell_x, on, existing(other_i, rows) * existing(other_j, columns)


@triton.jit
def _sum_linked(
    source, choices, out, exponent, rows_out, columns_out, rows, columns, h, w, up, down, left, right, cell_shift,
    KIND: tl.constexpr, POWER: tl.constexpr, SHIFTED: tl.constexpr, BLOCK: tl.constexpr
):  # fmt: skip
    """Sum the cells of the points on the other grid that a point is linked with.

    * ``mean``: of the existing children, summed in the links' order, and divided by their number;
    * ``shares``: of the parents, each divided by the number of its existing children (the gradient of the mean);
    * ``chosen``: of the children that chose this parent (the gradient of disaggregation).
    """
    pair, i, j = reference_point(rows_out, columns_out)
    cell, y, x, inside = block_of_cells(h, w, BLOCK)
    total = tl.zeros((BLOCK,), tl.float32)
    count_y = existing(i + up, rows) + existing(i + down, rows)
    count_x = existing(j + left, columns) + existing(j + right, columns)
    for side_y in tl.static_range(2):
        if KIND == "shares":
            parent = shifted(i, up, down, side_y)
            count_y = existing(parent - up, rows_out) + existing(parent - down, rows_out)
        for side_x in tl.static_range(2):
            if KIND == "shares":
                parent = shifted(j, left, right, side_x)
                count_x = existing(parent - left, columns_out) + existing(parent - right, columns_out)
            point, at, on, exists = linked(
                pair, i, j, y, x, inside, rows, columns, h, w, up, down, left, right, cell_shift,
                side_y, side_x, SHIFTED,
            )  # fmt: skip
            if KIND == "chosen":
                on = on & (tl.load(choices + point + at, mask=on, other=255).to(tl.int32) == 2 * side_y + side_x)
            else:  # weights are powers of two: the sum of the products is the mean to the last bit
                exists = exists / (tl.maximum(count_y, 1.0) * tl.maximum(count_x, 1.0))
            total += exists * fetch(source + point + at, on).to(tl.float32)
    if POWER:
        total = powered(total, exponent)
    tl.store(out + cells_of(pair, i, j, rows_out, columns_out, h * w) + cell, total, mask=inside)


@triton.jit
def _disaggregate(
    scores, values, choices, rows, columns, rows_up, columns_up, h, w, up, down, left, right, cell_shift,
    SHIFTED: tl.constexpr, RECORD: tl.constexpr, BLOCK: tl.constexpr
):  # fmt: skip
    """Find the best parent of each child. Parents come in the reverse order of the links that lead from them."""
    pair, i, j = reference_point(rows, columns)
    cell, y, x, inside = block_of_cells(h, w, BLOCK)
    best = tl.full((BLOCK,), float("-inf"), tl.float32)
    choice = tl.full((BLOCK,), NOTHING, tl.int32)
    for n_y in tl.static_range(2):
        for n_x in tl.static_range(2):
            parent, at, on, exists = linked(
                pair, i, j, y, x, inside, rows_up, columns_up, h, w, up, down, left, right, cell_shift,
                1 - n_y, 1 - n_x, SHIFTED,
            )  # fmt: skip
            score = tl.load(scores + parent + at, mask=on, other=float("-inf"))
            score += tl.where(exists > 0, 0.0, float("-inf"))
            better = score > best
            best = tl.where(better, score, best)
            choice = tl.where(better, 2 * (1 - n_y) + (1 - n_x), choice)
    out = cells_of(pair, i, j, rows, columns, h * w)
    tl.store(values + out + cell, best, mask=inside)
    if RECORD:
        tl.store(choices + out + cell, choice.to(tl.uint8), mask=inside)


Grid = Sequence[int]  #: rows and columns of reference points


def _launch(
    kernel: Any, out: Tensor, tensors: tuple[Any, ...], grid: Grid, links: Links, sign: int, **kind: Any
) -> None:
    """Launch a kernel for all cells of ``out``, linked with points of a grid: children (sign +1) or parents (−1)."""
    # Row shifts for ε = −1 and +1, column shifts for both, and the cell shift: the links are their combinations.
    shifts = (sign * n for n in (links[0][0], links[3][0], links[0][1], links[3][1], links[3][2]))
    sizes = (*out.shape[1:3], *grid, *out.shape[3:])
    launch_on_volume(kernel, out, *tensors, *sizes, *shifts, **kind, SHIFTED=links[3][2] != 0)


def _sum(
    kind: str, source: Tensor, grid: Grid, links: Links, choices: Tensor | None = None, exponent: float | None = None
) -> Tensor:
    """Return the sum of this kind for all points of a ``grid``."""
    out = source.new_empty((source.shape[0], *grid, *source.shape[3:]))
    tensors, sign = (source, out if choices is None else choices, out, exponent or 1.0), -1 if kind == "shares" else 1
    _launch(_sum_linked, out, tensors, source.shape[1:3], links, sign, KIND=kind, POWER=exponent is not None)
    return out


def best_parent(scores: Tensor, grid: Grid, links: Links, record: bool = False) -> tuple[Tensor, Tensor]:
    """Return Q_{l+1/2}, (B, *grid, h, w), from Q_{l+1} and, with ``record``, the number of the link it came by."""
    values = scores.new_empty((scores.shape[0], *grid, *scores.shape[3:]))
    choices = torch.empty(values.shape if record else 1, dtype=torch.uint8, device=scores.device)
    _launch(_disaggregate, values, (scores, values, choices), scores.shape[1:3], links, -1, RECORD=record)
    return values, choices


class Aggregation(torch.autograd.Function):
    """:func:`aggregation`."""

    @staticmethod
    def forward(ctx: Any, scores: Tensor, grid: Grid, links: Links) -> Tensor:
        ctx.grid, ctx.links = scores.shape[1:3], links
        return _sum("mean", scores.contiguous(), grid, links)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        return _sum("shares", gradient.contiguous(), ctx.grid, ctx.links), None, None


class Disaggregation(torch.autograd.Function):
    """:func:`disaggregation`."""

    @staticmethod
    def forward(ctx: Any, scores: Tensor, grid: Grid, links: Links) -> Tensor:
        values, choices = best_parent(scores.contiguous(), grid, links, record=ctx.needs_input_grad[0])
        ctx.save_for_backward(choices)
        ctx.grid, ctx.links = scores.shape[1:3], links
        return values

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        return _sum("chosen", gradient.contiguous(), ctx.grid, ctx.links, *ctx.saved_tensors), None, None


def aggregation(scores: Tensor, grid: tuple[int, int], links: Links) -> Tensor:
    """See :func:`deepmatching.network.operators.aggregation.aggregation`."""
    return Aggregation.apply(scores, grid, links)


def disaggregation(scores: Tensor, grid: tuple[int, int], links: Links) -> Tensor:
    """See :func:`deepmatching.network.operators.disaggregation.disaggregation`."""
    return Disaggregation.apply(scores, grid, links)


def aggregate(pooled: Tensor, geometry: Geometry, l: int, exponent: float) -> Tensor:
    """See :func:`deepmatching.network.operators.fused.aggregate`."""
    return _sum("mean", pooled.contiguous(), geometry.grid(l + 1), geometry.links(l), exponent=exponent)


def aggregate_and_pool(pooled: Tensor, geometry: Geometry, l: int, exponent: float) -> tuple[Tensor, Tensor]:
    """See :func:`deepmatching.network.operators.fused.aggregate_and_pool`.

    The means are stored in between, since windows overlap. ν is applied to the maxima alone: the power is monotone.
    """
    mean = _sum("mean", pooled.contiguous(), geometry.grid(l + 1), geometry.links(l))
    return pool(mean, geometry.window(l + 2), geometry.pool_offset(l + 1), geometry.pool_reach, exponent)


def disaggregate(scores: Tensor, geometry: Geometry, l: int) -> Tensor:
    """See :func:`deepmatching.network.operators.fused.disaggregate`."""
    return best_parent(scores.contiguous(), geometry.grid(l), geometry.links(l))[0]


def unpool_and_disaggregate(coarse: Tensor, pooled: Tensor, switches: Tensor, geometry: Geometry, l: int) -> Tensor:
    """See :func:`deepmatching.network.operators.fused.unpool_and_disaggregate`.

    Q_{l+1} is stored in between: otherwise each of its four children would look up four switches again.
    """
    coarse, pooled, switches = (volume.contiguous() for volume in (coarse, pooled, switches))
    window, offset = geometry.window(l + 1), geometry.pool_offset(l + 1)
    scores, _ = unpool(coarse, pooled, switches, window, offset, geometry.pool_reach)
    return disaggregate(scores, geometry, l)
