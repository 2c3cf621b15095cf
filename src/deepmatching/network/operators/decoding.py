"""Decoding: from the refined scores Q_0 to matches Γ(p), and their reciprocal verification.

Γ(p) = argmax_q Q_0(q|p), with Q_0(Γ(p)|p) as its confidence. A match is *verified* if no other reference point
claims its target with a higher score:

* ``bins`` (the original program): no (p', q') with q' in the same α₀ × α₀-pixel bin as Γ(p) scores higher. Of several
  equal claims, the first p in raster order wins: a bin takes part in at most one match;
* ``exact`` (the paper, footnote 1): ∀ p': Q_0(Γ(p)|p) ≥ Q_0(Γ(p)|p');
* ``none``: every reference point keeps its match.
"""

from functools import lru_cache

import torch
from torch import Tensor

from deepmatching.geometry.discretization import Geometry, overlap
from deepmatching.geometry.targets import Best, Decoded, bin_side, positions, target_indices
from deepmatching.kernels.registry import is_exporting, operator
from deepmatching.network.operators.pooling import HARD
from deepmatching.settings import RECIPROCAL, Reciprocal


def decode(Q_0: Tensor, geometry: Geometry, reciprocal: Reciprocal = RECIPROCAL) -> Decoded:
    """Find the best target of every reference point in Q_0, (B, H_0, W_0, h_0, w_0), and whether it is verified.

    Q_0 is overwritten with −∞ on the image's last border, where a score exists but a match must not lie, unless it
    requires a gradient.
    """
    return verify(best_matches(Q_0, geometry, reciprocal), geometry, reciprocal)


def best_matches(Q_0: Tensor, geometry: Geometry, reciprocal: Reciprocal) -> Best:
    """Return Γ(p), its score, and the highest score at every target."""
    Q_0 = mask_off_image(Q_0, geometry, border=False)
    scores, cells = Q_0.flatten(-2).max(dim=-1)
    if reciprocal == "none":
        return Best(scores, cells, scores.new_empty(Q_0.shape[0], 0, 0))
    side = bin_side(geometry, reciprocal)
    blocks = _best_at_targets(Q_0, geometry).unflatten(-1, (-1, side)).unflatten(-3, (-1, side))
    return Best(scores, cells, blocks.amax(dim=(-3, -1)))


@operator()
@torch.no_grad()
def best_pooled(coarse: Tensor, pooled: Tensor, switches: Tensor, geometry: Geometry, reciprocal: Reciprocal) -> Best:
    """Do :func:`best_matches` from Q_{1/2}, S_{1/2} and m_0 instead of Q_0; all (B, H_0, W_0, h_1, w_1)."""
    Q_0 = HARD.unpool(coarse + pooled, switches, None, geometry, 0)
    return best_matches(mask_off_image(Q_0, geometry), geometry, reciprocal)


@operator()
@torch.no_grad()
def decode_pooled(
    coarse: Tensor, pooled: Tensor, switches: Tensor, geometry: Geometry, reciprocal: Reciprocal = RECIPROCAL
) -> Decoded:
    """Do :func:`decode` from Q_{1/2}, S_{1/2} and m_0 instead of Q_0."""
    return verify(best_pooled(coarse, pooled, switches, geometry, reciprocal), geometry, reciprocal)


def verify(best: Best, geometry: Geometry, reciprocal: Reciprocal) -> Decoded:
    """Compare each match with the best at its target."""
    scores, cells, table = best
    verified = torch.isfinite(scores)
    if reciprocal != "none":
        side = bin_side(geometry, reciprocal)
        rows, columns = (index // side for index in target_indices(cells, geometry))
        # A point that no path reaches has no target; its cell 0 may lie off the image.
        bins = (rows * table.shape[2] + columns).clamp_(0, table.shape[1] * table.shape[2] - 1).flatten(1)
        verified &= scores >= table.flatten(1).gather(1, bins).view_as(scores)
        if reciprocal == "bins":
            order, last = torch.arange(bins.shape[1], device=bins.device).expand_as(bins), bins.shape[1]
            first = torch.full_like(table.flatten(1), last, dtype=torch.int64)
            first.scatter_reduce_(1, bins, order.masked_fill(~verified.flatten(1), last), "amin")
            verified &= (first.gather(1, bins) == order).view_as(verified)
    return Decoded(*positions(cells, geometry), scores, cells, verified)


def _best_at_targets(Q_0: Tensor, geometry: Geometry) -> Tensor:
    """Return max over p of Q_0(q|p) at every target position on which a match may lie: (B, rows, columns)."""
    size = [used // geometry.gamma for used in geometry.used1]
    if not geometry.relative:
        return Q_0.amax(dim=(1, 2))[:, : size[0], : size[1]]

    # Window cell (a, b) of point (i, j) lies at position first + step · (i, j) + (a, b).
    rows, columns, h, w = Q_0.shape[1:]
    (top, left), step = geometry.first_target, geometry.step
    best = Q_0.new_full((Q_0.shape[0], *size), -torch.inf)
    for i in range(rows):
        inside = overlap(top + step * i, h, size[0])
        for b in range(w):
            points = overlap(left + b, columns, size[1], step)
            if inside and points:
                there = best[:, inside[1], points[1]]
                there.copy_(torch.maximum(there, Q_0[:, i, points[0], inside[0], b].mT))
    return best


def mask_off_image(scores: Tensor, geometry: Geometry, border: bool = True) -> Tensor:
    """Set Q_0 to −∞ at target points off the image; see :meth:`Geometry.on_target` for ``border``."""
    if is_exporting():  # what is traced can neither be looked at nor kept
        rows, columns = (~mask for mask in geometry.on_target(border))
    elif masks := _off_target(geometry, border, scores.device):
        rows, columns = masks
    else:
        return scores
    if scores.requires_grad:
        scores = scores.clone()
    scores.masked_fill_(rows[:, None, :, None], -torch.inf)
    return scores.masked_fill_(columns[None, :, None, :], -torch.inf)


@lru_cache(maxsize=64)
@torch.inference_mode(False)
def _off_target(geometry: Geometry, border: bool, device: torch.device) -> tuple[Tensor, Tensor] | None:
    """Return the complement of ``Geometry.on_target`` on a device, or None if every cell is on the target image.

    Cached: copies to a GPU wait for it, and cannot be part of a CUDA graph.
    """
    rows, columns = geometry.on_target(border)
    return None if rows.all() and columns.all() else ((~rows).to(device), (~columns).to(device))
