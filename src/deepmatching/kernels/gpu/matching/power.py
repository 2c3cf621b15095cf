"""Power (PW) with its gradient."""

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.autograd.function import once_differentiable

from deepmatching.kernels.gpu.indexing import fetch, launch, powered

SIZE = 2048  #: scores of one program


@triton.jit
def _power(scores, exponent, out, elements, SIZE: tl.constexpr):
    at = tl.program_id(0).to(tl.int64) * SIZE + tl.arange(0, SIZE)
    inside = at < elements
    tl.store(out + at, powered(tl.load(scores + at, mask=inside), tl.load(exponent)), mask=inside)


@triton.jit
def _power_gradient(scores, exponent, gradient, out, partial, elements, SIZE: tl.constexpr):
    """Store ∂S = ∂ ν S^{ν−1}, and this block's part of ∂ν = Σ ∂ S^ν ln S; both 0 where S ≤ 0."""
    at = tl.program_id(0).to(tl.int64) * SIZE + tl.arange(0, SIZE)
    inside = at < elements
    score = fetch(scores + at, inside)
    upstream = fetch(gradient + at, inside)
    nu = tl.load(exponent)
    positive = score > 0
    log = tl.log2(tl.where(positive, score, 1.0))
    slope = tl.where(positive, upstream * tl.exp2((nu - 1.0) * log), 0.0)  # ∂ S^{ν−1}
    tl.store(out + at, nu * slope, mask=inside)
    LN2: tl.constexpr = 0.6931471805599453
    tl.store(partial + tl.program_id(0), tl.sum(slope * tl.where(positive, score, 0.0) * (log * LN2), axis=0))


class Power(torch.autograd.Function):
    """:func:`power`."""

    @staticmethod
    def forward(ctx: Any, scores: Tensor, exponent: Tensor) -> Tensor:
        scores = scores.contiguous()
        ctx.save_for_backward(scores, exponent)
        out, elements = torch.empty_like(scores), scores.numel()
        launch(_power, (triton.cdiv(elements, SIZE),), scores, exponent, out, elements, SIZE=SIZE)
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor]:
        scores, exponent = ctx.saved_tensors
        elements = scores.numel()
        blocks = triton.cdiv(elements, SIZE)
        out, partial = torch.empty_like(scores), scores.new_empty(blocks)
        tensors = (scores, exponent, gradient.contiguous(), out, partial)
        launch(_power_gradient, (blocks,), *tensors, elements, SIZE=SIZE)
        # The sum over blocks runs in a fixed order and in float64.
        return out, partial.sum(dtype=torch.float64).to(exponent.dtype).view(exponent.shape)


def power(scores: Tensor, exponent: Tensor | float) -> Tensor:
    """See :func:`deepmatching.network.operators.power.power`."""
    if not isinstance(exponent, Tensor):
        exponent = torch.full((), exponent, device=scores.device)
    return Power.apply(scores, exponent.to(scores.device, torch.float32))
