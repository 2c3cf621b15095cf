"""Cross-entropy over the reachable cells: the probability that the scores give to matches near the truth."""

import torch
from torch import Tensor

from deepmatching.network.losses.truth import neighbourhood


def cross_entropy(scores: Tensor, truth: Tensor, sigma: float, scale: Tensor | float) -> tuple[Tensor, Tensor]:
    """Compute L(p) = −log Σ_q π(q|p) g_σ(q − Γ_0(p)),  π(q|p) = exp(β S(q|p)) / Σ_q' exp(β S(q'|p)), for every p.

    The sums are over the cells that have a path (S > −∞). The first is limited to cells at most two cells from the
    truth along each axis; a point without any has no loss. As in the paper's losses, the truth enters through g_σ
    only. It may lie between cells, and g_σ prefers the nearest one that is reachable. ``scale`` is β > 0.
    """
    cells = scores.flatten(-2)
    index, offset, inside = neighbourhood(truth, (scores.shape[-2], scores.shape[-1]), reach=2)
    near = cells.gather(-1, index)
    usable = inside & torch.isfinite(near)
    found = usable.any(dim=-1)
    closeness = -offset.square().sum(-1).to(scores.dtype) / (2 * sigma**2)
    upper = torch.where(usable, scale * torch.where(usable, near, 0) + closeness, -torch.inf)
    upper = torch.logsumexp(torch.where(found[..., None], upper, 0), dim=-1)
    reached = torch.isfinite(cells)
    lower = torch.where(reached, scale * torch.where(reached, cells, 0), -torch.inf)
    lower = torch.logsumexp(torch.where(found[..., None], lower, 0), dim=-1)
    return torch.where(found, lower - upper, 0), found
