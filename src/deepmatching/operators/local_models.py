"""A model of the motion around each seed, and the flow that the models make.

The functions are the definitions, differentiable with respect to positions, displacements and weights. Kernels stand
behind them where no gradient is asked for.

Displacements are taken relative to the seed's own, so that equal displacements give exactly that displacement.
"""

from __future__ import annotations

import torch
from torch import Tensor

from deepmatching.flow.dispatch import kernels
from deepmatching.operators.affine import affine_fit

#: The ridge of the wider models: with dozens of neighbours it counts nothing, with two or three it keeps them calm.
WIDE_RIDGE = 1.0

#: The original gives a match 0.96 of its weight and 0.01 to each of four points around it, which count as the ridge and
#: as (0.96² + 4 · 0.01²)^½ of the match itself.
OWN = (0.96**2 + 4 * 0.01**2) ** 0.5


def falloff_weights(index: Tensor, distances: Tensor, falloff: float, confidence: Tensor | None = None) -> Tensor:
    """w = exp(−k D) + 10⁻⁸, times the neighbour's confidence; 0 where there is no neighbour.

    Args:
        index, distances: (S, K), the neighbours and how far they are.
        falloff: k.
        confidence: (S,) of each seed, or None for 1.
    """
    weights = distances.double().mul_(-falloff).exp_().add_(1e-8).masked_fill_(index < 0, 0.0)
    return weights if confidence is None else weights * confidence.double()[index.clamp(min=0).long()]


def weighted_means(index: Tensor, weights: Tensor, values: Tensor) -> Tensor:
    """Σ_n w_n v_n / Σ_n w_n over each seed's neighbours (Nadaraya-Watson).

    Args:
        index, weights: (S, K).
        values: (S, 2).

    Returns:
        (S, 2).
    """
    if fast := _kernels(weights, values):
        return torch.from_numpy(fast.weighted_means(index.numpy(), weights.numpy(), values.numpy()))
    differences = values[index.clamp(min=0).long()] - values[:, None]
    return values + (weights[..., None] * differences).sum(dim=1) / weights.sum(dim=1, keepdim=True)


def affine_models(
    index: Tensor, weights: Tensor, points: Tensor, values: Tensor, ridge: float, wide: float = 0.0
) -> tuple[Tensor, Tensor]:
    """Fit an affine motion to the neighbours of each seed: v(p) = b + Aᵀ (p − p_s).

    The ridge pulls A to that of a wider model, A_0, fitted to the same neighbours with the weights w^wide: so it keeps
    models calm where matches are few or noisy, and yet does not change a motion that is affine.

        A, b = arg min Σ_n w_n² |v_n − (b + Aᵀ (p_n − p_s))|² + ridge |A − A_0|²

    Args:
        index, weights: (S, K), each seed itself first.
        points: (S, 2), p_s.
        values: (S, 2), the seeds' displacements.
        ridge: see :func:`deepmatching.operators.affine.affine_fit`.
        wide: 0 … 1; 0: A_0 = 0.

    Returns:
        the models (S, 3, 2): A's row for x, its row for y, b; and the weighted mean (S,) of |v(p_n) − v_n|, which says
        how well the neighbours agree.
    """
    if fast := _kernels(weights, points, values):
        arrays = (tensor.numpy() for tensor in (index, weights, points, values))
        models, spread = fast.affine_models(*arrays, ridge, wide, WIDE_RIDGE, OWN)
        return torch.from_numpy(models), torch.from_numpy(spread)
    neighbours = index.clamp(min=0).long()
    weights = torch.cat([OWN * weights[:, :1], weights[:, 1:]], dim=1)
    offsets, differences = points[neighbours] - points[:, None], values[neighbours] - values[:, None]
    if wide:
        counts = weights > 0
        flatter = torch.where(counts, weights, 1.0) ** wide * counts  # 0^wide has no gradient
        slopes = affine_fit(offsets, differences, flatter, WIDE_RIDGE)[:, :2]
        models = affine_fit(offsets, differences - offsets @ slopes, weights, ridge)
        models = torch.cat([models[:, :2] + slopes, models[:, 2:]], dim=1)
    else:
        models = affine_fit(offsets, differences, weights, ridge)
    residuals = differences - (offsets @ models[:, :2] + models[:, 2:])
    lengths = (residuals.square().sum(dim=2) + torch.finfo(residuals.dtype).tiny).sqrt()
    spread = (weights * lengths).sum(dim=1) / weights.sum(dim=1)
    return torch.cat([models[:, :2], models[:, 2:] + values[:, None]], dim=1), spread


def paint(label: Tensor, points: Tensor, models: Tensor) -> Tensor:
    """The flow (H, W, 2) in which each pixel moves by its nearest seed's model; kernels round it to float32."""
    if fast := _kernels(points, models):
        return torch.from_numpy(fast.paint(label.numpy(), points.numpy(), models.numpy()))
    rows, columns = (torch.arange(n, dtype=points.dtype, device=points.device) for n in label.shape)
    pixels = torch.stack(torch.meshgrid(rows, columns, indexing="ij")[::-1], dim=2)
    seed = label.long()
    offsets, model = pixels - points[seed], models[seed]
    return torch.einsum("hwi,hwic->hwc", offsets, model[:, :, :2]) + model[:, :, 2]


def _kernels(*tensors: Tensor):  # type: ignore[no-untyped-def]
    """The module with kernels, if they can do this: float64 on the CPU, and no gradients."""
    plain = any(t.requires_grad or t.device.type != "cpu" or t.dtype != torch.float64 for t in tensors)
    return None if plain else kernels("local_models")
