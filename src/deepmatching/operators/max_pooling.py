"""Max pooling (MP) with switches, eq. (3) of the paper."""

from __future__ import annotations

from torch import Tensor

from deepmatching.operators.kernels import kernel
from deepmatching.operators.shifted_max import ALL, View, overlap, shifted_max


def pooling_views(size: tuple[int, int], pooled: tuple[int, int], offset: int, reach: int) -> list[View]:
    """Views from S_l (``size`` cells) to S_{l+1/2} (``pooled`` cells), one per window position in raster order."""
    side = 2 * reach + 1
    views = []
    for dy in range(side):
        for dx in range(side):
            rows = overlap(offset + dy - reach, pooled[0], size[0], step=2)
            columns = overlap(offset + dx - reach, pooled[1], size[1], step=2)
            if rows and columns:
                out = (ALL, ALL, ALL, rows[0], columns[0])
                source = (ALL, ALL, ALL, rows[1], columns[1])
                views.append(View(side * dy + dx, out, source))
    return views


def max_pooling(scores: Tensor, pooled: tuple[int, int], offset: int = 0, reach: int = 1) -> tuple[Tensor, Tensor]:
    """S_{l+1/2}(q|p) = max { S_l(q'|p) : ‖q' − q‖_∞ ≤ 2^l η₀ }, with the switches m_l(q|p).

    Cell k of the result looks at the cells 2k + offset + d of ``scores``, d ∈ {−reach … reach}², as far as they
    exist. The first maximum in raster order wins, and the gradient goes to it alone.

    Args:
        scores: S_l, (B, H, W, h, w).
        pooled: (h', w'), the size of the result.
        offset: centre of the first window, ``Geometry.pool_offset``.
        reach: η₀/γ₀.

    Returns:
        S_{l+1/2}, (B, H, W, h', w'), and the switches, uint8 of the same shape: the raster index of d in the
        window of (2·reach + 1)² positions.
    """
    if scores.is_cuda and (fast := kernel("differentiable_max_pooling", scores)):
        return fast(scores, pooled, offset, reach)
    views = pooling_views((scores.shape[-2], scores.shape[-1]), pooled, offset, reach)
    return shifted_max(scores, (*scores.shape[:-2], *pooled), views)
