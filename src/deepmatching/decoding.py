"""Decoding: from the refined scores Q_0 to matches Γ(p), and their reciprocal verification.

Γ(p) = argmax_q Q_0(q|p), with Q_0(Γ(p)|p) as its confidence. A match is *verified* if no other reference point
claims its target with a higher score:

* ``bins`` (the original program): no (p', q') with q' in the same α₀ × α₀-pixel bin as Γ(p) scores higher, and of
  several equal claims the first p in raster order has it: a bin takes part in at most one match;
* ``exact`` (the paper, footnote 1): ∀ p': Q_0(Γ(p)|p) ≥ Q_0(Γ(p)|p');
* ``none``: every reference point keeps its match.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Literal, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from deepmatching.geometry import Geometry
from deepmatching.operators.kernels import kernel
from deepmatching.operators.unpooling import unpooling

Reciprocal = Literal["bins", "exact", "none"]


class Decoded(NamedTuple):
    """The best match of every reference point of a batch, on the grid of level 0.

    Positions are pixel corners, (x, y).
    """

    points0: Tensor  #: (H_0, W_0, 2), the reference points p
    points1: Tensor  #: (B, H_0, W_0, 2), Γ(p)
    scores: Tensor  #: (B, H_0, W_0), Q_0(Γ(p)|p); −∞ where no path reaches p
    cells: Tensor  #: (B, H_0, W_0), int64, raster index of Γ(p) in its window
    verified: Tensor  #: (B, H_0, W_0), bool


def decode(Q_0: Tensor, geometry: Geometry, reciprocal: Reciprocal = "bins") -> Decoded:
    """The best target of every reference point and whether it is verified.

    Args:
        Q_0: refined scores, (B, H_0, W_0, h_0, w_0). Overwritten with −∞ on the image's last border, where a score
            exists but a match must not lie, unless it requires a gradient.
    """
    Q_0 = off_image_is_no_match(Q_0, geometry, border=False)
    scores, cells = Q_0.flatten(-2).max(dim=-1)
    verified = torch.isfinite(scores)
    if reciprocal == "bins":
        verified &= _owns_bin(Q_0, scores, cells, geometry)
    elif reciprocal == "exact":
        verified &= _is_best_at_target(Q_0, scores, cells, geometry)
    points0, points1 = _positions(cells, geometry)
    return Decoded(points0, points1, scores, cells, verified)


@torch.no_grad()
def decode_pooled(
    coarse: Tensor, pooled: Tensor, switches: Tensor, geometry: Geometry, reciprocal: Reciprocal = "bins"
) -> Decoded:
    """As :func:`decode`, from Q_{1/2}, S_{1/2} and m_0 instead of Q_0; all (B, H_0, W_0, h_1, w_1)."""
    if fast := kernel("decode_pooled", coarse):
        scores, cells, verified = fast(coarse, pooled, switches, geometry, reciprocal)
        return Decoded(*_positions(cells, geometry), scores, cells, verified)
    Q_0 = unpooling(coarse + pooled, switches, geometry.window(0), geometry.pool_offset(0), geometry.pool_reach)
    return decode(off_image_is_no_match(Q_0, geometry), geometry, reciprocal)


def off_image_is_no_match(scores: Tensor, geometry: Geometry, border: bool = True) -> Tensor:
    """Q_0 with −∞ at target points off the image; see :meth:`Geometry.on_target` for ``border``."""
    masks = _off_target(geometry, border, scores.device)
    if masks is None:
        return scores
    rows, columns = masks
    if scores.requires_grad:
        scores = scores.clone()
    scores.masked_fill_(rows[:, None, :, None], -torch.inf)
    return scores.masked_fill_(columns[None, :, None, :], -torch.inf)


@lru_cache(maxsize=64)
@torch.inference_mode(False)
def _off_target(geometry: Geometry, border: bool, device: torch.device) -> tuple[Tensor, Tensor] | None:
    """The complement of ``Geometry.on_target`` on a device, or None if every cell is on the target image.

    Kept, as is :func:`_first_targets`: copies to a GPU wait for it, and cannot be part of a CUDA graph.
    """
    rows, columns = geometry.on_target(border)
    return None if rows.all() and columns.all() else ((~rows).to(device), (~columns).to(device))


def _target_indices(cells: Tensor, geometry: Geometry) -> tuple[Tensor, Tensor]:
    """(row, column) of Γ(p) in units of γ₀ from the image's corner, each (B, H_0, W_0)."""
    columns_of_window = geometry.window(0)[1]
    rows, columns = cells // columns_of_window, cells % columns_of_window
    if geometry.relative:
        y, x = _first_targets(geometry, cells.device)
        rows, columns = rows + y[:, None], columns + x[None, :]
    return rows, columns


