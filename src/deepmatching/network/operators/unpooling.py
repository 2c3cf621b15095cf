"""Unpooling (UP), the reverse of max pooling, and the sum (+) with the finer scores, eq. (6) of the paper."""

import torch
from torch import Tensor

from deepmatching.kernels.registry import operator
from deepmatching.network.operators.shifted_max import View, pooling_views, shifted_max


@operator(differentiable=True)
def unpooling(scores: Tensor, switches: Tensor, size: tuple[int, int], offset: int = 0, reach: int = 1) -> Tensor:
    """U_l(q|p) = max ( { Q_{l+1/2}(q'|p) : m_l(q'|p) = q } ∪ {−∞} ).

    Every pooled score goes back to the cell it was pooled from. Cells that no window chose get −∞. If several windows
    chose the same cell, the largest score counts (the first in raster order on ties, also for the gradient).

    Args:
        scores: Q_{l+1/2}, (B, H, W, h', w').
        switches: m_l, uint8 of that shape, from :func:`~deepmatching.network.operators.max_pooling`.
        size: (h, w), the size of S_l.
        offset, reach: as given to max pooling.

    Returns:
        U_l, (B, H, W, h, w).
    """
    pooled = (scores.shape[-2], scores.shape[-1])
    # Of the windows that reach a cell, the one that comes first sees it at its last position: hence the order.
    views = [View(code, source, out) for code, out, source in reversed(pooling_views(size, pooled, offset, reach))]
    values, _ = shifted_max(scores, (*scores.shape[:-2], *size), views, switches)
    return values


def summation(scores: Tensor, unpooled: Tensor) -> Tensor:
    """Q_l(q|p) = S_l(q|p) + U_l(q|p); −∞ stays −∞.

    Outside autograd the result takes the place of ``unpooled``, so that no third volume is held.

    Args:
        scores: S_l, (B, H, W, h, w).
        unpooled: U_l of the same shape, from unpooling.
    """
    if torch.is_grad_enabled() and (scores.requires_grad or unpooled.requires_grad):
        return scores + unpooled
    return unpooled.add_(scores)
