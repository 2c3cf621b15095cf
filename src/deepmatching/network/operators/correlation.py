"""Correlation (CORR) of descriptors, eq. (2) of the paper: the first score volume S_0."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn.grad import conv2d_input, conv2d_weight

from deepmatching.geometry.discretization import Geometry, overlap
from deepmatching.geometry.targets import rectification, reference_patches
from deepmatching.kernels.registry import operator

TILE = 8  #: reference points of a row that share one convolution (radius only)


@operator(differentiable=True)
def correlation(cells0: Tensor, cells1: Tensor, geometry: Geometry, patch: int) -> Tensor:
    """Return S̃_0(q|p) = ⟨φ(p|I_0), φ(q|I_1)⟩ for all target points q of all reference points p.

    φ is a patch of ``patch`` × ``patch`` cells (or a single vector per position, ``patch`` = 1), so the scores of
    one p are the convolution of the target's cells with p's patch as the filter. A target patch that sticks out
    of the image by up to half its side is rectified: its score is divided by the visible fraction of its cells.
    Target points off the image score 0.

    Args:
        cells0, cells1: descriptors, (B, C, h0, w0) and (B, C, h1, w1). For ``patch`` > 1 these are cells between
            positions, (used size) / γ₀ along each axis; for ``patch`` = 1, vectors at positions, one more.
        geometry: the discretisation.
        patch: side of a patch in cells: even, or 1.

    Returns:
        S̃_0, (B, H_0, W_0, h_0, w_0), before ReLU and power.
    """
    correlate = _windows if geometry.relative else _everywhere
    pairs = zip(reference_patches(cells0, geometry, patch), cells1, strict=True)
    scores = torch.stack([correlate(filters, cells, geometry, patch) for filters, cells in pairs])
    rows, columns = (f.to(scores.dtype).to(scores.device) for f in rectification(geometry, patch))
    return scores.mul_(rows[:, None, :, None]).mul_(columns[None, :, None, :])


def _everywhere(filters: Tensor, cells: Tensor, geometry: Geometry, patch: int) -> Tensor:
    """Return the scores of all target positions for all reference points: (H_0, W_0, h_0, w_0)."""
    return Convolution.apply(cells[None], filters.flatten(0, 1), patch // 2, 1)[0].unflatten(0, geometry.grid(0))


def _windows(filters: Tensor, cells: Tensor, geometry: Geometry, patch: int) -> Tensor:
    """Return the scores of the (2R_0 + 1)² target positions around each reference point: (H_0, W_0, h_0, w_0).

    Along a row of reference points, ``TILE`` neighbours at a time share a band of target cells: each group of a
    grouped convolution correlates one band with its points' patches, and each point keeps its own stretch.
    """
    (rows, columns), (side, _), step = geometry.grid(0), geometry.window(0), geometry.step
    tiles, reach = -(-columns // TILE), side + patch - 1
    width = reach + (TILE - 1) * step
    top, left = (cell - patch // 2 for cell in geometry.first_target)
    padded = cells.new_zeros(cells.shape[0], (rows - 1) * step + reach, (tiles - 1) * TILE * step + width)
    used = overlap(top, padded.shape[1], cells.shape[1]), overlap(left, padded.shape[2], cells.shape[2])
    if used[0] and used[1]:
        padded[:, used[0][0], used[1][0]] = cells[:, used[0][1], used[1][1]]
    filters = F.pad(filters, (0, 0, 0, 0, 0, 0, 0, tiles * TILE - columns))

    result = []
    for i in range(rows):
        band = padded[:, i * step : i * step + reach]
        bands = band.unfold(2, width, TILE * step).permute(2, 0, 1, 3)  # (tiles, C, reach, width)
        scores = Convolution.apply(bands.flatten(0, 1)[None], filters[i], 0, tiles)[0].unflatten(0, (tiles, TILE))
        own = [scores[:, t, :, t * step : t * step + side] for t in range(TILE)]
        result.append(torch.stack(own, dim=1).flatten(0, 1)[:columns])
    return torch.stack(result)


class Convolution(torch.autograd.Function):
    """Do ``conv2d`` in float32, forward and backward. TF32, PyTorch's choice on CUDA, would change the fourth digit."""

    @staticmethod
    def forward(ctx: Any, image: Tensor, filters: Tensor, padding: int, groups: int) -> Tensor:
        ctx.save_for_backward(image, filters)
        ctx.padding, ctx.groups = padding, groups
        with full_precision():
            return F.conv2d(image, filters, padding=padding, groups=groups)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, Tensor | None, None, None]:
        image, filters = ctx.saved_tensors
        settings = {"padding": ctx.padding, "groups": ctx.groups}
        with full_precision():
            to_image = conv2d_input(image.shape, filters, gradient, **settings) if ctx.needs_input_grad[0] else None
            to_filters = conv2d_weight(image, filters.shape, gradient, **settings) if ctx.needs_input_grad[1] else None
        return to_image, to_filters, None, None


@contextmanager
def full_precision() -> Iterator[None]:
    """Keep CUDA convolutions in float32 inside this block."""
    allowed = torch.backends.cudnn.allow_tf32
    torch.backends.cudnn.allow_tf32 = False
    try:
        yield
    finally:
        torch.backends.cudnn.allow_tf32 = allowed
