"""Sub-pixel matches: where between the cells the scores around a match point."""

from collections.abc import Callable
from functools import lru_cache

import torch
import torch.nn.functional as F
from torch import Tensor

from deepmatching.geometry.discretization import Geometry
from deepmatching.geometry.targets import Decoded, reference_patches, target_indices, target_patches
from deepmatching.kernels.constants import SUBPIXEL_REACH
from deepmatching.kernels.registry import operator
from deepmatching.network.operators.power import power

SUBPIXEL_SIDE = 2 * SUBPIXEL_REACH + 1  #: cells along the side of the square around a match


def chunk(device: str) -> int:
    """Return how many elements of target patches to assemble at a time. A CPU's allocator keeps more of larger ones."""
    return 2**22 if device == "cpu" else 2**24


@operator(cpu=(), cuda=("float32",))
@torch.no_grad()
def scores_around(
    decoded: Decoded, cells0: Tensor, cells1: Tensor, geometry: Geometry, patch: int, exponent: Tensor | float
) -> Tensor:
    """Return S_0 of the 5 × 5 cells around every match, (B, H_0, W_0, 5, 5); −∞ off the target image."""
    rows, columns = (
        index.clamp(0, size // geometry.gamma)
        for index, size in zip(target_indices(decoded.cells, geometry), geometry.used1, strict=True)
    )
    around = correlation_around(cells0, cells1, rows, columns, geometry, patch)
    return torch.where(torch.isfinite(around), power(around, exponent), -torch.inf)


@operator(cpu=(), cuda=("float32",))
@torch.no_grad()
def refine_to_subpixel(decoded: Decoded, around: Tensor, geometry: Geometry, sharpness: Tensor) -> Decoded:
    """Move Γ(p) by Δ(p), see :func:`soft_offsets`, and keep it inside the image and within the radius of p.

    ``around`` are the scores of :func:`scores_around`. Q_0 would not do: it is −∞ on most cells there.
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
    """Return (x, y) of the last pixel's centre: a match between cells lies no further than that from the corner."""
    return torch.tensor([geometry.used1[1] - 0.5, geometry.used1[0] - 0.5], device=device)


def soft_offsets(around: Tensor, sharpness: Tensor | float) -> Tensor:
    """Return Δ(p) = Σ_δ π(δ) δ,  π(δ) ∝ exp(κ S(q + δ|p)),  ‖δ‖_∞ ≤ 2: the mean position around the cell q.

    ``around`` holds S(q + δ|p), (…, 5, 5), ``sharpness`` is κ > 0. Cells at −∞ do not count, and Δ = 0 if all are −∞.
    The result (…, 2), (row, column), is in cells.
    """
    finite = torch.isfinite(around)
    logits = torch.where(finite, sharpness * torch.where(finite, around, 0), -torch.inf).flatten(-2)
    some = finite.flatten(-2).any(-1, keepdim=True)
    weights = F.softmax(torch.where(some, logits, 0), dim=-1).unflatten(-1, (SUBPIXEL_SIDE, SUBPIXEL_SIDE))
    steps = torch.arange(-SUBPIXEL_REACH, SUBPIXEL_REACH + 1, device=around.device, dtype=around.dtype)
    rows, columns = (weights.sum(-1) * steps).sum(-1), (weights.sum(-2) * steps).sum(-1)
    return torch.stack([rows, columns], dim=-1)


def surroundings(scores: Tensor, cells: Tensor) -> Tensor:
    """Return the scores (B, H, W, 5, 5) around one cell of every map of (B, H, W, h, w); −∞ off the map.

    ``cells`` (B, H, W), int64, are the raster indices of the cells in their maps.
    """
    index, inside = square_around(cells, (scores.shape[-2], scores.shape[-1]))
    around = scores.flatten(-2).gather(-1, index.flatten(-2)).view_as(inside)
    return torch.where(inside, around, -torch.inf)


def square_around(cells: Tensor, size: tuple[int, int]) -> tuple[Tensor, Tensor]:
    """Return the raster indices of the cells around a cell of a map (h, w), and which are on it: both (…, 5, 5).

    ``cells`` (…) are raster indices, int64. In place of a cell off the map stands one of the square on its border.
    """
    h, w = size
    steps = torch.arange(-SUBPIXEL_REACH, SUBPIXEL_REACH + 1, device=cells.device)
    rows, columns = (cells // w)[..., None] + steps, (cells % w)[..., None] + steps
    inside = _both((rows >= 0) & (rows < h), (columns >= 0) & (columns < w))
    return rows.clamp(0, h - 1)[..., :, None] * w + columns.clamp(0, w - 1)[..., None, :], inside


def correlation_around(
    cells0: Tensor, cells1: Tensor, rows: Tensor, columns: Tensor, geometry: Geometry, patch: int
) -> Tensor:
    """Return S̃_0 of the 5 × 5 target positions around one target of every reference point, without the volume S_0.

    A target patch that sticks out of the image is rectified as in :func:`~deepmatching.network.operators.correlation`,
    which says what the cells are. ``rows`` and ``columns``, (B, H_0, W_0), int64, are the targets, counted in cells
    from the image's corner. The result is (B, H_0, W_0, 5, 5); −∞ off the target image.
    """

    def correlate(reference: Tensor, rows: Tensor, columns: Tensor) -> Tensor:
        """Return any number off the target image."""
        blocks, visible = target_patches(cells1, rows, columns, -SUBPIXEL_REACH - patch // 2, SUBPIXEL_SIDE + patch - 1)
        windows = blocks.unfold(3, patch, 1).unfold(4, patch, 1)  # (B, H, W, 5, 5, C, patch, patch)
        scores = torch.einsum("bhwyxcij,bhwcij->bhwyx", windows, reference)
        seen = visible.to(scores.dtype).unfold(3, patch, 1).unfold(4, patch, 1).sum((-1, -2))
        return scores * (patch**2 / seen.clamp(min=1))

    most = chunk(rows.device.type) // SUBPIXEL_SIDE**2
    scores = in_strips(correlate, cells0, rows, columns, geometry, patch, most)
    steps = torch.arange(-SUBPIXEL_REACH, SUBPIXEL_REACH + 1, device=rows.device)
    inside = [
        (target[..., None] + steps >= 0) & (target[..., None] + steps <= size // geometry.gamma)
        for target, size in zip((rows, columns), geometry.used1, strict=True)
    ]
    return torch.where(_both(*inside), scores, -torch.inf)


def in_strips(
    compare: Callable[[Tensor, Tensor, Tensor], Tensor],
    cells0: Tensor, rows: Tensor, columns: Tensor, geometry: Geometry, patch: int, most: int,
) -> Tensor:  # fmt: skip
    """Call compare(φ(p), rows, columns) for strips of reference points with up to ``most`` numbers; join the results.

    φ(p) is (B, H, W, C, patch, patch), the targets are (B, H, W).
    """
    at_once = max(1, most // (rows[:, 0].numel() * cells0.shape[1] * patch**2))
    parts = []
    for first in range(0, rows.shape[1], at_once):
        part = slice(first, min(first + at_once, rows.shape[1]))
        reference = reference_patches(cells0, geometry.strip((part.start, part.stop)), patch)
        parts.append(compare(reference, rows[:, part], columns[:, part]))
    return torch.cat(parts, dim=1)


def _both(rows: Tensor, columns: Tensor) -> Tensor:
    return rows[..., :, None] & columns[..., None, :]
