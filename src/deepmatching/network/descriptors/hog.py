"""The hand-crafted descriptor of the original DeepMatching (GPU version 1.0), as a differentiable module."""

from __future__ import annotations

import math
from numbers import Integral

import torch
from torch import Tensor

from deepmatching.errors import DeepMatchingError
from deepmatching.network.descriptors.base import Descriptor
from deepmatching.network.operators.hog import hog_cells


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
