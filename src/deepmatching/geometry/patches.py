"""Patches of cells: cutting them out of the reference image, and rectifying those that stick out of the target."""

from __future__ import annotations

import torch
from torch import Tensor

from deepmatching.geometry.discretization import Geometry

#: On a CPU, the target's cells are copied in pieces of about this many bytes.
TARGET_BYTES = 2**26


def reference_patches(cells: Tensor, geometry: Geometry, patch: int) -> Tensor:
    """φ(p|I_0) for the grid of reference points: (B, H_0, W_0, C, patch, patch)."""
    top, left = (cell - patch // 2 for cell in geometry.first_cell)
    step = geometry.alpha // geometry.gamma
    rows, columns = geometry.grid(0)
    patches = cells[:, :, top:, left:].unfold(2, patch, step).unfold(3, patch, step)
    return patches[:, :, :rows, :columns].permute(0, 2, 3, 1, 4, 5).contiguous()


def target_bands(geometry: Geometry, patch: int, channels: int, pitch: int) -> tuple[int, int]:
    """How a CPU cuts correlation: reference rows at a time, and the most rows of the target's cells that these need.

    The target's cells are copied into rows of ``channels`` × ``pitch`` floats, up to ``TARGET_BYTES``. With a radius,
    neighbouring bands need some of the same rows: a band is at least as high as a window, so that none is copied more
    than twice. Without one, every reference row needs the whole target.
    """
    rows, height = geometry.grid(0)[0], geometry.used1[0] // geometry.gamma + patch
    if not geometry.relative:
        return rows, height
    step, side = geometry.alpha // geometry.gamma, 2 * geometry.R(0) + patch
    fitting = TARGET_BYTES // (4 * channels * pitch) - side
    band = min(rows, max(fitting, side) // step + 1)
    return band, min(height, (band - 1) * step + side, rows * step + geometry.R(0) + patch)


def target_pitch(geometry: Geometry, patch: int, beyond: int) -> int:
    """Floats from one channel of a row of the target's cells to the next, with zeros around them and ``beyond``.

    An odd multiple of a cache line, so that the rows of a patch do not compete for the same lines.
    """
    step, first, columns = geometry.alpha // geometry.gamma, geometry.first_cell[1], geometry.grid(0)[1]
    overhang = max(0, geometry.R(0) - first) if geometry.relative else 0
    last = first + (columns - 1) * step + geometry.R(0) if geometry.relative else geometry.window(0)[1]
    return -(-(overhang + last + 2 * patch + beyond) // 32) * 32 + 16


def rectification(geometry: Geometry, patch: int) -> tuple[Tensor, Tensor]:
    """patch / (visible cells of the target patch) along each axis, 0 off the image: (H_0 | 1, h_0), (W_0 | 1, w_0)."""
    factors = []
    for q, on, size in zip(geometry.target_points(0), geometry.on_target(), geometry.used1, strict=True):
        start = q / geometry.gamma - patch // 2
        end = size // geometry.gamma + (1 if patch == 1 else 0)
        visible = (start + patch).clamp(max=end) - start.clamp(min=0)
        factors.append(torch.where(on, patch / visible.clamp(min=1), 0.0))
    return factors[0], factors[1]
