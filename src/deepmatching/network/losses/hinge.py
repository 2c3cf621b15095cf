"""The paper's structured output loss."""

import torch
from torch import Tensor

from deepmatching.network.losses.indicator import smoothed_indicator
from deepmatching.network.losses.truth import neighbourhood
from deepmatching.settings import HINGE_MARGIN


def structured_hinge(
    scores: Tensor, truth: Tensor, sigma: float, margin: float = HINGE_MARGIN
) -> tuple[Tensor, Tensor]:
    """Compute L(p) = Σ_q max{0, m (1 − g_σ(q − Γ_0(p))) + S(q|p) − S(Γ_0(p)|p)}, for every p, with the margin m.

    Our choices where the paper is silent: S(Γ_0(p)|p) is the score of the reachable cell nearest to the truth, at most
    one cell away from it along each axis. g_σ measures from the truth itself. Unreachable cells (−∞) and the true cell
    do not compete. A point without a reachable true cell has no loss.
    """
    cells = scores.flatten(-2)
    best, found = nearest_reachable(cells, truth, (scores.shape[-2], scores.shape[-1]))
    there = torch.where(found, cells.gather(-1, best[..., None])[..., 0], 0)
    reached = torch.isfinite(cells) & found[..., None]
    reached = reached.scatter(-1, best[..., None], False)
    gap = margin * (1 - smoothed_indicator(truth, scores, sigma).flatten(-2))
    return torch.where(reached, gap + torch.where(reached, cells, 0) - there[..., None], 0).relu().sum(dim=-1), found


def nearest_reachable(cells: Tensor, truth: Tensor, window: tuple[int, int]) -> tuple[Tensor, Tensor]:
    """Find the finite one of the cells (B, H, W, h·w) nearest to the truth, at most one away along each axis.

    Returns its raster index (B, H, W) int64, and a bool mask (B, H, W) of where it exists.
    """
    index, offset, inside = neighbourhood(truth, window, reach=1)
    usable = inside & torch.isfinite(cells.detach().gather(-1, index))
    distance = torch.where(usable, offset.square().sum(-1), torch.inf)
    return index.gather(-1, distance.argmin(dim=-1, keepdim=True))[..., 0], usable.any(dim=-1)
