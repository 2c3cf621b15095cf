"""Sub-pixel matches: where between the cells the scores around a match point."""

from functools import lru_cache

import torch
import torch.nn.functional as F
from torch import Tensor

from deepmatching.geometry.discretization import Geometry
from deepmatching.geometry.targets import Decoded, reference_patches, target_indices, target_patches
from deepmatching.network.operators.power import power

#: Cells on each side of the match that count.
SUBPIXEL_REACH = 2

#: Cells along the side of the square around a match.
SUBPIXEL_SIDE = 2 * SUBPIXEL_REACH + 1


def chunk(device: str) -> int:
    """Elements of target patches that are assembled at a time. A CPU's allocator keeps more of larger pieces."""
    return 2**22 if device == "cpu" else 2**24


@torch.no_grad()
def scores_around(
    decoded: Decoded, cells0: Tensor, cells1: Tensor, geometry: Geometry, patch: int, exponent: Tensor | float
) -> Tensor:
    """S_0 of the 5 × 5 cells around every match, (B, H_0, W_0, 5, 5); −∞ off the target image."""
    rows, columns = (
        index.clamp(0, size // geometry.gamma)
        for index, size in zip(target_indices(decoded.cells, geometry), geometry.used1, strict=True)
    )
    around = correlation_around(cells0, cells1, rows, columns, geometry, patch)
    return torch.where(torch.isfinite(around), power(around, exponent), -torch.inf)


@torch.no_grad()
def refine_to_subpixel(decoded: Decoded, around: Tensor, geometry: Geometry, sharpness: Tensor) -> Decoded:
    """Γ(p) moved by Δ(p), see :func:`soft_offsets`, and kept inside the image and within the radius of p.

    Args:
        around: the scores around Γ(p), see :func:`scores_around`. Q_0 would not do: it is −∞ on most cells there.
    """
    moved = decoded.points1 + geometry.gamma * soft_offsets(around, sharpness).flip(-1)
    if geometry.radius is not None:
        p = decoded.points0
        moved = torch.minimum(torch.maximum(moved, p - geometry.radius), p + geometry.radius)
    limit = _last_position(geometry, moved.device)
    return decoded._replace(points1=torch.minimum(moved.clamp(min=0), limit))


@lru_cache(maxsize=64)
@torch.inference_mode(False)
def _last_position(geometry: Geometry, device: torch.device) -> Tensor:
    """(x, y) of the last pixel's centre: a match between cells lies no further than that from the corner."""
    return torch.tensor([geometry.used1[1] - 0.5, geometry.used1[0] - 0.5], device=device)


def soft_offsets(around: Tensor, sharpness: Tensor | float) -> Tensor:
    """Δ(p) = Σ_δ π(δ) δ,  π(δ) ∝ exp(κ S(q + δ|p)),  ‖δ‖_∞ ≤ 2: the mean position around the cell q, in cells.

    Args:
        around: S(q + δ|p), (…, 5, 5); cells at −∞ do not count, and Δ = 0 if all are −∞.
        sharpness: κ > 0.

    Returns:
        (…, 2), (row, column).
    """
    finite = torch.isfinite(around)
    logits = torch.where(finite, sharpness * torch.where(finite, around, 0), -torch.inf).flatten(-2)
    some = finite.flatten(-2).any(-1, keepdim=True)
    weights = F.softmax(torch.where(some, logits, 0), dim=-1).unflatten(-1, (SUBPIXEL_SIDE, SUBPIXEL_SIDE))
    steps = torch.arange(-SUBPIXEL_REACH, SUBPIXEL_REACH + 1, device=around.device, dtype=around.dtype)
    rows, columns = (weights.sum(-1) * steps).sum(-1), (weights.sum(-2) * steps).sum(-1)
    return torch.stack([rows, columns], dim=-1)


def surroundings(scores: Tensor, cells: Tensor) -> Tensor:
    """The scores of the 5 × 5 cells around one cell of every map.

    Args:
        scores: (B, H, W, h, w).
        cells: (B, H, W) int64, raster index of the cell in its map.

    Returns:
        (B, H, W, 5, 5); −∞ off the map.
    """
    h, w = scores.shape[-2:]
    steps = torch.arange(-SUBPIXEL_REACH, SUBPIXEL_REACH + 1, device=scores.device)
    rows, columns = (cells // w)[..., None] + steps, (cells % w)[..., None] + steps
    inside = _both((rows >= 0) & (rows < h), (columns >= 0) & (columns < w))
    index = rows.clamp(0, h - 1)[..., :, None] * w + columns.clamp(0, w - 1)[..., None, :]
    around = scores.flatten(-2).gather(-1, index.flatten(-2)).view_as(inside)
    return torch.where(inside, around, -torch.inf)


def correlation_around(
    cells0: Tensor, cells1: Tensor, rows: Tensor, columns: Tensor, geometry: Geometry, patch: int
) -> Tensor:
    """S̃_0 of the 5 × 5 target positions around one target of every reference point, without the volume S_0.

    A target patch that sticks out of the image is rectified as in :func:`~deepmatching.network.operators.correlation`.

    Args:
        cells0, cells1, patch: see there.
        rows, columns: (B, H_0, W_0) int64, the targets, counted in cells from the image's corner.

    Returns:
        (B, H_0, W_0, 5, 5); −∞ off the target image.
    """
    at_once = max(
        1, chunk(rows.device.type) // (len(rows) * rows.shape[2] * cells0.shape[1] * patch**2 * SUBPIXEL_SIDE**2)
    )
    parts = []
    for i in range(0, rows.shape[1], at_once):
        part = slice(i, min(i + at_once, rows.shape[1]))
        reference = reference_patches(cells0, geometry.strip((part.start, part.stop)), patch)
        parts.append(_around(reference, cells1, rows[:, part], columns[:, part], patch))
    steps = torch.arange(-SUBPIXEL_REACH, SUBPIXEL_REACH + 1, device=rows.device)
    inside = [
        (target[..., None] + steps >= 0) & (target[..., None] + steps <= size // geometry.gamma)
        for target, size in zip((rows, columns), geometry.used1, strict=True)
    ]
    return torch.where(_both(*inside), torch.cat(parts, dim=1), -torch.inf)


def _around(reference: Tensor, cells1: Tensor, rows: Tensor, columns: Tensor, patch: int) -> Tensor:
    """:func:`correlation_around` for some rows of reference points, (B, H, W, C, patch, patch).

    Off the target image, the result is any number.
    """
    blocks, visible = target_patches(cells1, rows, columns, -SUBPIXEL_REACH - patch // 2, SUBPIXEL_SIDE + patch - 1)
    windows = blocks.unfold(3, patch, 1).unfold(4, patch, 1)  # (B, H, W, 5, 5, C, patch, patch)
    scores = torch.einsum("bhwyxcij,bhwcij->bhwyx", windows, reference)
    seen = visible.to(scores.dtype).unfold(3, patch, 1).unfold(4, patch, 1).sum((-1, -2))
    return scores * (patch**2 / seen.clamp(min=1))


def _both(rows: Tensor, columns: Tensor) -> Tensor:
    return rows[..., :, None] & columns[..., None, :]