@lru_cache(maxsize=64)
@torch.inference_mode(False)
def _first_targets(geometry: Geometry, device: torch.device) -> tuple[Tensor, Tensor]:
    """Index of each reference point's first target row (H_0,) and column (W_0,), in units of γ₀ from the corner."""
    y, x = ((p.long() // geometry.gamma - geometry.R(0)).to(device) for p in geometry.reference_points(0))
    return y, x


@lru_cache(maxsize=64)
@torch.inference_mode(False)
def _reference_positions(geometry: Geometry, device: torch.device) -> Tensor:
    """(x, y) of the reference points, (H_0, W_0, 2)."""
    y, x = (p.to(torch.float32) for p in geometry.reference_points(0))
    return torch.stack([x[None, :].expand(len(y), -1), y[:, None].expand(-1, len(x))], dim=-1).to(device)


def _positions(cells: Tensor, geometry: Geometry) -> tuple[Tensor, Tensor]:
    points0 = _reference_positions(geometry, cells.device).clone()  # the caller may write to its own
    rows, columns = _target_indices(cells, geometry)
    return points0, torch.stack([columns, rows], dim=-1).to(torch.float32) * geometry.gamma


def _owns_bin(Q_0: Tensor, scores: Tensor, cells: Tensor, geometry: Geometry) -> Tensor:
    """Whether Γ(p) has the highest score of all (p', q') whose q' lies in its bin: (B, H_0, W_0), bool."""
    best = _best_of_bins(Q_0, geometry)
    rows, columns = (index * geometry.gamma // geometry.alpha for index in _target_indices(cells, geometry))
    bins = (rows * best.shape[2] + columns).flatten(1).clamp(0, best.shape[1] * best.shape[2] - 1)
    best_there = best.flatten(1).gather(1, bins)
    flat = scores.flatten(1)
    claims = (flat >= best_there) & torch.isfinite(flat)

    points = flat.shape[1]
    order = torch.arange(points, device=flat.device).expand_as(bins)
    first = torch.full_like(best.flatten(1), points, dtype=torch.int64)
    first.scatter_reduce_(1, bins, order.masked_fill(~claims, points), "amin")
    return (claims & (first.gather(1, bins) == order)).view_as(scores)


def _best_of_bins(Q_0: Tensor, geometry: Geometry) -> Tensor:
    """max of Q_0(q'|p') over all p' and all q' in each bin: (B, bin rows, bin columns)."""
    step = geometry.alpha // geometry.gamma
    bins = [-(-size // geometry.alpha) for size in geometry.used1]
    if not geometry.relative:
        over_points = Q_0.amax(dim=(1, 2))
        padding = [n * step - cells for n, cells in zip(bins, over_points.shape[1:], strict=True)]
        return _block_max(F.pad(over_points, (0, padding[1], 0, padding[0]), value=-torch.inf), step)

    # q' = p' + γ₀ (k − R_0) lies in bin i' + ⌊(β₀ + γ₀ (k − R_0)) / α₀⌋: for each p', blocks of step × step cells.
    rows, columns, h = Q_0.shape[1:4]
    start = geometry.beta // geometry.gamma - geometry.R(0)
    first = start // step  # bin of the first cell, relative to i'
    lead = start - first * step
    blocks = -(-(lead + h) // step)
    tail = blocks * step - lead - h
    best = Q_0.new_full((Q_0.shape[0], *bins), -torch.inf)
    for i in range(rows):
        inside = F.pad(Q_0[:, i], (lead, tail, lead, tail), value=-torch.inf)
        per_block = _block_max(inside, step)  # (B, W_0, blocks, blocks)
        top, bottom = max(0, i + first), min(bins[0], i + first + blocks)
        for k in range(blocks):
            left, right = max(0, first + k), min(bins[1], columns + first + k)
            if left < right and top < bottom:
                best[:, top:bottom, left:right] = torch.maximum(
                    best[:, top:bottom, left:right],
                    per_block[:, left - first - k : right - first - k, top - i - first : bottom - i - first, k].mT,
                )
    return best


def _block_max(scores: Tensor, step: int) -> Tensor:
    """Maximum over step × step blocks of the last two axes."""
    blocks = scores.unflatten(-1, (-1, step)).unflatten(-3, (-1, step))
    return blocks.amax(dim=(-3, -1))


def _is_best_at_target(Q_0: Tensor, scores: Tensor, cells: Tensor, geometry: Geometry) -> Tensor:
    """Whether no other reference point scores higher at the very target Γ(p): (B, H_0, W_0), bool."""
    if not geometry.relative:
        best = Q_0.amax(dim=(1, 2)).flatten(1)
        return scores >= best.gather(1, cells.flatten(1)).view_as(scores)

    # Seen from p' = p − α₀ (dy, dx), the target Γ(p) = p + γ₀ (k − R_0) is cell k + (α₀/γ₀) (dy, dx).
    rows, columns, h, w = Q_0.shape[1:]
    step = geometry.alpha // geometry.gamma
    ky, kx = cells // w, cells % w
    flat = Q_0.flatten(1)
    i = torch.arange(rows, device=cells.device)[:, None]
    j = torch.arange(columns, device=cells.device)[None, :]
    best = torch.full_like(scores, -torch.inf)
    for dy in range(-((h - 1) // step), (h - 1) // step + 1):
        y = ky + step * dy
        row_there = (i - dy >= 0) & (i - dy < rows) & (y >= 0) & (y < h)
        for dx in range(-((w - 1) // step), (w - 1) // step + 1):
            x = kx + step * dx
            there = row_there & (j - dx >= 0) & (j - dx < columns) & (x >= 0) & (x < w)
            index = (((i - dy) * columns + (j - dx)) * h + y) * w + x
            other = flat.gather(1, index.masked_fill(~there, 0).flatten(1)).view_as(scores)
            best = torch.maximum(best, other.masked_fill(~there, -torch.inf))
    return scores >= best
