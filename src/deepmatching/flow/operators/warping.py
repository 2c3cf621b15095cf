"""Warping the second image by a flow."""

from __future__ import annotations

import torch
from torch import Tensor

from deepmatching.kernels.registry import operator


@operator()
def warp(image0: Tensor, image1: Tensor, flow: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """I_w(p) = I_1(p + flow(p)), compared with I_0. Bilinear; the border of I_1 is repeated.

    Args:
        image0: (C, H, W).
        image1: (C, H', W').
        flow: (2, H, W).

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
