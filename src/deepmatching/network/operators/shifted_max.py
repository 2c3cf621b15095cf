"""The maximum over a few shifted views of a tensor: the arithmetic shared by MP, DA and UP.

Max pooling, disaggregation and unpooling each take, for every output element, the largest of a handful of source
elements that lie at fixed shifts (and, for the first and last, at a step of two). Writing this once gives all three the
same tie rule (the first view in order wins), the same gradient (to the arg-max alone), one byte of memory for backward
per output element, and no index tensors, so nothing overflows beyond 2³¹ elements.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from deepmatching.geometry.discretization import Links, overlap
from deepmatching.kernels.constants import NO_CHOICE

_ALL = slice(None)


class View(NamedTuple):
    """View ``code``: element ``source[s]`` is a candidate for element ``out[o]``; slices of all axes."""

    code: int
    out: tuple[slice, ...]
    source: tuple[slice, ...]


class ShiftedMax(torch.autograd.Function):
    """See :func:`shifted_max`."""

    @staticmethod
    def forward(
        ctx: Any, source: Tensor, shape: tuple[int, ...], views: list[View], switches: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        values = source.new_full(shape, float("-inf"))
        choice = torch.full(shape, NO_CHOICE, dtype=torch.uint8, device=source.device)
        for code, out, inside in views:
            best, candidate = values[out], source[inside]
            better = candidate > best
            if switches is not None:
                better &= switches[inside] == code
            best.copy_(torch.where(better, candidate, best))
            choice[out].masked_fill_(better, code)
        ctx.save_for_backward(choice)
        ctx.mark_non_differentiable(choice)
        ctx.views, ctx.source_shape = views, source.shape
        return values, choice

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor, _: Tensor) -> tuple[Tensor, None, None, None]:
        (choice,) = ctx.saved_tensors
        result = gradient.new_zeros(ctx.source_shape)
        for code, out, inside in ctx.views:
            result[inside] += gradient[out].masked_fill(choice[out] != code, 0)
        return result, None, None, None


def shifted_max(
    source: Tensor, shape: tuple[int, ...], views: list[View], switches: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Return values[o] = max over views v of source[s_v(o)], and the code of the winning view, uint8.

    The first view wins ties. Without any, the value is −∞ and the code 255. ``source`` has four axes after the batch,
    and ``shape`` includes the batch. With ``switches``, of the shape of ``source``, an element is a candidate only in
    the view of that code.
    """
    return ShiftedMax.apply(source, shape, views, switches)


def pooling_views(size: Sequence[int], pooled: Sequence[int], offset: int, reach: int) -> list[View]:
    """Return views from S_l (``size`` cells) to S_{l+1/2} (``pooled`` cells), in raster order of the window."""
    views = []
    for code in range((2 * reach + 1) ** 2):
        dy, dx = divmod(code, 2 * reach + 1)
        rows = overlap(offset + dy - reach, pooled[0], size[0], step=2)
        columns = overlap(offset + dx - reach, pooled[1], size[1], step=2)
        if rows and columns:
            out, source = ((_ALL, _ALL, _ALL, rows[n], columns[n]) for n in range(2))
            views.append(View(code, out, source))
    return views


def aggregation_views(parents: Sequence[int], children: Sequence[int], links: Links) -> list[View]:
    """Return views from S_{l+1/2} to S_{l+1}, one per link; sizes are (H, W, h, w) of the children and parents."""
    views = []
    for code, shifts in enumerate(links):
        axes = [overlap(*axis) for axis in zip(shifts, parents, children, strict=True)]
        if all(axes):
            out, source = zip(*(axis for axis in axes if axis), strict=True)
            views.append(View(code, (_ALL, *out), (_ALL, *source)))
    return views


def reversed_views(views: list[View]) -> list[View]:
    """Return the views from the results back to the sources.

    Of the windows or parents that hold a cell, the one that comes first sees it at its last position: hence the order.
    """
    return [View(code, source, out) for code, out, source in reversed(views)]
