"""Sum (+) of fine and coarse scores, eq. (6) of the paper."""

from __future__ import annotations

import torch
from torch import Tensor


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
