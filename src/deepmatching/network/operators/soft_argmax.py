"""The soft arg-max of Q_0: a position that has a gradient with respect to the scores, as Γ(p) has not."""

import torch
from torch import Tensor

from deepmatching.network.operators.subpixel import square_around

PEAKS = 4  #: K, peaks of Q_0 that a position is the mean of


def highest_peaks(Q_0: Tensor, count: int = PEAKS) -> tuple[Tensor, Tensor]:
    """Return Q_0(q_k|p) and q_k of the highest cells that are more than two cells apart along an axis, highest first.

    The first is Γ(p). Nearer cells than that are no other peaks: the sub-pixel refinement of one sees the other. From
    Q_0, (B, H, W, h, w), to scores (B, H, W, K), which have a gradient, and raster indices (B, H, W, K), int64. Where
    fewer cells can be reached, the last scores are −∞, and their indices any.
    """
    left, best, peaks = Q_0.detach().clone(memory_format=torch.contiguous_format), [], []
    for _ in range(count):
        score, cell = left.flatten(-2).max(dim=-1)
        best.append(score)
        peaks.append(cell)
        index, _ = square_around(cell, (left.shape[-2], left.shape[-1]))
        left.flatten(-2).scatter_(-1, index.flatten(-2), -torch.inf)
    cells = torch.stack(peaks, dim=-1)
    return Q_0.flatten(-2).gather(-1, cells).where(torch.stack(best, dim=-1).isfinite(), -torch.inf), cells


def soft_argmax(scores: Tensor, positions: Tensor, sharpness: Tensor | float) -> Tensor:
    """Return Γ̃(p) = Σ_k π_k(p) x_k(p),  π_k(p) ∝ exp(β Q_0(q_k|p)): the mean position of the peaks q_1 … q_K.

    As β rises, it becomes x_1, the position of the highest peak. It also is if all scores are −∞; else those at −∞ do
    not count.

    Args:
        scores: Q_0(q_k|p), (B, H, W, K), highest first; see :func:`highest_peaks`.
        positions: x_k, (B, H, W, K, 2), where each peak lies; between the cells if it was refined.
        sharpness: β > 0.

    Returns:
        (B, H, W, 2), in the units of the positions. All three arguments have a gradient.
    """
    finite = scores.isfinite()
    logits = sharpness * scores.where(finite, 0)
    counts = torch.cat([torch.ones_like(finite[..., :1]), finite[..., 1:]], dim=-1)
    return (logits.where(counts, -torch.inf).softmax(dim=-1)[..., None] * positions).sum(dim=-2)
