"""Unpooling (UP), the reverse of max pooling, and the sum (+) with the finer scores, eq. (6) of the paper."""

import torch
from torch import Tensor

from deepmatching.kernels.registry import operator
from deepmatching.network.operators.shifted_max import pooling_views, reversed_views, shifted_max


@operator(differentiable=True)
def unpooling(scores: Tensor, switches: Tensor, size: tuple[int, int], offset: int = 0, reach: int = 1) -> Tensor:
    """Return U_l(q|p) = max ( { Q_{l+1/2}(q'|p) : m_l(q'|p) = q } ∪ {−∞} ).

    Every pooled score goes back to the cell it was pooled from. Cells that no window chose get −∞. If several windows
    chose the same cell, the largest score counts (the first in raster order on ties, also for the gradient).

    ``scores`` are Q_{l+1/2}, (B, H, W, h', w'), ``size`` is that of S_l and of the result (B, H, W, h, w). ``switches``
    come from :func:`~deepmatching.network.operators.max_pooling`, with the same ``offset`` and ``reach``.
    """
    views = reversed_views(pooling_views(size, scores.shape[-2:], offset, reach))
    return shifted_max(scores, (*scores.shape[:-2], *size), views, switches)[0]


def summation(scores: Tensor, unpooled: Tensor) -> Tensor:
    """Return Q_l = S_l + U_l, all (B, H, W, h, w); −∞ stays −∞.

    Outside autograd the result takes the place of ``unpooled``, so that no third volume is held.
    """
    if torch.is_grad_enabled() and (scores.requires_grad or unpooled.requires_grad):
        return scores + unpooled
    return unpooled.add_(scores)
