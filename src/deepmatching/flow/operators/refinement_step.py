"""One step of variational refinement: warping, the linear system, relaxation (see ``deepmatching.flow.refinement``)."""

import torch
from torch import Tensor
from torch.nn import functional

from deepmatching.kernels.constants import EPSILON, ZETA
from deepmatching.kernels.registry import operator


@operator()
def warp(image0: Tensor, image1: Tensor, flow: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Warp I_1 (C, H', W') by a flow (2, H, W): I_w(p) = I_1(p + flow(p)). Bilinear; the border of I_1 is repeated.

    Returns:
        (I_0 + I_w) / 2 and I_w − I_0, both (C, H, W), and a mask (H, W): 1 where p + flow(p) is in the image, else 0.
    """
    height, width = image1.shape[1:]
    rows, columns = (torch.arange(n, device=flow.device, dtype=flow.dtype) for n in flow.shape[1:])
    x, y = columns + flow[0], rows[:, None] + flow[1]
    inside = ((x >= 0) & (y >= 0) & (x <= width - 1) & (y <= height - 1)).to(flow.dtype)
    x, y = x.clamp(0, width - 1), y.clamp(0, height - 1)
    j, i = x.long(), y.long()
    k, l = (j + 1).clamp(max=width - 1), (i + 1).clamp(max=height - 1)
    p, q = x - j, y - i
    above = image1[:, i, j] + p * (image1[:, i, k] - image1[:, i, j])
    below = image1[:, l, j] + p * (image1[:, l, k] - image1[:, l, j])
    warped = above + q * (below - above)
    return (image0 + warped) / 2, warped - image0, inside


def derivative(image: Tensor, dim: int) -> Tensor:
    """Return (1, −8, 0, 8, −1) / 12 along dimension 1 (y) or 2 (x) of (C, H, W)."""
    padding = (2, 2, 0, 0) if dim == 2 else (0, 0, 2, 2)
    padded = functional.pad(image[None], padding, mode="replicate")[0]
    a, b, _, d, e = (padded.narrow(dim, n, image.shape[dim]) for n in range(5))
    return (d - b).mul_(8 / 12).sub_((e - a).mul_(1 / 12))


def data_term(mean: Tensor, difference: Tensor, inside: Tensor, gamma: float) -> tuple[Tensor, Tensor]:
    """Return the linearised constraints of constant gradients after :func:`warp`, with their weight γ Ψ′.

    They are A_11, A_12, A_22, (3, H, W), and b, (2, H, W). A grey image counts as three equal channels: the original
    reads it as such.
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
    """Return s between column x and x + 1, and between row y and y + 1: α λ Ψ′(‖∇u‖² + ‖∇v‖²) half-way, or 0."""
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


def relax(
    matrix: Tensor, right: Tensor, across: Tensor, along: Tensor, flow: Tensor, iterations: int, omega: float
) -> Tensor:
    """Return the increments d (2, H, W) after some iterations of red-black successive over-relaxation from d = 0.

    ``matrix`` and ``right`` are the data term; ``across`` and ``along`` are weights between column x and x + 1, and
    between row y and y + 1, see :func:`smoothness_weights`. ω is between 0 and 2.
    """
    diagonal = _sum_over_neighbours(torch.ones_like(flow[:1]), across, along)[0]
    right = right + _sum_over_neighbours(flow, across, along) - diagonal * flow
    a11, a12, a22 = matrix[0] + diagonal, matrix[1], matrix[2] + diagonal
    determinant = a11 * a22 - a12 * a12
    inverse = torch.where(determinant > 0, 1 / determinant, 0)
    rows, columns = (torch.arange(n, device=flow.device) for n in flow.shape[1:])
    odd = ((rows[:, None] + columns) % 2).bool()
    found = torch.zeros_like(flow)
    for half in range(2 * iterations):
        sums = right + _sum_over_neighbours(found, across, along)
        solution = inverse * torch.stack([a22 * sums[0] - a12 * sums[1], a11 * sums[1] - a12 * sums[0]])
        updated = found + omega * (solution - found)
        found = torch.where(odd if half % 2 else ~odd, updated, found)
    return found


def _sum_over_neighbours(values: Tensor, across: Tensor, along: Tensor) -> Tensor:
    """Return Σ_n s_n values_n over the four neighbours of each pixel of (C, H, W)."""
    result = torch.zeros_like(values)
    result[:, :, :-1] += across[:, :-1] * values[:, :, 1:]
    result[:, :, 1:] += across[:, :-1] * values[:, :, :-1]
    result[:, :-1] += along[:-1] * values[:, 1:]
    result[:, 1:] += along[:-1] * values[:, :-1]
    return result


@operator()
@torch.no_grad()
def refinement_step(
    flow: Tensor, start: Tensor, image0: Tensor, image1: Tensor, smoothness: Tensor,
    gamma: float, hold: float, iterations: int, omega: float,
) -> None:  # fmt: skip
    """Warp the second image, linearise the constraints, relax the linear system, and add the increments to the flow.

    Args:
        flow: (2, H, W), changed in place.
        start: (2, H, W), the flow before the first step.
        image0, image1: (C, H, W), (C, H', W'), smoothed, in 0 … 255.
        smoothness: (H, W), α λ.
        hold: how strongly pixels that leave the second image are held at ``start``.
    """
    mean, difference, inside = warp(image0, image1, flow)
    across, along = smoothness_weights(flow, smoothness)
    matrix, right = data_term(mean, difference, inside, gamma)
    pull = hold * (1 - inside)
    matrix[::2] += pull
    right += pull * (start - flow)
    flow += relax(matrix, right, across, along, flow, iterations, omega)
