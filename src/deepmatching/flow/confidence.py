"""The confidence of a flow at each pixel."""

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from deepmatching.flow.interpolation import Interpolation, MatchSource
from deepmatching.flow.operators.refinement_step import warp
from deepmatching.flow.refinement import smooth
from deepmatching.geometry.targets import at_pixels

#: Constant and weights of a logistic regression of "the error is below 3 pixels" on :func:`evidence`, which
#: ``benchmarks/confidence.py`` fitted on MPI Sintel, KITTI, Flying Chairs and Middlebury, with equal weight for each.
WEIGHTS = (5.79, -1.24, -0.71, -0.47, -2.23, -3.82)
WEIGHTS_WITHOUT_POINTS = (5.60, -2.29, -0.81, -0.57, -2.19)  #: the same where no reference points are judged
_WINDOW = 5  #: side of the windows whose reference points are averaged
#: Reference points are 8 pixels apart, so with a match at each of them no pixel is further than this from a match.
_NEAR = 6


def confidence(flow: Tensor, interpolation: Interpolation, image0: Tensor, image1: Tensor) -> np.ndarray:
    """Return :func:`probability` as an array; ``interpolation`` is what the flow came from."""
    source = MatchSource(*(tensor.to(flow.device) for tensor in interpolation.source))
    return probability(flow, source, image0, image1).cpu().numpy()


@torch.no_grad()
def probability(
    flow: Tensor, source: MatchSource, image0: Tensor, image1: Tensor, unmatched: Tensor | None = None
) -> Tensor:
    """Return the estimated probability that a flow is less than 3 pixels off: (H, W) float32, 0 … 1.

    1 / (1 + exp(−(5.79 − 1.24 ln(0.1 + spread + 8/n) − 0.71 ln(4 + reach) − 0.47 ln(1 + misfit) − 2.23 edge
    − 3.82 unmatched))), or without reference points
    1 / (1 + exp(−(5.60 − 2.29 ln(0.1 + spread + 8/n) − 0.81 ln(4 + reach) − 0.57 ln(1 + misfit) − 2.19 edge)))
    """
    constant, *weights = WEIGHTS_WITHOUT_POINTS if unmatched is None else WEIGHTS
    logit = torch.full_like(source.edges, constant)
    for weight, values in zip(weights, evidence(flow, source, image0, image1, unmatched), strict=True):
        logit.add_(values, alpha=weight)
    return logit.sigmoid_()


@torch.no_grad()
def evidence(
    flow: Tensor, source: MatchSource, image0: Tensor, image1: Tensor, unmatched: Tensor | None = None
) -> list[Tensor]:
    """Return the evidence against each pixel of a flow (H, W, 2), refined or not: tensors (H, W) float32.

    * ln(0.1 + spread + 8/n): how much the n neighbouring matches disagree with their common model, in pixels.
    * ln(4 + reach): distance to the nearest match beyond 6 pixels, plus the distance of the target to the second image.
    * ln(1 + misfit): mean difference between the first image and the warped second one, in 0 … 255, both smoothed by
      1 pixel, averaged over a neighbourhood of about 3 pixels.
    * edge: the edge strength, averaged over a neighbourhood of about 2 pixels.
    * unmatched: how likely a reference point is visible and its match wrong, ``Decoded.unmatched`` (H_0, W_0), averaged
      over 5×5 points and interpolated; left out if it is None. Hidden points do not count: nothing can match them,
      while the flow, which comes from what is around, may be right.

    The images are (1 or 3, H, W) in [0, 1], on the flow's device.
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
    spread = torch.log(0.1 + source.spread + 8 / source.support).float()
    reach = _distance_to_evidence(field, source, image1.shape[1:])
    edge = smooth(source.edges[None], 2.0)[0]
    found = [_of_pixels(spread, source), reach.add_(4).log_(), misfit.add_(1).log_(), edge]
    if unmatched is not None:
        around = F.avg_pool2d(unmatched[None].float(), _WINDOW, 1, _WINDOW // 2, count_include_pad=False)[0]
        found.append(at_pixels(around, edge.shape))
    return found


def _of_pixels(values: Tensor, source: MatchSource) -> Tensor:
    """Return the value (S,) of each pixel's seed, (H, W)."""
    return values.index_select(0, source.label.flatten()).view(source.label.shape)


def _distance_to_evidence(flow: Tensor, source: MatchSource, size: torch.Size) -> Tensor:
    """Return how far each pixel (H, W) is from its match beyond 6 pixels, plus how far it ends outside the image."""
    rows, columns = (torch.arange(n, dtype=torch.float32, device=flow.device) for n in source.label.shape)
    x, y = (_of_pixels(values, source) for values in source.points.float().unbind(dim=1))
    reach = torch.hypot(columns - x, rows[:, None] - y).sub_(_NEAR).clamp_(min=0)
    right, down = columns + flow[0], rows[:, None] + flow[1]
    right -= right.clamp(0, size[1] - 1)
    down -= down.clamp(0, size[0] - 1)
    return reach + torch.hypot(right, down)
