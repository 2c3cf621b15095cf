"""Max pooling (MP) with switches, eq. (3) of the paper."""

from torch import Tensor

from deepmatching.kernels.registry import operator
from deepmatching.network.operators.shifted_max import pooling_views, shifted_max


@operator(differentiable=True)
def max_pooling(scores: Tensor, pooled: tuple[int, int], offset: int = 0, reach: int = 1) -> tuple[Tensor, Tensor]:
    """Return S_{l+1/2}(q|p) = max { S_l(q'|p) : ‖q' − q‖_∞ ≤ 2^l η₀ }, with the switches m_l(q|p).

    Cell k of the result looks at the cells 2k + offset + d of ``scores``, d ∈ {−reach … reach}², as far as they
    exist. The first maximum in raster order wins, and the gradient goes to it alone.

    ``scores`` are S_l, (B, H, W, h, w), ``pooled`` is the size (h', w') of the result, ``offset`` is
    ``Geometry.pool_offset(l)`` and ``reach`` η₀/γ₀. Both results are (B, H, W, h', w'); a switch is the raster index of
    d in the window of (2·reach + 1)² positions, uint8.
    """
    views = pooling_views(scores.shape[-2:], pooled, offset, reach)
    return shifted_max(scores, (*scores.shape[:-2], *pooled), views)
