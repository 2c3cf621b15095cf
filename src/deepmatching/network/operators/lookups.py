"""S_0 at any displacement of every point of a grid, without the volume."""

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from deepmatching.kernels.registry import operator

#: Numbers that are sampled at a time.
_CHUNK = 2**26


@operator(cuda=("float32",))
def lookup(vectors0: Tensor, cells1: Tensor, places: Tensor, gamma: int) -> Tensor:
    """Return max(0, ⟨φ(p), φ(q)⟩) for K targets q of every point p: (B, K, H, W).

    ``vectors0`` are φ(p), (B, C, H, W); ``cells1`` (B, C, h, w) has one vector at every corner of the second image's
    cells of γ₀ pixels; ``places`` are q in pixels from the image's corner, (B, K, H, W, 2), (x, y). Between the corners
    of cells, descriptors are interpolated bilinearly; outside the image, they are those at its border.
    """
    B, C, H, W = vectors0.shape
    at_once = max(1, _CHUNK // (B * C * H * W))
    found = []
    for part in places.split(at_once, dim=1):
        targets = sample(cells1, part.flatten(1, 2) / gamma).unflatten(2, (part.shape[1], H))  # (B, C, k, H, W)
        found.append(torch.einsum("bchw,bckhw->bkhw", vectors0, targets))
    return torch.cat(found, dim=1).clamp(min=0)


@operator(cuda=())
def lookup_squares(
    vectors0: Tensor, cells1: Tensor, targets: Tensor, gamma: int, squares: Sequence[tuple[int, float]]
) -> Tensor:
    """Do :func:`lookup` at the points of squares around one target of every point: (B, n, H, W).

    ``targets`` are the middles of the squares, (B, H, W, 2), ``squares`` their reach and step; see :func:`square`.
    """
    steps = torch.cat([square(reach, step, targets.device) for reach, step in squares])
    return lookup(vectors0, cells1, targets[:, None] + steps[:, None, None], gamma)


def sample(maps: Tensor, places: Tensor) -> Tensor:
    """Return bilinear values (B, C, H, W) of maps (B, C, h, w) at fractional places (B, H, W, 2), (x, y) in cells.

    Places outside take the value of the nearest place inside.
    """
    h, w = maps.shape[-2:]
    x, y = places[..., 0] * (2 / max(1, w - 1)) - 1, places[..., 1] * (2 / max(1, h - 1)) - 1
    grid = torch.stack([x, y], dim=-1)
    return F.grid_sample(maps, grid, mode="bilinear", padding_mode="border", align_corners=True)


def square(reach: int, step: float, device: torch.device) -> Tensor:
    """Return the (2 · reach + 1)² displacements (n, 2), (x, y), from −reach · step to reach · step along each axis."""
    steps = torch.arange(-reach, reach + 1, device=device) * step
    y, x = torch.meshgrid(steps, steps, indexing="ij")
    return torch.stack([x, y], dim=-1).flatten(0, 1)
