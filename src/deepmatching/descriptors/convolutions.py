"""Helpers of the learned descriptors: fast convolutions, colour and normalisation."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from deepmatching.errors import DeepMatchingError
from deepmatching.limits import release_freed

#: Memory in bytes that a band of rows may take while it is described, about.
BAND_BYTES = 2**28

#: Bands start at multiples of this many rows.
ALIGNMENT = 32


def check_downscale(name: str, downscale: int) -> None:
    """Raise unless ``downscale`` is 1: the strides of the learned descriptors are fixed."""
    if downscale != 1:
        raise DeepMatchingError(
            f"The {name} descriptor has cells of 2 pixels: downscale must be 1, not {downscale}; use hog for others."
        )


def as_rgb(image: Tensor) -> Tensor:
    """(B, 1 or 3, H, W) → (B, 3, H, W)."""
    return image.expand(-1, 3, -1, -1) if image.shape[1] == 1 else image


def rectified(convolution: nn.Conv2d, x: Tensor) -> Tensor:
    """max(0, convolution(x)), (B, C, H, W) → (B, C', H', W').

    For inference on CUDA, cuDNN adds the bias and applies the ReLU in the pass that writes the result.
    """
    if x.is_cuda and not torch.is_grad_enabled() and torch.backends.cudnn.is_available():
        assert convolution.bias is not None and not isinstance(convolution.padding, str)
        dtype = torch.get_autocast_dtype("cuda") if torch.is_autocast_enabled("cuda") else x.dtype
        x, weight, bias = (t.to(dtype) for t in (x, convolution.weight, convolution.bias))
        stride, padding, dilation = convolution.stride, convolution.padding, convolution.dilation
        return torch.cudnn_convolution_relu(x, weight, bias, stride, padding, dilation, convolution.groups)
    return F.relu(convolution(x), inplace=True)


def normalised(x: Tensor, norm: float = 1.0) -> Tensor:
    """x (B, C, H, W) scaled to this L2 norm along the channels, at least in float32. Zero stays zero.

    Without gradients, x itself is overwritten.
    """
    x = x.float() if x.dtype in (torch.float16, torch.bfloat16) else x
    factors = norm / torch.linalg.vector_norm(x, dim=1, keepdim=True).clamp(min=1e-6)
    return x * factors if torch.is_grad_enabled() else x.mul_(factors)


def band_rows(rows: int, columns: int, working: int, around: int = 0) -> int:
    """Rows of an image of this size that are described at a time; all of them if ``BAND_BYTES`` are enough.

    The number does not depend on the free memory, so that results do not either.
    """
    if working * rows * columns <= BAND_BYTES:
        return rows
    fitting = max(BAND_BYTES // (working * columns) - 2 * around, 4 * around)
    return min(rows, (fitting // ALIGNMENT + 1) * ALIGNMENT)


def in_bands(
    layers: Callable[[Tensor], Tensor], image: Tensor, working: int, around: int, alignment: int, stride: int
) -> Tensor:
    """``layers(image)``, of a large image for inference on a CPU in bands of rows: full maps take the most memory.

    Args:
        layers: convolutions, (B, C, H, W) → (B, C', H / stride, W / stride).
        image: (B, C, H, W).
        working: bytes per pixel that they need at most.
        around: the number of rows of pixels around that a row of the result depends on.
        alignment: a band must start at a multiple of this many rows; it divides ``ALIGNMENT``.
        stride: pixels from one result to the next.
    """
    height, width = image.shape[2:]
    around = -(-around // alignment) * alignment
    rows = band_rows(height, width, working, around)
    if rows == height or image.device.type != "cpu" or torch.is_grad_enabled():
        return layers(image)
    result = torch.empty(0)
    for top in range(0, height, rows):
        first, last = max(0, top - around), min(height, top + rows + around)
        part = layers(image[:, :, first:last])
        if top == 0:
            shape = (part.shape[0], part.shape[1], height // stride, part.shape[3])
            result = torch.empty(shape, dtype=part.dtype, memory_format=torch.channels_last)
        target = result[:, :, top // stride : (top + rows) // stride]
        target.copy_(part[:, :, (top - first) // stride :][:, :, : target.shape[2]])
        del part
    release_freed()  # else the allocator keeps some of the bands' maps
    return result


def channels_last(module: nn.Module) -> None:
    """Store the weights as NHWC, the fastest layout for these convolutions."""
    for parameter in module.parameters():
        if parameter.ndim == 4:
            parameter.data = parameter.data.contiguous(memory_format=torch.channels_last)


def joined(fine: Tensor, coarse: Tensor) -> Tensor:
    """``fine`` + ``coarse`` at twice its size, cropped to the size of ``fine``."""
    coarse = F.interpolate(coarse, scale_factor=2, mode="bilinear", align_corners=False)
    return fine + coarse[:, :, : fine.shape[2], : fine.shape[3]]
