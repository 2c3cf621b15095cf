"""What the learned descriptors share: convolutions at the right speed, colour, and unit length."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn


def as_rgb(image: Tensor) -> Tensor:
    """(B, 1 or 3, H, W) → (B, 3, H, W)."""
    return image.expand(-1, 3, -1, -1) if image.shape[1] == 1 else image


def rectified(convolution: nn.Conv2d, x: Tensor) -> Tensor:
    """max(0, convolution(x)), (B, C, H, W) → (B, C', H', W').

    For inference on CUDA, cuDNN adds the bias and cuts at 0 in the pass that writes the result.
    """
    if x.is_cuda and not torch.is_grad_enabled() and torch.backends.cudnn.is_available():
        assert convolution.bias is not None and not isinstance(convolution.padding, str)
        dtype = torch.get_autocast_dtype("cuda") if torch.is_autocast_enabled("cuda") else x.dtype
        x, weight, bias = (t.to(dtype) for t in (x, convolution.weight, convolution.bias))
        stride, padding, dilation = convolution.stride, convolution.padding, convolution.dilation
        return torch.cudnn_convolution_relu(x, weight, bias, stride, padding, dilation, convolution.groups)
    return F.relu(convolution(x), inplace=True)


def normalised(x: Tensor, norm: float = 1.0) -> Tensor:
    """x scaled to this L2 norm along the channels, in float32 at least; (B, C, H, W). Zero stays zero."""
    x = x.float() if x.dtype in (torch.float16, torch.bfloat16) else x
    return x * (norm / torch.linalg.vector_norm(x, dim=1, keepdim=True).clamp(min=1e-6))


def channels_last(module: nn.Module) -> None:
    """Store the filters as NHWC, the layout in which these convolutions are fastest."""
    for parameter in module.parameters():
        if parameter.ndim == 4:
            parameter.data = parameter.data.contiguous(memory_format=torch.channels_last)
