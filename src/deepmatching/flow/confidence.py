"""The confidence of a flow at each pixel."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from deepmatching.flow.interpolation import Interpolation
from deepmatching.flow.operators.warping import warp
from deepmatching.flow.refinement import smooth

#: Constant and weights of a logistic regression of "the error is below 3 pixels" on :func:`evidence`. It was fitted by
#: ``benchmarks/confidence.py`` on pairs of MPI Sintel, KITTI, Flying Chairs and Middlebury, with equal weight for each
#: data set, the model ``compact`` and default settings.
CONSTANT, WEIGHTS = 5.60, (-2.29, -0.81, -0.57, -2.19)

#: Reference points are 8 pixels apart, so with a match at each of them no pixel is further than this from a match.
_NEAR = 6


class Origin(NamedTuple):
    """What a flow was interpolated from, on its device."""

    label: Tensor  #: (H, W), the seed that each pixel belongs to
    points: Tensor  #: (S, 2), where the seeds start
    spread: Tensor  #: (S,), how much their neighbours disagree with their models, in pixels
    support: Tensor  #: (S,), number of these neighbours
    edges: Tensor  #: (H, W) float32, the edge strength


def origin_of(interpolation: Interpolation, device: torch.device) -> Origin:
    """What a flow of ``interpolate`` was made from."""
    arrays = (interpolation.cells.label, interpolation.points, interpolation.spread, interpolation.support)
    return Origin(*(torch.from_numpy(array).to(device) for array in (*arrays, interpolation.edges)))


def confidence(flow: Tensor, interpolation: Interpolation, image0: Tensor, image1: Tensor) -> np.ndarray:
    """:func:`probability` as an array; ``interpolation`` is what the flow came from."""
    return probability(flow, origin_of(interpolation, flow.device), image0, image1).cpu().numpy()


@torch.no_grad()
def probability(flow: Tensor, origin: Origin, image0: Tensor, image1: Tensor) -> Tensor:
    """The estimated probability that a flow is less than 3 pixels off: (H, W) float32, 0 … 1.

        1 / (1 + exp(−(5.60 − 2.29 ln(0.1 + spread + 8/n) − 0.81 ln(4 + reach) − 0.57 ln(1 + misfit) − 2.19 edge)))

    See :func:`evidence` for the terms and the arguments.
    """
    logit = torch.full_like(origin.edges, CONSTANT)
    for weight, values in zip(WEIGHTS, evidence(flow, origin, image0, image1), strict=True):
        logit.add_(values, alpha=weight)
    return logit.sigmoid_()


@torch.no_grad()
def evidence(flow: Tensor, origin: Origin, image0: Tensor, image1: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The evidence against each pixel of a flow: four tensors (H, W) float32.

    * ln(0.1 + spread + 8/n): how much the n neighbouring matches disagree with their common model, in pixels.
    * ln(4 + reach): distance to the nearest match beyond 6 pixels, plus the distance of the target to the second image.
    * ln(1 + misfit): mean difference between the first image and the warped second one, in 0 … 255, of the images
      smoothed by 1 pixel; averaged over a neighbourhood of about 3 pixels.
    * edge: the edge strength, averaged over a neighbourhood of about 2 pixels.

    Args:
        flow: (H, W, 2) float32, the interpolated flow, refined or not.
        origin: what the flow came from.
        image0, image1: (1 or 3, H, W) in [0, 1], on the flow's device.
    """
    if image0.shape[0] != image1.shape[0]:
        image0, image1 = (image.expand(3, -1, -1) for image in (image0, image1))
    field = flow.permute(2, 0, 1).contiguous()
    difference = torch.zeros_like(field[:1])
    at_once = len(image0) if flow.is_cuda else 1  # one channel at a time takes a third of the memory
    for planes0, planes1 in zip(image0.split(at_once), image1.split(at_once), strict=True):
        warped = warp(smooth(planes0, 1.0, 255), smooth(planes1, 1.0, 255), field)
        difference += warped[1].abs_().sum(dim=0).div_(len(image0))
    misfit = smooth(difference, 3.0)[0]
    spread = torch.log(0.1 + origin.spread + 8 / origin.support).float()
    reach = _reach(field, origin, image1.shape[1:])
    edge = smooth(origin.edges[None], 2.0)[0]
    return _of_pixels(spread, origin), reach.add_(4).log_(), misfit.add_(1).log_(), edge


def _of_pixels(values: Tensor, origin: Origin) -> Tensor:
    """The value (S,) of each pixel's seed, (H, W)."""
    return values.index_select(0, origin.label.flatten()).view(origin.label.shape)


def _reach(flow: Tensor, origin: Origin, size: torch.Size) -> Tensor:
    """Distance of each pixel (H, W) to its match beyond 6 pixels, plus that of its target to an image of this size."""
    rows, columns = (torch.arange(n, dtype=torch.float32, device=flow.device) for n in origin.label.shape)
    x, y = (_of_pixels(values, origin) for values in origin.points.float().unbind(dim=1))
    reach = torch.hypot(columns - x, rows[:, None] - y).sub_(_NEAR).clamp_(min=0)
    right, down = columns + flow[0], rows[:, None] + flow[1]
    right -= right.clamp(0, size[1] - 1)
    down -= down.clamp(0, size[0] - 1)
    return reach + torch.hypot(right, down)
