"""What surrounds each reference point in both images: one window of descriptors per point, and their comparison."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from deepmatching.kernels.registry import operator
from deepmatching.network.convolutions import in_row_bands
from deepmatching.network.operators.lookups import sample

#: Numbers of the descriptors that are convolved at a time.
BAND = 2**22


@operator(cpu=(), cuda=("float32",))
def windows(
    cells: tuple[Tensor, ...], weight: Tensor, bias: Tensor, step: int, factor: float, dtype: torch.dtype
) -> Tensor:
    """max(0, bias + factor · Σ weight · cells) over one window of cells per reference point: (n·B, C', rows, columns).

    Args:
        cells: n = 1 or 2 batches of descriptors of one shape, (B, C, h, w); there are h // step rows of windows.
        weight: (C', C, side, side).
        bias: (C',).
        step: cells from one window to the next.
        factor: what the descriptors are multiplied by.
        dtype: type of the result. Where it is half precision, kernels multiply in half precision and sum in float32.
    """
    scaled = weight * factor

    def convolve(batch: Tensor) -> tuple[Tensor]:
        return (F.conv2d(batch, scaled, bias, step),)

    maps: list[Tensor] = []
    for batch in cells:  # convolutions copy their input
        at_once = max(1, BAND // (batch.shape[0] * batch.shape[1] * batch.shape[3] * step))
        maps += in_row_bands(convolve, (batch,), batch.shape[2] // step, at_once)
    return (maps[0] if len(maps) == 1 else torch.cat(maps)).relu_().to(dtype)


@operator(cpu=(), cuda=("float32", "float16"))
def compare_contexts(
    evidence: Tensor, context0: Tensor, context1: Tensor, points1: Tensor, beta: int, alpha: int, groups: int
) -> Tensor:
    """Evidence, context of p, and the products of the contexts of p and Γ(p), summed over groups of channels.

    Args:
        evidence: (B, E, H_0, W_0).
        context0, context1: (B, C, rows, columns) of either image; the first has at least H_0 × W_0 positions.
        points1: Γ(p) in pixels, (B, H_0, W_0, 2), (x, y). Between reference points, contexts are interpolated
            bilinearly; beyond them, they are those of the nearest.
        beta, alpha: first position of a context and step, in pixels.
        groups: number of groups; C is a multiple of it.

    Returns:
        (B, E + C + groups, H_0, W_0), of the type of the contexts.
    """
    context0 = context0[:, :, : evidence.shape[2], : evidence.shape[3]]
    warped = sample(context1.to(points1.dtype), (points1 - beta) / alpha)
    product = (context0 * warped).unflatten(1, (groups, -1)).sum(2)
    return torch.cat([evidence, context0, product], dim=1).to(context0.dtype)
