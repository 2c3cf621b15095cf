"""Affine motions fitted to the matches of windows of several sizes: what a point's motion may be.

Softmax over matches cannot leave their convex hull. Affine motions can: they extend to places that are hidden, or
outside the second image, and to zooming motion.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

#: Windows whose fits a point can choose from, at every scale: its own and its eight neighbours.
NEIGHBOURS = 9

#: Points of the grid in one unit of the fits' coordinates, for precision.
_UNIT = 16.0

#: Displacements of candidates, the interpolated flow included, are limited to this many pixels along each axis, and
#: training leaves out pixels that move further.
FARTHEST = 1024.0


class Fits(NamedTuple):
    """Candidates for the motion of every point of a grid."""

    moved: Tensor  #: (B, K, 2, H, W), displacements in pixels
    support: Tensor  #: (B, K, H, W), the sum of the weights that each fit rests on


def candidate_count(scales: int) -> int:
    """K, the number of candidates that :func:`affine_candidates` gives."""
    return NEIGHBOURS * scales


def affine_candidates(moved: Tensor, weights: Tensor, scales: int, ridge: float = 0.004) -> Fits:
    """The motion at every point by the affine motions of the windows around it.

    At scale s = 1 … ``scales``, the grid is divided into squares of 2^s × 2^s points. The window of a square also has
    its neighbours, with half the weight along each axis. Its fit

        d(p) = d̄ + A (p − p̄),   A = Cov(d, p) (Cov(p, p) + λ_s 1)⁻¹,   λ_s ∝ ridge · 4^s (1 + 20 / Σw)

    has weighted means d̄ and p̄ and weighted covariances. A point's candidates are the fits of its own square and of
    the eight around it.

    Args:
        moved: (B, 2, H, W), the displacement of each match in pixels.
        weights: (B, 1, H, W), from 0 (does not count) to 1.
    """
    (B, _, H, W), device = moved.shape, moved.device
    y, x = ((torch.arange(n, device=device, dtype=moved.dtype) - n / 2) / _UNIT for n in (H, W))
    x, y = x.expand(B, 1, H, W), y[:, None].expand(B, 1, H, W)
    terms = torch.cat([torch.ones_like(x), x, y, x * x, x * y, y * y, moved, x * moved, y * moved], dim=1)
    moments = weights * terms
    found, support = [], []
    for s in range(1, scales + 1):
        side = 2**s
        sums = F.avg_pool2d(F.pad(moments, (0, -W % side, 0, -H % side)), side) * side**2
        models, total = _fit(_blurred(sums), ridge * (side / _UNIT) ** 2)
        models = F.pad(torch.cat([models, total], dim=1), (1, 1, 1, 1), mode="replicate")
        near = F.unfold(models, 3).unflatten(2, sums.shape[2:])  # (B, 9 · 9, h, w)
        near = F.interpolate(near, scale_factor=side, mode="nearest")[:, :, :H, :W].unflatten(1, (9, NEIGHBOURS))
        middle_x, middle_y, mean, slope_x, slope_y, total = near.split([1, 1, 2, 2, 2, 1], dim=1)
        fit = mean + slope_x * (x[:, :, None] - middle_x) + slope_y * (y[:, :, None] - middle_y)
        found.append(fit.transpose(1, 2))
        support.append(total[:, 0])
    return Fits(torch.cat(found, dim=1).clamp(-FARTHEST, FARTHEST), torch.cat(support, dim=1))


def _blurred(sums: Tensor) -> Tensor:
    """Sums over a square and its neighbours: weights ½, 1, ½ along each axis."""
    middle = (torch.arange(3, device=sums.device) == 1).to(sums.dtype)  # made there: no copy, so a graph can record it
    for kernel in ((1, 3), (3, 1)):
        weights = (0.5 + 0.5 * middle).view(1, 1, *kernel).expand(sums.shape[1], 1, *kernel)
        sums = F.conv2d(sums, weights, padding=(kernel[0] // 2, kernel[1] // 2), groups=sums.shape[1])
    return sums


def _fit(sums: Tensor, ridge: float) -> tuple[Tensor, Tensor]:
    """The fits (B, 8, h, w), means of x, y and d and slopes along x and y, and the sums of weights (B, 1, h, w)."""
    total = sums[:, :1]
    means = sums[:, 1:] / total.clamp(min=1e-6)
    x, y, xx, xy, yy, moved, moved_x, moved_y = means.split([1, 1, 1, 1, 1, 2, 2, 2], dim=1)
    damping = ridge * (1 + 20 / total.clamp(min=1e-3))
    xx, xy, yy = xx - x * x + damping, xy - x * y, yy - y * y + damping
    moved_x, moved_y = moved_x - x * moved, moved_y - y * moved
    determinant = (xx * yy - xy * xy).clamp(min=1e-12)
    slope_x, slope_y = (yy * moved_x - xy * moved_y) / determinant, (xx * moved_y - xy * moved_x) / determinant
    return torch.cat([x, y, moved, slope_x, slope_y], dim=1), total
