"""A model of the motion around each seed, and the flow that the models make.

The definitions are differentiable with respect to positions, displacements and weights; the kernels are not.

Displacements are taken relative to the seed's own, so that equal displacements give exactly that displacement.
"""

import torch
from torch import Tensor

from deepmatching.geometry.homographies import affine_fit
from deepmatching.kernels.constants import OWN_WEIGHT, WIDE_RIDGE
from deepmatching.kernels.registry import operator


def falloff_weights(index: Tensor, distances: Tensor, falloff: float, confidence: Tensor | None = None) -> Tensor:
    """Return w = exp(−k D) + 10⁻⁸, (S, K), times the neighbour's confidence (S,); 0 for a missing neighbour.

    The neighbours and their distances D are (S, K); k is the falloff.
    """
    weights = distances.double().mul_(-falloff).exp_().add_(1e-8).masked_fill_(index < 0, 0.0)
    return weights if confidence is None else weights * confidence.double()[index.clamp(min=0).long()]


@operator(cpu=("float64",), cuda=("float64",))
def weighted_means(index: Tensor, weights: Tensor, values: Tensor) -> Tensor:
    """Return Σ_n w_n v_n / Σ_n w_n, (S, 2), over each seed's neighbours (S, K) (Nadaraya-Watson)."""
    differences = values[index.clamp(min=0).long()] - values[:, None]
    return values + (weights[..., None] * differences).sum(dim=1) / weights.sum(dim=1, keepdim=True)


@operator(cpu=("float64",), cuda=("float64",))
def affine_models(
    index: Tensor, weights: Tensor, points: Tensor, values: Tensor, ridge: float, wide: float = 0.0
) -> tuple[Tensor, Tensor]:
    """Fit an affine motion to the neighbours of each seed: v(p) = b + Aᵀ (p − p_s).

    The ridge pulls A towards the A_0 of a wider model, fitted to the same neighbours with the weights w^wide. It keeps
    models calm where matches are few or noisy, and does not change an affine motion.

        A, b = arg min Σ_n w_n² |v_n − (b + Aᵀ (p_n − p_s))|² + ridge |A − A_0|²

    Args:
        index, weights: (S, K), each seed itself first.
        points, values: (S, 2), the seeds' p_s and displacements.
        ridge: see :func:`deepmatching.geometry.homographies.affine_fit`.
        wide: 0 … 1; 0: A_0 = 0.

    Returns:
        the models (S, 3, 2): A's row for x, its row for y, b; and the weighted mean (S,) of |v(p_n) − v_n|.
    """
    neighbours = index.clamp(min=0).long()
    weights = torch.cat([OWN_WEIGHT * weights[:, :1], weights[:, 1:]], dim=1)
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


@operator(cpu=("float64",), cuda=("float64",))
def paint(label: Tensor, points: Tensor, models: Tensor) -> Tensor:
    """Return the flow (H, W, 2) in which each pixel moves by its nearest seed's model; kernels round it to float32."""
    rows, columns = (torch.arange(n, dtype=points.dtype, device=points.device) for n in label.shape)
    pixels = torch.stack(torch.meshgrid(rows, columns, indexing="ij")[::-1], dim=2)
    seed = label.long()
    offsets, model = pixels - points[seed], models[seed]
    return torch.einsum("hwi,hwic->hwc", offsets, model[:, :, :2]) + model[:, :, 2]
