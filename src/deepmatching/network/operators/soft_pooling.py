"""Soft pooling: the soft maximum over a window, in place of eq. (3) of the paper."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from deepmatching.geometry.slices import View, pooling_views
from deepmatching.network.operators.max_pooling import max_pooling


def soft_pooling(
    scores: Tensor, temperature: Tensor, pooled: tuple[int, int], offset: int = 0, reach: int = 1
) -> tuple[Tensor, Tensor]:
    """S_{l+1/2}(q|p) = 1/β log ( 1/n Σ exp(β S_l(q'|p)) ) over the n cells q' with ‖q' − q‖_∞ ≤ 2^l η₀.

    The result lies between the mean of the window and its maximum, and at most log(n)/β below the maximum. Equal scores
    are kept, whatever their number, and scores ≥ 0 give a result ≥ 0, as the power needs. The derivative with respect
    to S_l(q'|p) is the weight

        w(q'|q, p) = exp(β S_l(q'|p)) / Σ exp(β S_l(q''|p)),

    so it is never negative and sums to 1. As β rises, w goes to 1 at the maximum and to 0 elsewhere.

    Cells of −∞ do not count, neither in the sum nor in n. A window without any other gives −∞ and has no gradient.

    Args:
        scores: S_l, (B, H, W, h, w).
        temperature: β > 0, a tensor with one element. The higher, the harder.
        pooled: (h', w'), the size of the result.
        offset, reach: as for :func:`~deepmatching.network.operators.max_pooling`.

    Returns:
        S_{l+1/2}, (B, H, W, h', w'), and the maximum of each window, which unpooling needs, of the same shape.
    """
    peak, _ = max_pooling(scores, pooled, offset, reach)
    views = pooling_views((scores.shape[-2], scores.shape[-1]), pooled, offset, reach)
    return _SoftMaximum.apply(scores, peak.detach(), temperature, views), peak


class _SoftMaximum(torch.autograd.Function):
    """See :func:`soft_pooling`. Weights are computed again for the gradient: what is kept is no larger than the result.

    With m = log ( 1/n Σ exp(β (S − peak)) ), the result is peak + m/β, and dm/dβ = Σ w (S − peak).
    """

    @staticmethod
    def forward(ctx: Any, scores: Tensor, peak: Tensor, temperature: Tensor, views: list[View]) -> Tensor:
        total, count = torch.zeros_like(peak), torch.zeros_like(peak)
        for _, out, inside in views:
            total[out] += (scores[inside] - _finite(peak[out])).mul_(temperature).exp_()
            count[out] += torch.isfinite(scores[inside])
        logarithm = total.div_(count.clamp_(min=1)).log_()
        logarithm.masked_fill_(torch.isinf(peak), 0)
        ctx.save_for_backward(scores, peak, temperature, logarithm, count)
        ctx.views = views
        return peak + logarithm / temperature

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, Tensor, None]:
        scores, peak, temperature, logarithm, count = ctx.saved_tensors
        of_scores = torch.zeros_like(scores)
        gradient = gradient.masked_fill(torch.isinf(peak), 0)
        level = (gradient * logarithm).sum()
        slope = torch.zeros_like(level)
        for _, out, inside in ctx.views:
            below = scores[inside] - _finite(peak[out])
            share = (below * temperature).sub_(logarithm[out]).exp_().div_(count[out]).mul_(gradient[out])
            of_scores[inside] += share
            slope += (share * _finite(below)).sum()
        return of_scores, None, (slope - level / temperature) / temperature, None


def _finite(values: Tensor) -> Tensor:
    """The values, with 0 in place of −∞, which 0 cannot be multiplied with and −∞ not be subtracted from."""
    return torch.where(torch.isinf(values), 0, values)
