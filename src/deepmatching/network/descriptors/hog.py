"""The hand-crafted descriptor of the original DeepMatching (GPU version 1.0), as a differentiable module."""

import math
from collections.abc import Callable
from numbers import Integral

import torch
import torch.nn.functional as F
from torch import Tensor

from deepmatching.errors import DeepMatchingError
from deepmatching.kernels.registry import operator
from deepmatching.network.descriptors.base import Descriptor


class HOG(Descriptor):
    """Histograms of oriented gradients: 8 orientations and a constant, normalised per cell.

    In order: grey (mean of the channels, 0…255), smoothing, gradient by [−1 0 1], projection on 8 directions
    (negative parts cut), smoothing, saturation 2/(1 + e^{−0.2 v}) − 1, smoothing, a ninth channel of constant
    0.3, max pooling over f × f pixels, and L2 norm 1/n for each cell's 9-vector, so that a patch of n × n cells has
    norm 1. All smoothing uses a normalised 5 × 5 Gaussian: at the border, the part of it inside the image.

    Args:
        downscale: a cell is 2^downscale pixels wide.
        patch: n, cells along the side of a patch: 4 as in the original program. ``HOG(downscale=0, patch=8)`` has the
            paper's discretisation to the letter (γ₀ = 1, α₀ = δ₀ = 8 pixels), at four times the work and memory.
    """

    orientations = 8
    slope = 0.2
    ninth = 0.3
    channels = 9
    working_on_gpu = 145  # measured; there is no kernel
    scalable = True

    #: σ of the three smoothing steps: all nominally 1, the last with the original's slightly different constant.
    sigmas = (1 / 0.996, 1 / 0.996, 1 / 1.004)

    def __init__(self, downscale: int = 1, patch: int = 4) -> None:
        super().__init__()
        if patch not in (4, 8):
            raise DeepMatchingError(f"patch must be 4 or 8 cells, not {patch!r}.")
        self.patch = patch
        if not isinstance(downscale, Integral) or downscale not in range(5):
            raise DeepMatchingError(f"downscale must be a whole number from 0 to 4, not {downscale!r}.")
        self.stride = 2**downscale
        angles = torch.arange(self.orientations, dtype=torch.float64) * (2 * math.pi / self.orientations)
        directions = torch.stack([angles.cos(), angles.sin()], dim=1).float()
        self.register_buffer("directions", directions, persistent=False)
        self.directions: Tensor

    def forward(self, image: Tensor) -> Tensor:
        cells = hog_cells(image, self.directions, self.stride, self.sigmas, self.slope, self.ninth)
        return cells if self.patch == 4 else cells * (4 / self.patch)

    def settings(self) -> dict[str, int]:
        return {"downscale": self.stride.bit_length() - 1, **({} if self.patch == 4 else {"patch": self.patch})}


@operator(cuda=())
def hog_cells(
    image: Tensor, directions: Tensor, stride: int, sigmas: tuple[float, float, float], slope: float, ninth: float
) -> Tensor:
    """Compute the cells of HOG, each of norm 1/4: (B, N + 1, H / stride, W / stride).

    Args:
        image: (B, 1 or 3, H, W), values in [0, 1].
        directions: (N, 2), unit vectors (x, y); a power of two of them.
        stride: pixels per cell along each axis.
        sigmas: σ of the three smoothing steps.
        slope: of the saturation 2/(1 + e^{−slope v}) − 1.
        ninth: value of the constant channel.
    """
    return cells_of(image, directions, stride, sigmas, slope, ninth)


def smoothing(image: Tensor, sigma: float, border: int = 0) -> Tensor:
    """Convolve (B, C, H, W) with a normalised 5 × 5 Gaussian, up to ``border`` pixels outside the image.

    The kernel is separable and so is its mass inside the image, hence two passes of five taps each. The result is
    (B, C, H + 2·border, W + 2·border).
    """
    # Weights are made on the CPU where a device may lack float64, but not for CUDA: a graph cannot record the copy.
    device = image.device if image.is_cuda else "cpu"
    taps = torch.arange(-2, 3, dtype=torch.float64, device=device)
    kernel = torch.exp(-taps.square() / (2 * sigma**2))
    for axis in (2, 3):
        n, size = image.shape[axis], image.shape[axis] + 2 * border
        around = (2 + border, 2 + border)
        image = F.pad(image, (0, 0, *around) if axis == 2 else around)
        mass = F.pad(torch.ones(n, dtype=torch.float64, device=device), around).unfold(0, 5, 1) @ kernel
        weights = (kernel[:, None] / mass).to(image.dtype).to(image.device)  # (5, size)
        weights = weights[:, :, None] if axis == 2 else weights
        smooth = image.narrow(axis, 0, size) * weights[0]
        for t in range(1, 5):
            smooth.addcmul_(image.narrow(axis, t, size), weights[t])
        image = smooth
    return image


def cells_of(
    image: Tensor,
    directions: Tensor,
    stride: int,
    sigmas: tuple[float, float, float],
    slope: float,
    ninth: float,
    smooth: Callable[..., Tensor] = smoothing,
) -> Tensor:
    """Return what :func:`hog_cells` does, with this form of :func:`smoothing`."""
    grey = image.mean(dim=1, keepdim=True) * 255
    smoothed = smooth(grey, sigmas[0], border=1)  # one pixel larger, so that the gradient is 'valid'
    across = smoothed[:, :, 1:-1, 2:] - smoothed[:, :, 1:-1, :-2]
    down = smoothed[:, :, 2:, 1:-1] - smoothed[:, :, :-2, 1:-1]
    gradient = torch.cat([across, down], dim=1)
    oriented = torch.einsum("oc,bchw->bohw", directions.to(gradient.dtype), gradient).relu()  # one map held at a time
    oriented = 2 / (1 + torch.exp(-slope * smooth(oriented, sigmas[1]))) - 1
    oriented = smooth(oriented, sigmas[2])
    constant = torch.full_like(oriented[:, :1], ninth)
    cells = F.max_pool2d(torch.cat([oriented, constant], dim=1), stride)
    return cells / (4 * (cells.square().sum(dim=1, keepdim=True) + 1e-16).sqrt())
