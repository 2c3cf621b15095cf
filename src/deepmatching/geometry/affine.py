"""The weighted affine fit, differentiable with respect to all its arguments."""

import torch
from torch import Tensor


def affine_fit(
    offsets: Tensor, values: Tensor, weights: Tensor, ridge: float = 0.0, offset_ridge: float = 0.0
) -> Tensor:
    """Return the affine maps A x + b that fit values best, (…, 3, C): the derivatives along x and y (Aᵀ), and b.

    Minimises Σ_k w_k² |values_k − (A offsets_k + b)|² + ridge |A|² + offset_ridge |b|² by the normal
    equations, with offsets (…, K, 2), values (…, K, C) and weights (…, K). Points of weight 0 do not count. At least
    one weight must be positive; without a ridge, those of three points that are not on a line. A tiny
    ``offset_ridge`` lets all weights be 0.
    """
    rows = torch.cat([offsets, torch.ones_like(offsets[..., :1])], dim=-1)
    weighted = rows * weights.square()[..., None]
    normal = weighted.transpose(-1, -2) @ rows
    normal = normal + torch.diag(normal.new_tensor([ridge, ridge, offset_ridge]))
    return torch.linalg.solve(normal, weighted.transpose(-1, -2) @ values)
