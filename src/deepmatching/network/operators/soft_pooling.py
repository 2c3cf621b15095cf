"""Soft pooling and unpooling: the soft maximum over a window and its reverse, in place of eqs. (3) and (6)."""

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from deepmatching.kernels.constants import NO_CHOICE
from deepmatching.network.operators.max_pooling import max_pooling
from deepmatching.network.operators.shifted_max import View, pooling_views, reversed_views
from deepmatching.settings import CROSS_ENTROPY_BETA

#: c, the price in score of a weight that is e times smaller. The probability that the cross-entropy gives to a match is
#: proportional to exp(β Q_0), with β = 10 at the start; so a weight multiplies the probability.
COST = 1 / CROSS_ENTROPY_BETA


def soft_pooling(
    scores: Tensor, temperature: Tensor, pooled: tuple[int, int], offset: int = 0, reach: int = 1
) -> tuple[Tensor, Tensor]:
    """Return S_{l+1/2}(q|p) = 1/β log ( 1/n Σ exp(β S_l(q'|p)) ) over the n cells q' with ‖q' − q‖_∞ ≤ 2^l η₀.

    The result lies between the mean of the window and its maximum, and at most log(n)/β below the maximum. Equal scores
    are kept, whatever their number, and scores ≥ 0 give a result ≥ 0, as the power needs. The derivative with respect
    to S_l(q'|p) is the weight

        w(q'|q, p) = exp(β S_l(q'|p)) / Σ exp(β S_l(q''|p)),

    so it is never negative and sums to 1. As β rises, w goes to 1 at the maximum and to 0 elsewhere.

    Cells of −∞ do not count, neither in the sum nor in n. A window without any other gives −∞ and has no gradient.

    The second result is the maximum of each window, which unpooling needs. ``temperature`` is β > 0, a tensor with one
    element; shapes and the other arguments are those of :func:`~deepmatching.network.operators.max_pooling`.
    """
    peak, _ = max_pooling(scores, pooled, offset, reach)
    views = pooling_views(scores.shape[-2:], pooled, offset, reach)
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


def soft_unpooling(
    scores: Tensor, fine: Tensor, peak: Tensor, temperature: Tensor, offset: int = 0, reach: int = 1, cost: float = COST
) -> Tensor:
    """Return U_l(q|p) = max { Q_{l+1/2}(q'|p) + c log ( w(q|q', p) / max w(·|q', p) ) : q in the window of q' }.

    w are the weights of :func:`soft_pooling`, so that the logarithm is
    −β (max S_l − S_l(q|p)), with the maximum over the window of q'. A pooled score goes back to all cells of its
    window: in full to the largest one, and to the others at a price. If a cell lies in several windows, the largest
    counts (the first in raster order on ties, also for the gradient), as in the hard unpooling. A sum would favour
    cells that lie in four windows over cells that lie in one.

    As β rises, the price becomes infinite, and U becomes the hard unpooling. c must not be 1/β, with which the price
    would not depend on β. With log w alone, a window with k equal maxima would never reach its limit, but stay c log k
    below. Such windows are common above level 0, at points with one child: windows below overlap and share a maximum.

    ``scores`` are Q_{l+1/2} (−∞ stays −∞) and ``peak`` the maxima from soft pooling, (B, H, W, h', w'); ``fine`` is S_l
    and the result U_l, (B, H, W, h, w). The other arguments are as given to soft pooling; ``cost`` is c > 0.
    """
    views = reversed_views(pooling_views(fine.shape[-2:], scores.shape[-2:], offset, reach))
    return _Spreading.apply(scores, fine, peak, cost * temperature, views)


class _Spreading(torch.autograd.Function):
    """max over windows of Q + b (S − peak), with b = cβ; see :func:`soft_unpooling`."""

    @staticmethod
    def forward(ctx: Any, scores: Tensor, fine: Tensor, peak: Tensor, slope: Tensor, views: list[View]) -> Tensor:
        values = torch.full_like(fine, -torch.inf)
        choice = torch.full(fine.shape, NO_CHOICE, dtype=torch.uint8, device=fine.device)
        for code, out, inside in views:
            # The difference comes first: it is 0 at a peak, whatever the slope. Where it is −∞ − −∞, nothing is better.
            candidate = (fine[out] - peak[inside]).mul_(slope).add_(scores[inside])
            better = candidate > values[out]
            values[out] = torch.where(better, candidate, values[out])
            choice[out] = choice[out].masked_fill(better, code)
        ctx.save_for_backward(choice, fine, peak, slope)
        ctx.views = views
        return values

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor, None]:
        choice, fine, peak, slope = ctx.saved_tensors
        of_scores, of_slope = torch.zeros_like(peak), torch.zeros_like(slope)
        for code, out, inside in ctx.views:
            chosen = choice[out] == code
            here = torch.where(chosen, gradient[out], 0)
            of_scores[inside] += here
            of_slope += (here * torch.where(chosen, fine[out] - peak[inside], 0)).sum()
        of_fine = gradient.masked_fill(choice == NO_CHOICE, 0).mul_(slope)
        return of_scores, of_fine, of_scores * -slope, of_slope, None


def _finite(values: Tensor) -> Tensor:
    """Replace −∞, which 0 cannot be multiplied with and −∞ not be subtracted from, by 0."""
    return torch.where(torch.isinf(values), 0, values)
