"""The occlusion of a flow: how likely each pixel is not visible in the second image."""

from collections.abc import Sequence

import torch
from torch import Tensor

from deepmatching.geometry.targets import at_pixels


def occlusion_of(occluded: Tensor, flow: Tensor, size1: Sequence[int]) -> Tensor:
    """Return the probability that each pixel is not visible in the second image, (H, W) float32.

    That of the reference points, ``occluded`` (H_0, W_0), interpolated; 1 where the flow (H, W, 2) leaves the second
    image, whose rows and columns are ``size1``.
    """
    height, width = flow.shape[:2]
    x = torch.arange(width, device=flow.device) + flow[..., 0]
    y = torch.arange(height, device=flow.device)[:, None] + flow[..., 1]
    outside = (x < -0.5) | (x > size1[1] - 0.5) | (y < -0.5) | (y > size1[0] - 0.5)
    return torch.where(outside, 1.0, at_pixels(occluded, (height, width)))
