"""Patches around reference points, and where matches lie: from a cell of a window to a position on the target."""

from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from deepmatching.geometry.discretization import Geometry
from deepmatching.settings import Reciprocal


class Decoded(NamedTuple):
    """The best match of each reference point of a batch, on the grid of level 0. Positions are pixel corners (x, y)."""

    points0: Tensor  #: (H_0, W_0, 2), the reference points p
    points1: Tensor  #: (B, H_0, W_0, 2), Γ(p)
    scores: Tensor  #: (B, H_0, W_0), Q_0(Γ(p)|p); −∞ where no path reaches p
    cells: Tensor  #: (B, H_0, W_0), int64, raster index of Γ(p) in its window
    verified: Tensor  #: (B, H_0, W_0), bool
    confidence: Tensor | None = None  #: (B, H_0, W_0), probability that the match is right; None if nothing judges it
    occluded: Tensor | None = None  #: (B, H_0, W_0), probability that p is not visible in the second image

    def at_pixel_centres(self, b: int | slice = slice(None)) -> tuple[Tensor, Tensor]:
        """Return points0 and points1 of pair b, or of all, measured so that pixel centres are integers."""
        return self.points0 - 0.5, self.points1[b] - 0.5

    def unmatched(self, b: int) -> Tensor | None:
        """Return how likely each point of pair b is visible and its match wrong, (H_0, W_0); 0 if the point is masked.

        None if nothing judges the matches.
        """
        if self.confidence is None or self.occluded is None:
            return None
        return (1 - self.confidence[b]) * (1 - self.occluded[b]) * self.scores[b].isfinite()


def at_pixels(values: Tensor, size: Sequence[int]) -> Tensor:
    """Return values of the reference points (H_0, W_0), interpolated to the pixels of an image of this size (H, W)."""
    height, width = size
    step = min(height // values.shape[0], width // values.shape[1])  # α₀: the rest is less than one patch
    fine = F.interpolate(values[None, None], scale_factor=step, mode="bilinear", align_corners=False)
    below, right = (max(0, side - own) for side, own in zip(size, fine.shape[2:], strict=True))
    return F.pad(fine, (0, right, 0, below), mode="replicate")[0, 0, :height, :width]


def pair_of(decoded: Decoded, b: int) -> Decoded:
    """Return the matches of pair b of a batch, as a batch of one."""
    own = (None if tensor is None else tensor[b : b + 1] for tensor in decoded[1:])
    return Decoded._make((decoded.points0, *own))


class Best(NamedTuple):
    """What verification needs of Q_0."""

    scores: Tensor  #: (B, H_0, W_0), max over q of Q_0(q|p)
    cells: Tensor  #: (B, H_0, W_0), int64, its arg-max
    table: Tensor  #: (B, rows, columns), the highest score at each target bin, or at each target position (``exact``)


def bin_side(geometry: Geometry, reciprocal: Reciprocal) -> int:
    """Return the target positions along the side of a bin of the table: those in α₀ pixels, or one."""
    return geometry.step if reciprocal == "bins" else 1


def target_indices(cells: Tensor, geometry: Geometry) -> tuple[Tensor, Tensor]:
    """Return (row, column) of Γ(p) in units of γ₀ from the image's corner, each (B, H_0, W_0)."""
    width = geometry.window(0)[1]
    rows, columns = cells // width, cells % width
    if geometry.relative:
        y, x = _first_targets(geometry, cells.device)
        rows, columns = rows + y[:, None], columns + x[None, :]
    return rows, columns


def positions(cells: Tensor, geometry: Geometry) -> tuple[Tensor, Tensor]:
    """Return p (H_0, W_0, 2) and Γ(p) (B, H_0, W_0, 2), from the cells of Γ(p)."""
    points0 = _reference_positions(geometry, cells.device).clone()  # the caller may write to its own
    rows, columns = target_indices(cells, geometry)
    return points0, torch.stack([columns, rows], dim=-1).to(torch.float32) * geometry.gamma


# Tensors that depend on the geometry alone are cached: copies to a GPU wait for it, and cannot be part of a CUDA graph.


@lru_cache(maxsize=64)
@torch.inference_mode(False)
def _first_targets(geometry: Geometry, device: torch.device) -> tuple[Tensor, Tensor]:
    """Return the first target row (H_0,) and column (W_0,) of the points, in units of γ₀ from the corner."""
    y, x = ((p.long() // geometry.gamma - geometry.R(0)).to(device) for p in geometry.reference_points(0))
    return y, x


@lru_cache(maxsize=64)
@torch.inference_mode(False)
def _reference_positions(geometry: Geometry, device: torch.device) -> Tensor:
    """Return (x, y) of the reference points, (H_0, W_0, 2)."""
    y, x = (p.to(torch.float32) for p in geometry.reference_points(0))
    return torch.stack(torch.meshgrid(x, y, indexing="xy"), dim=-1).to(device)


def reference_patches(cells: Tensor, geometry: Geometry, patch: int) -> Tensor:
    """Return φ(p|I_0) for the grid of reference points: (B, H_0, W_0, C, patch, patch)."""
    top, left = (cell - patch // 2 for cell in geometry.first_cell)
    rows, columns = geometry.grid(0)
    patches = cells[:, :, top:, left:].unfold(2, patch, geometry.step).unfold(3, patch, geometry.step)
    return patches[:, :, :rows, :columns].permute(0, 2, 3, 1, 4, 5).contiguous()


def target_patches(cells: Tensor, rows: Tensor, columns: Tensor, first: int, side: int) -> tuple[Tensor, Tensor]:
    """Return the cells around one target of every reference point, and which of them are in the image.

    From descriptors (B, C, h, w) of the target image and targets (B, H, W) int64, with ``first`` for the first row and
    column of a patch from the target: (B, H, W, side, side, C), 0 outside, and (B, H, W, side, side) bool.
    """
    h, w = cells.shape[-2:]
    span = torch.arange(side, device=cells.device) + first
    y, x = rows[..., None] + span, columns[..., None] + span
    visible = ((y >= 0) & (y < h))[..., :, None] & ((x >= 0) & (x < w))[..., None, :]
    index = y.clamp(0, h - 1)[..., :, None] * w + x.clamp(0, w - 1)[..., None, :]
    pairs = torch.arange(len(index), device=index.device).view(-1, 1, 1, 1, 1)
    return cells.flatten(2).transpose(1, 2)[pairs, index] * visible[..., None], visible


def rectification(geometry: Geometry, patch: int) -> tuple[Tensor, Tensor]:
    """Return patch / (visible cells of a target patch) by axis, 0 off the image: (H_0 | 1, h_0), (W_0 | 1, w_0)."""
    factors = []
    for q, on, size in zip(geometry.target_points(0), geometry.on_target(), geometry.used1, strict=True):
        start = q / geometry.gamma - patch // 2
        end = size // geometry.gamma + (1 if patch == 1 else 0)
        visible = (start + patch).clamp(max=end) - start.clamp(min=0)
        factors.append(torch.where(on, patch / visible.clamp(min=1), 0.0))
    return factors[0], factors[1]
