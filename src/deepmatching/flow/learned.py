"""Flow by the dense network, in place of interpolation."""

from __future__ import annotations

import time

import torch
from torch import Tensor
from torch.nn import functional

from deepmatching.defaults import RIGHT
from deepmatching.dense import DenseNetwork
from deepmatching.dense.network import probability_within
from deepmatching.errors import DeepMatchingError
from deepmatching.flow.refinement import refine_finite
from deepmatching.flow.result import FlowResult, FlowTensors
from deepmatching.flow.settings import FlowSettings
from deepmatching.inference import Frame
from deepmatching.operators.targets import Decoded


@torch.no_grad()
def dense_to_flow(
    dense: DenseNetwork | None, decoded: Decoded, first: Frame, second: Frame, settings: FlowSettings
) -> FlowResult:
    """The flow from one frame to the next by the dense network, refined.

    Args:
        dense: the network of the model that made the matches.
        decoded: the matches from the first frame to the second; its pair 0.
        settings: those of the refinement count.
    """
    if dense is None:
        raise DeepMatchingError(
            "The preset 'learned' needs a model with a dense network: use compact, or train one with "
            "`deepmatching train flow`."
        )
    start = time.perf_counter()
    found = dense(first.on_device[None], decoded, first.cells, second.cells, first.geometry)
    size = first.on_device.shape[1], first.on_device.shape[2]
    flow = _extended(found.flow, size)[0].permute(1, 2, 0).contiguous()
    flow = refine_finite(flow, first.on_device, second.on_device, settings.refinement)
    certainty = _extended(probability_within(found.mixture, RIGHT)[:, None], size)[0, 0]
    occlusion = None if decoded.hidden is None else occlusion_of(decoded.hidden[0], flow)
    count, agreement = decoded.verified[0].sum(), torch.full_like(certainty[0, 0], torch.nan)
    tensors = FlowTensors(flow, certainty, count, agreement, occlusion)
    if flow.is_cuda:
        return FlowResult.on_device(tensors, dict)
    hidden = None if occlusion is None else occlusion.numpy()
    seconds = {"dense flow": time.perf_counter() - start}
    return FlowResult(flow.numpy(), certainty.numpy(), int(count), seconds, occlusion=hidden)


def occlusion_of(hidden: Tensor, flow: Tensor) -> Tensor:
    """The probability that each pixel is not visible in the second image, (H, W) float32.

    That of the reference points, interpolated between them; and 1 where the flow leaves the image.

    Args:
        hidden: (H_0, W_0), of the reference points.
        flow: (H, W, 2).
    """
    height, width = flow.shape[:2]
    step = min(height // hidden.shape[0], width // hidden.shape[1])  # α₀: the rest is less than one patch
    fine = functional.interpolate(hidden[None, None], scale_factor=step, mode="bilinear", align_corners=False)
    fine = _extended(fine, (height, width))[0, 0]
    x = torch.arange(width, device=flow.device) + flow[..., 0]
    y = torch.arange(height, device=flow.device)[:, None] + flow[..., 1]
    outside = (x < -0.5) | (x > width - 0.5) | (y < -0.5) | (y > height - 0.5)
    return torch.where(outside, 1.0, fine)


def _extended(maps: Tensor, size: tuple[int, int]) -> Tensor:
    """Maps (B, C, h, w) cut or extended to this size by repeating the last row and column."""
    below, right = (max(0, side - own) for side, own in zip(size, maps.shape[2:], strict=True))
    return functional.pad(maps, (0, right, 0, below), mode="replicate")[:, :, : size[0], : size[1]]
