"""Variational refinement: correct a flow so that the images fit, without losing its smoothness.

The flow w = (u, v) is corrected by increments d = (du, dv) that lower the energy

    E(w) = Σ γ Ψ(‖∇I_1(p + w) − ∇I_0(p)‖²) + α λ(p) Ψ(‖∇u‖² + ‖∇v‖²) + ½ hold [p + w outside] ‖w − w_0‖²

with Ψ(s²) = √(s² + ε²), images in 0 … 255, and each linearised constraint divided by the length of its gradient,
1 / (‖∇‖² + ζ²) (Zimmer et al., IJCV 2011; Weinzaepfel et al., ICCV 2013). Every step warps I_1 by the flow, linearises
the constraints at du = dv = 0, where their Ψ′ is taken too, and relaxes the linear system

    (A + Σ_n s_n) d = b + Σ_n s_n (w_n − w + d_n),   n: the four neighbours,  s_n = α λ Ψ′ half-way to them.

Descriptions of the original leave some choices open. These were found by comparison with its output: images in 0 … 255
and not 0 … 1; one Ψ for all channels with γ divided by their number, and not one Ψ per channel; λ = exp(−edges ‖∇L‖) of
the *smoothed* image's luminance in 0 … 1; s_n with the flow's gradient half-way between the pixels; bilinear warping;
no data outside the second image.

Derivatives are (1, −8, 0, 8, −1) / 12 and those of the mean of I_0 and the warped I_1. Borders are repeated.
"""

import math

import numpy as np
import torch
from torch import Tensor

from deepmatching.errors import DeepMatchingError, check_type
from deepmatching.flow.operators.refinement_step import derivative, refinement_step
from deepmatching.flow.operators.saliency import gaussian
from deepmatching.flow.settings import RefinementSettings
from deepmatching.io.images import load_image
from deepmatching.matches import as_tensor

_LUMINANCE = (0.299, 0.587, 0.114)  #: what red, green and blue add to the luminance
_STRIP = 64  #: rows whose weights a CPU computes together


@torch.no_grad()
def refine(
    flow: Tensor | np.ndarray,
    image0: Tensor,
    image1: Tensor,
    settings: RefinementSettings = RefinementSettings(),  # noqa: B008 - frozen
) -> Tensor:
    """Refine a flow (H, W, 2) between images (1 or 3, H, W) and (1 or 3, H', W') in [0, 1], on their device."""
    check_type("settings", settings, RefinementSettings)
    image0, image1 = load_image(image0, "image0"), load_image(image1, "image1")
    start = as_tensor(flow, "flow").to(image0.device, torch.float32)
    if start.ndim != 3 or start.shape[2] != 2 or start.shape[:2] != image0.shape[1:]:
        sizes = f"{tuple(start.shape)} and the first image {tuple(image0.shape[1:])}"
        raise DeepMatchingError(f"The flow is {sizes}: both must have its size.")
    if not torch.isfinite(start.sum()):  # of a single number: isfinite copies its argument
        raise DeepMatchingError("The flow to refine contains NaN or infinite values: fill them in first.")
    return refine_finite(start, image0, image1, settings)


@torch.no_grad()
def refine_finite(start: Tensor, image0: Tensor, image1: Tensor, settings: RefinementSettings) -> Tensor:
    """Refine a flow (H, W, 2) float32 that is known to be finite, as :func:`refine` does; never wait for a GPU."""
    if settings.steps == 0:
        return start.clone()
    if image0.shape[0] != image1.shape[0]:  # one grey, one in colour
        image0, image1 = (image.expand(3, -1, -1) for image in (image0, image1))
    smooth0, smooth1 = (smooth(i, settings.sigma, 255).contiguous() for i in (image0, image1))
    smoothness = settings.alpha * edge_weights(smooth0, settings.edges)
    start = start.permute(2, 0, 1)
    result = start.clone(memory_format=torch.contiguous_format)
    for _ in range(settings.steps):
        refinement_step(
            result, start, smooth0, smooth1, smoothness,
            settings.gamma, settings.hold, settings.iterations, settings.relaxation,
        )  # fmt: skip
    return result.permute(1, 2, 0)


def smooth(image: Tensor, sigma: float, factor: float = 1) -> Tensor:
    """Convolve (C, H, W) with a Gaussian, cut off at 4σ, and multiply; borders repeated."""
    return factor * image if sigma == 0 else gaussian(image, sigma, math.ceil(4 * sigma), factor)


def edge_weights(image: Tensor, falloff: float) -> Tensor:
    """Return λ = exp(−falloff ‖∇L‖), (H, W), of the luminance L in 0 … 1 of an image (C, H, W) in 0 … 255."""
    result = torch.empty_like(image[0])
    strip = len(result) if image.is_cuda else _STRIP
    for top in range(0, len(result), strip):  # some rows at a time: intermediate results take six numbers a pixel
        first, end = max(0, top - 2), min(len(result), top + strip)
        rows = image[:, first : end + 2]
        if len(rows) == 3:
            red, green, blue = _LUMINANCE
            rows = (red * rows[:1]).add_(rows[1], alpha=green).add_(rows[2], alpha=blue)
        light = rows / 255
        length = derivative(light, 2).hypot_(derivative(light, 1))[0, top - first :][: end - top]
        result[top:end] = torch.exp(-falloff * length)
    return result
