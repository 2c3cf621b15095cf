"""The linear system of one step of variational refinement (see ``deepmatching.flow.refinement``)."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from deepmatching.kernels.constants import EPSILON, ZETA


def derivative(image: Tensor, dim: int) -> Tensor:
    """(1, −8, 0, 8, −1) / 12 along dimension 1 (y) or 2 (x) of (C, H, W)."""
    padding = (2, 2, 0, 0) if dim == 2 else (0, 0, 2, 2)
    padded = functional.pad(image[None], padding, mode="replicate")[0]
    a, b, _, d, e = (padded.narrow(dim, n, image.shape[dim]) for n in range(5))
    return (d - b).mul_(8 / 12).sub_((e - a).mul_(1 / 12))


def data_term(mean: Tensor, difference: Tensor, inside: Tensor, gamma: float) -> tuple[Tensor, Tensor]:
    """The linearised constraints of constant gradients, with their weight γ Ψ′.

    A grey image counts as three equal channels: the original reads it as such.

    Args:
        mean, difference, inside: from :func:`~deepmatching.flow.operators.warping.warp`.
        gamma: γ.

    Returns:
        A_11, A_12, A_22 (3, H, W) and b (2, H, W).
    """
    x, y = derivative(mean, 2), derivative(mean, 1)
    xx, xy, yy = derivative(x, 2), derivative(x, 1), derivative(y, 1)
    xt, yt = derivative(difference, 2), derivative(difference, 1)
    matrix, right = inside.new_zeros(3, *inside.shape), inside.new_zeros(2, *inside.shape)
    error = torch.zeros_like(inside)
    for p, q, t in ((xx, xy, xt), (xy, yy, yt)):  # p du + q dv + t = 0
        norm = 1 / (p * p + q * q + ZETA**2)
        for total, a, b in zip(matrix, (p, p, q), (p, q, q), strict=True):
            total += (norm * a * b).sum(dim=0)
        for total, a in zip(right, (p, q), strict=True):
            total -= (norm * a * t).sum(dim=0)
        error += (norm * t * t).sum(dim=0)
    channels = len(mean)
    scale = gamma / channels * inside / torch.sqrt(3 / channels * error + EPSILON**2)
    return scale * matrix, scale * right


def smoothness_weights(flow: Tensor, smoothness: Tensor) -> tuple[Tensor, Tensor]:
    """s between column x and x + 1, and between row y and y + 1: α λ Ψ′(‖∇u‖² + ‖∇v‖²) half-way; 0 at the border."""
    padded = functional.pad(flow[None], (1, 1, 1, 1), mode="replicate")[0]
    x, y = (padded[:, 1:-1, 2:] - padded[:, 1:-1, :-2]) / 2, (padded[:, 2:, 1:-1] - padded[:, :-2, 1:-1]) / 2
    across, along = torch.zeros_like(smoothness), torch.zeros_like(smoothness)
    step, slope = flow[:, :, 1:] - flow[:, :, :-1], (y[:, :, 1:] + y[:, :, :-1]) / 2
    squares = (step.square() + slope.square()).sum(dim=0)
    across[:, :-1] = (smoothness[:, 1:] + smoothness[:, :-1]) / 2 / torch.sqrt(squares + EPSILON**2)
    step, slope = flow[:, 1:] - flow[:, :-1], (x[:, 1:] + x[:, :-1]) / 2
    squares = (step.square() + slope.square()).sum(dim=0)
    along[:-1] = (smoothness[1:] + smoothness[:-1]) / 2 / torch.sqrt(squares + EPSILON**2)
    return across, along
