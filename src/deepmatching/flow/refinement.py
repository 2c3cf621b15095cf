"""Variational refinement: correct a flow until the images fit, without losing its smoothness.

The flow w = (u, v) is corrected by increments d = (du, dv) that lower the energy

    E(w) = Σ γ Ψ(‖∇I_1(p + w) − ∇I_0(p)‖²) + δ Ψ(‖I_1(p + w) − I_0(p)‖²) + α λ(p) Ψ(‖∇u‖² + ‖∇v‖²)
         + ½ hold [p + w outside] ‖w − w_0‖²

with Ψ(s²) = √(s² + ε²), images in 0 … 255, and each linearised constraint divided by the length of its gradient,
1 / (‖∇‖² + ζ²) (Zimmer et al., IJCV 2011; Weinzaepfel et al., ICCV 2013). In every step, I_1 is warped by the flow, the
constraints are linearised at du = dv = 0, where their Ψ′ is taken too, and the linear system is relaxed:

    (A + Σ_n s_n) d = b + Σ_n s_n (w_n − w + d_n),   n: the four neighbours,  s_n = α λ Ψ′ half-way to them.

What descriptions of the original leave open was found by comparison with its output: images in 0 … 255 and not
0 … 1; one Ψ for all channels together, whose weights γ and δ are divided by their number, and not one Ψ a channel;
λ = exp(−edges ‖∇L‖) of the *smoothed* image's luminance in 0 … 1; s_n with the flow's gradient half-way between the
pixels; bilinear warping; no data outside the second image.

Derivatives are (1, −8, 0, 8, −1) / 12 and those of the mean of I_0 and the warped I_1. Borders are repeated.
"""

from __future__ import annotations

import math
from typing import Any

import cv2
import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from deepmatching.errors import DeepMatchingError
from deepmatching.flow.dispatch import kernels
from deepmatching.flow.settings import FlowSettings, RefinementSettings, preset
from deepmatching.io.images import ImageLike, load_image

ZETA, EPSILON = 0.1, 0.001
_LUMINANCE = (0.299, 0.587, 0.114)
_STRIP = 64


@torch.no_grad()
def refine(
    flow: Any,
    image0: ImageLike,
    image1: ImageLike,
    settings: str | FlowSettings | RefinementSettings = "default",
) -> np.ndarray:
    """Refine a flow (H, W, 2) between two images, on the device of the first one: float32 (H, W, 2).

    The second image may have another size; both are grey or both in colour.
    """
    chosen = settings if isinstance(settings, RefinementSettings) else preset(settings).refinement
    first, second = load_image(image0, "image0"), load_image(image1, "image1")
    start = torch.as_tensor(flow).to(first.device, torch.float32)
    if start.ndim != 3 or start.shape[2] != 2 or start.shape[:2] != first.shape[1:]:
        raise DeepMatchingError(
            f"The flow is {tuple(start.shape)} and the first image {tuple(first.shape[1:])}: both must have its size."
        )
    if not torch.isfinite(start.sum()):  # of a single number: isfinite copies what it is given
        raise DeepMatchingError("The flow to refine contains NaN or infinite values: fill them in first.")
    if first.shape[0] != second.shape[0]:  # one grey, one in colour
        first, second = (image.expand(3, -1, -1) for image in (first, second))
    smooth0, smooth1 = (smooth(image, chosen.sigma, 255).contiguous() for image in (first, second.to(first.device)))
    smoothness = chosen.alpha * edge_weights(smooth0, chosen.edges)
    return refined(start.permute(2, 0, 1), smooth0, smooth1, smoothness, chosen).permute(1, 2, 0).cpu().numpy()


