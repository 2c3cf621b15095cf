"""Histograms of oriented gradients (see :class:`deepmatching.network.descriptors.HOG`)."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from deepmatching.kernels.registry import operator


@operator()
def hog_cells(
    image: Tensor,
    directions: Tensor,
    stride: int,
    sigmas: tuple[float, float, float],
    slope: float,
    ninth: float,
) -> Tensor:
    """The cells of HOG, each of norm 1/4.

    Args:
        image: (B, 1 or 3, H, W), values in [0, 1].
        directions: (N, 2), unit vectors (x, y); a power of two of them.
        stride: pixels per cell along each axis.
        sigmas: σ of the three smoothing steps.
        slope: of the saturation 2/(1 + e^{−slope v}) − 1.
        ninth: value of the constant channel.

    Returns:
        (B, N + 1, H / stride, W / stride).
    """
    grey = image.mean(dim=1, keepdim=True) * 255
    smooth = smoothing(grey, sigmas[0], border=1)  # one pixel larger, so that the gradient is 'valid'
    gradient = torch.cat(
        [
            smooth[:, :, 1:-1, 2:] - smooth[:, :, 1:-1, :-2],
            smooth[:, :, 2:, 1:-1] - smooth[:, :, :-2, 1:-1],
        ],
        dim=1,
    )
    projected = torch.einsum("oc,bchw->bohw", directions.to(gradient.dtype), gradient)
    histogram = smoothing(projected.relu(), sigmas[1])
    saturated = 2 / (1 + torch.exp(-slope * histogram)) - 1
    oriented = smoothing(saturated, sigmas[2])
    constant = torch.full_like(oriented[:, :1], ninth)
    cells = F.max_pool2d(torch.cat([oriented, constant], dim=1), stride)
    return cells / (4 * (cells.square().sum(dim=1, keepdim=True) + 1e-16).sqrt())


def smoothing(image: Tensor, sigma: float, border: int = 0) -> Tensor:
    """Normalised convolution with a 5 × 5 Gaussian, evaluated up to ``border`` pixels outside the image.

    The kernel is separable and so is its mass inside the image, hence two passes of five taps each.

    Args:
        image: (B, C, H, W).

    Returns:
        (B, C, H + 2·border, W + 2·border).
    """
    taps = torch.arange(-2, 3, dtype=torch.float64)  # weights are made on the CPU: not every device has float64
    kernel = torch.exp(-taps.square() / (2 * sigma**2))
    for axis in (2, 3):
        n = image.shape[axis]
        padding = [0, 0, 0, 0]
        padding[2 * (3 - axis)] = padding[2 * (3 - axis) + 1] = 2 + border
        padded = F.pad(image, padding)
        inside = F.pad(torch.ones(n, dtype=torch.float64), (2 + border, 2 + border))
        mass = inside.unfold(0, 5, 1) @ kernel
        weights = (kernel[:, None] / mass).to(image.dtype).to(image.device)  # (5, n + 2·border)
        weights = weights[:, :, None] if axis == 2 else weights
        size = n + 2 * border
        image = sum((padded.narrow(axis, t, size) * w for t, w in enumerate(weights)), start=padded.new_zeros(()))
    return image
