"""Helpers of the learned descriptors: fast convolutions, colour and normalisation."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from deepmatching.errors import DeepMatchingError


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
    """x (B, C, H, W) scaled to this L2 norm along the channels, at least in float32. Zero stays zero."""
    x = x.float() if x.dtype in (torch.float16, torch.bfloat16) else x
    return x * (norm / torch.linalg.vector_norm(x, dim=1, keepdim=True).clamp(min=1e-6))


def channels_last(module: nn.Module) -> None:
    """Store the weights as NHWC, the fastest layout for these convolutions."""
    for parameter in module.parameters():
        if parameter.ndim == 4:
            parameter.data = parameter.data.contiguous(memory_format=torch.channels_last)
