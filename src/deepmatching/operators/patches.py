"""Patches of cells: cutting them out of the reference image, and rectifying those that stick out of the target."""

from __future__ import annotations

import torch
from torch import Tensor

from deepmatching.geometry import Geometry


def reference_patches(cells: Tensor, geometry: Geometry, patch: int) -> Tensor:
    """φ(p|I_0) for the grid of reference points: (B, H_0, W_0, C, patch, patch)."""
    top, left = (cell - patch // 2 for cell in geometry.first_cell)
    step = geometry.alpha // geometry.gamma
    rows, columns = geometry.grid(0)
    patches = cells[:, :, top:, left:].unfold(2, patch, step).unfold(3, patch, step)
    return patches[:, :, :rows, :columns].permute(0, 2, 3, 1, 4, 5).contiguous()


def rectification(geometry: Geometry, patch: int) -> tuple[Tensor, Tensor]:
    """patch / (visible cells of the target patch) along each axis, 0 off the image: (H_0 | 1, h_0), (W_0 | 1, w_0)."""
    factors = []
    for q, on, size in zip(geometry.target_points(0), geometry.on_target(), geometry.used1, strict=True):
        start = q / geometry.gamma - patch // 2
        end = size // geometry.gamma + (1 if patch == 1 else 0)
        visible = (start + patch).clamp(max=end) - start.clamp(min=0)
        factors.append(torch.where(on, patch / visible.clamp(min=1), 0.0))
    return factors[0], factors[1]
