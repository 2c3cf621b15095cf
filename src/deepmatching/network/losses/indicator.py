"""The smoothed indicator of the truth, and the squared distance to it, with which the paper compares its loss."""

import torch
from torch import Tensor


def smoothed_indicator(truth: Tensor, scores: Tensor, sigma: float) -> Tensor:
    """Compute g_σ(q − Γ_0(p)) = exp(−‖q − Γ_0(p)‖² / 2σ²) for all cells q of scores; 0 where the truth is unknown."""
    bells = []
    for axis, size in enumerate(scores.shape[-2:]):
        place = torch.arange(size, device=scores.device, dtype=scores.dtype)
        distance = place - truth[..., axis, None].to(scores.dtype)
        bells.append(torch.exp(-distance.square() / (2 * sigma**2)).nan_to_num(0.0))
    return bells[0][..., :, None] * bells[1][..., None, :]


def indicator_distance(scores: Tensor, truth: Tensor, sigma: float, balance: float = 0.5) -> tuple[Tensor, Tensor]:
    """Compute L(p) = Σ_q w(q|p) (S(q|p) − g_σ(q − Γ_0(p)))², for every reference point p.

    The paper says that "the loss must be carefully rebalanced": the weights w of the cells with g > ½ sum to
    ``balance``, and those of all others to 1 − ``balance``. Unreachable cells (−∞) have no score and no weight. A point
    without a reachable cell near the truth has no loss. With a ``balance`` of 0 all reachable cells weigh the same: the
    paper's plain mean. σ must be at least 0.6, or a truth between cells would have no cell with g > ½.
    """
    target = smoothed_indicator(truth, scores, sigma)
    reached = torch.isfinite(scores)
    near = reached & (target > 0.5)
    far = reached & ~near
    found = near.any(dim=-1).any(dim=-1)
    count_near, count_far = (m.sum(dim=(-2, -1), keepdim=True).clamp(min=1).to(scores.dtype) for m in (near, far))
    if balance:
        weights = near * (balance / count_near) + far * ((1 - balance) / count_far)
    else:
        weights = reached / reached.sum(dim=(-2, -1), keepdim=True).clamp(min=1).to(scores.dtype)
    error = (torch.where(reached, scores, 0) - target).square() * weights
    return torch.where(found, error.sum(dim=(-2, -1)), 0), found