def refined(start: Tensor, image0: Tensor, image1: Tensor, smoothness: Tensor, settings: RefinementSettings) -> Tensor:
    """The refined flow (2, H, W), from a flow (2, H, W), smoothed images (C, H, W) and α λ (H, W)."""
    if image0.device.type == "cpu" and (fast := kernels("linear_system")) and (relaxation := kernels("relaxation")):
        arrays = [tensor.contiguous().numpy() for tensor in (image0, image1, smoothness)]
        return torch.from_numpy(_refined_by_kernels(fast, relaxation, settings, start.numpy(), *arrays))
    flow = start
    for _ in range(settings.steps):
        mean, difference, inside = warp(image0, image1, flow)
        across, along = smoothness_weights(flow, smoothness)
        matrix, right = data_term(mean, difference, inside, settings)
        if settings.hold:
            pull = settings.hold * (1 - inside)
            matrix[0] += pull
            matrix[2] += pull
            right = right + pull * (start - flow)
        flow = flow + relax(matrix, right, across, along, flow, settings.iterations, settings.relaxation)
    return flow


def _refined_by_kernels(
    system: Any,
    relaxation: Any,
    settings: RefinementSettings,
    start: np.ndarray,
    image0: np.ndarray,
    image1: np.ndarray,
    smoothness: np.ndarray,
) -> np.ndarray:
    flow = start.copy(order="C")
    weights = (settings.gamma, settings.delta, settings.hold, ZETA, EPSILON)
    for _ in range(settings.steps):
        equations = system.linear_system(image0, image1, flow, start, smoothness, *weights)
        relaxation.relax(*equations, settings.iterations, settings.relaxation, flow)
        del equations  # so that its memory is free before the next ones are made
    return flow


def smooth(image: Tensor, sigma: float, factor: float = 1) -> Tensor:
    """Convolve (C, H, W) with a Gaussian, cut off at 4σ, and multiply; borders repeated."""
    if sigma == 0:
        return factor * image
    reach = math.ceil(4 * sigma)
    taps = torch.exp(-torch.arange(-reach, reach + 1, dtype=torch.float64).square() / (2 * sigma**2))
    across, along = ((scale * taps / taps.sum()).to(image.device, image.dtype) for scale in (factor, 1))
    if image.device.type == "cpu":  # a tenth of the time that convolutions take there
        row, column = across.numpy(), along.numpy()
        result = np.empty(image.shape, dtype=image.numpy().dtype)
        for plane, target in zip(image.numpy(), result, strict=True):
            cv2.sepFilter2D(plane, -1, row, column, dst=target, borderType=cv2.BORDER_REPLICATE)
        return torch.from_numpy(result)
    padded = functional.pad(image[:, None], (reach,) * 4, mode="replicate")
    return functional.conv2d(functional.conv2d(padded, along[None, None, :, None]), across[None, None, None, :])[:, 0]


def edge_weights(image: Tensor, falloff: float) -> Tensor:
    """λ = exp(−falloff ‖∇L‖), (H, W), of the luminance L in 0 … 1 of an image (C, H, W) in 0 … 255."""
    result = torch.empty_like(image[0])
    for top in range(0, len(result), _STRIP):  # some rows at a time: the steps between take six numbers a pixel
        first, end = max(0, top - 2), min(len(result), top + _STRIP)
        length = gradient_length(luminance(image[:, first : end + 2]) / 255)[top - first :][: end - top]
        result[top:end] = torch.exp(-falloff * length)
    return result


def luminance(image: Tensor) -> Tensor:
    """(H, W) of (1 or 3, H, W)."""
    weights = image.new_tensor(_LUMINANCE)
    return image[0] if image.shape[0] == 1 else torch.einsum("c,chw->hw", weights, image)


def gradient_length(image: Tensor) -> Tensor:
    """√(I_x² + I_y²) of (H, W)."""
    return derivative(image[None], 2).hypot_(derivative(image[None], 1))[0]


def derivative(image: Tensor, dim: int) -> Tensor:
    """(1, −8, 0, 8, −1) / 12 along dimension 1 (y) or 2 (x) of (C, H, W)."""
    padding = (2, 2, 0, 0) if dim == 2 else (0, 0, 2, 2)
    padded = functional.pad(image[None], padding, mode="replicate")[0]
    a, b, _, d, e = (padded.narrow(dim, n, image.shape[dim]) for n in range(5))
    return (d - b).mul_(8 / 12).sub_((e - a).mul_(1 / 12))


