"""Power (PW): the exponent ν of eq. (4)."""

import torch
from torch import Tensor

from deepmatching.kernels.registry import operator


@operator(differentiable=True)
def power(scores: Tensor, exponent: Tensor | float) -> Tensor:
    """Return max(S, 0)^ν elementwise, with one ν > 0: a monotone rescaling that favours high scores.

    Negative scores, which signed descriptors give, count as 0. The gradient with respect to S and ν is 0 where
    S ≤ 0, so that it is always finite.
    """
    if not torch.is_grad_enabled() or not (scores.requires_grad or getattr(exponent, "requires_grad", False)):
        return scores.clamp(min=0).pow_(exponent)
    positive = scores > 0
    return torch.where(positive, torch.where(positive, scores, 1).pow(exponent), 0)