def warp(image0: Tensor, image1: Tensor, flow: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """(I_0 + I_w) / 2, I_w − I_0 (C, H, W) with I_w(p) = I_1(p + flow(p)), and 1 where that is in the image, else 0.

    Bilinear; outside the image its border is repeated.
    """
    if image0.device.type == "cpu" and (fast := kernels("linear_system")):
        arrays = (tensor.contiguous().numpy() for tensor in (image0, image1, flow))
        mean, difference, inside = (torch.from_numpy(array) for array in fast.warp(*arrays))
        return mean, difference, inside
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


def data_term(
    mean: Tensor, difference: Tensor, inside: Tensor, settings: RefinementSettings
) -> tuple[list[Tensor], Tensor]:
    """A (A_11, A_12, A_22, each (H, W)) and b (2, H, W) of the linearised constraints, with Ψ′.

    A grey image counts as three equal channels, as for the original, which reads it so.
    """
    x, y = derivative(mean, 2), derivative(mean, 1)
    xx, xy, yy = derivative(x, 2), derivative(x, 1), derivative(y, 1)
    xt, yt = derivative(difference, 2), derivative(difference, 1)
    terms = [(settings.gamma, [(xx, xy, xt), (xy, yy, yt)]), (settings.delta, [(x, y, difference)])]
    matrix = [torch.zeros_like(inside) for _ in range(3)]
    right = torch.zeros_like(difference[:1]).repeat(2, 1, 1)
    for weight, equations in terms:
        if weight == 0:
            continue
        a11, a12, a22, b1, b2, error = (torch.zeros_like(inside) for _ in range(6))
        for p, q, t in equations:  # p du + q dv + t = 0
            norm = 1 / (p * p + q * q + ZETA**2)
            a11 += (norm * p * p).sum(dim=0)
            a12 += (norm * p * q).sum(dim=0)
            a22 += (norm * q * q).sum(dim=0)
            b1 -= (norm * p * t).sum(dim=0)
            b2 -= (norm * q * t).sum(dim=0)
            error += (norm * t * t).sum(dim=0)
        channels = len(mean)
        scale = weight / channels * inside / torch.sqrt(3 / channels * error + EPSILON**2)
        matrix = [total + scale * a for total, a in zip(matrix, (a11, a12, a22), strict=True)]
        right = right + scale * torch.stack([b1, b2])
    return matrix, right


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


def relax(
    matrix: list[Tensor], right: Tensor, across: Tensor, along: Tensor, flow: Tensor, iterations: int, omega: float
) -> Tensor:
    """The increments d (2, H, W) after some iterations of red-black successive over-relaxation from d = 0."""
    diagonal = _pulled(torch.ones_like(flow[:1]), across, along)[0]
    right = right + _pulled(flow, across, along) - diagonal * flow
    a11, a12, a22 = matrix[0] + diagonal, matrix[1], matrix[2] + diagonal
    determinant = a11 * a22 - a12 * a12
    inverse = torch.where(determinant > 0, 1 / determinant, 0)
    rows, columns = (torch.arange(n, device=flow.device) for n in flow.shape[1:])
    odd = ((rows[:, None] + columns) % 2).bool()
    found = torch.zeros_like(flow)
    for half in range(2 * iterations):
        sums = right + _pulled(found, across, along)
        solution = inverse * torch.stack([a22 * sums[0] - a12 * sums[1], a11 * sums[1] - a12 * sums[0]])
        updated = found + omega * (solution - found)
        found = torch.where(odd if half % 2 else ~odd, updated, found)
    return found


def _pulled(values: Tensor, across: Tensor, along: Tensor) -> Tensor:
    """Σ_n s_n values_n over the four neighbours of each pixel of (C, H, W)."""
    result = torch.zeros_like(values)
    result[:, :, :-1] += across[:, :-1] * values[:, :, 1:]
    result[:, :, 1:] += across[:, :-1] * values[:, :, :-1]
    result[:, :-1] += along[:-1] * values[:, 1:]
    result[:, 1:] += along[:-1] * values[:, :-1]
    return result
