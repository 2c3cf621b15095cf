"""The confidence of a flow at each pixel."""

from __future__ import annotations

import cv2
import numpy as np
import torch
from torch import Tensor

from deepmatching.flow.interpolation import Interpolation
from deepmatching.flow.refinement import smooth
from deepmatching.operators.warping import warp

#: Constant and weights of a logistic regression of "the error is below 3 pixels" on :func:`evidence`. It was fitted by
#: ``benchmarks/confidence.py`` on pairs of MPI Sintel, KITTI, Flying Chairs and Middlebury, with equal weight for each
#: data set, the model ``compact`` and default settings.
CONSTANT, WEIGHTS = 5.60, (-2.29, -0.81, -0.57, -2.19)

#: Reference points are 8 pixels apart, so with a match at each of them no pixel is further than this from a match.
_NEAR = 6


def confidence(flow: Tensor, interpolation: Interpolation, image0: Tensor, image1: Tensor) -> np.ndarray:
    """The estimated probability that a flow is less than 3 pixels off: (H, W) float32, 0 … 1.

        1 / (1 + exp(−(5.60 − 2.29 ln(0.1 + spread + 8/n) − 0.81 ln(4 + reach) − 0.57 ln(1 + misfit) − 2.19 edge)))

    See :func:`evidence` for the terms and the arguments.
    """
    logit = np.full(flow.shape[:2], CONSTANT, dtype=np.float32)
    for weight, values in zip(WEIGHTS, evidence(flow, interpolation, image0, image1), strict=True):
        values *= np.float32(weight)
        logit += values
    return torch.from_numpy(logit).sigmoid_().numpy()


@torch.no_grad()
def evidence(
    flow: Tensor, interpolation: Interpolation, image0: Tensor, image1: Tensor
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """The evidence against each pixel of a flow: four arrays (H, W) float32.

    * ln(0.1 + spread + 8/n): how much the n neighbouring matches disagree with their common model, in pixels.
    * ln(4 + reach): distance to the nearest match beyond 6 pixels, plus the distance of the target to the second image.
    * ln(1 + misfit): mean difference between the first image and the warped second one, in 0 … 255, of the images
      smoothed by 1 pixel; averaged over a neighbourhood of about 3 pixels.
    * edge: the edge strength, averaged over a neighbourhood of about 2 pixels.

    Args:
        flow: (H, W, 2) float32, the interpolated flow, refined or not.
        interpolation: the interpolation that the flow came from.
        image0, image1: (1 or 3, H, W) in [0, 1], on the flow's device.
    """
    if image0.shape[0] != image1.shape[0]:
        image0, image1 = (image.expand(3, -1, -1) for image in (image0, image1))
    field = flow.permute(2, 0, 1).contiguous()
    difference = torch.zeros_like(field[:1])
    for plane0, plane1 in zip(
        image0.split(1), image1.split(1), strict=True
    ):  # one channel at a time takes a third of the memory
        warped = warp(smooth(plane0, 1.0, 255), smooth(plane1, 1.0, 255), field)
        difference += warped[1].abs_().div_(len(image0))
    misfit = smooth(difference, 3.0)[0].cpu().numpy()
    reach = _reach(field.cpu().numpy(), interpolation, image1.shape[1:])
    for values, offset in ((misfit, 1), (reach, 4)):
        values += offset
        np.log(values, out=values)
    spread = np.log(0.1 + interpolation.spread + 8 / interpolation.support).astype(np.float32)
    return spread[interpolation.cells.label], reach, misfit, cv2.GaussianBlur(interpolation.edges, (0, 0), 2.0)


def _reach(flow: np.ndarray, interpolation: Interpolation, size: tuple[int, ...]) -> np.ndarray:
    """Distance of each pixel (H, W) to its match beyond 6 pixels, plus that of its target to an image of this size."""
    label = interpolation.cells.label
    rows, columns = (np.arange(n, dtype=np.float32) for n in label.shape)
    x, y = interpolation.points.T.astype(np.float32)
    reach = np.hypot(columns - x[label], rows[:, None] - y[label])
    reach = np.maximum(reach - _NEAR, 0, out=reach)
    right, down = columns + flow[0], rows[:, None] + flow[1]
    right -= right.clip(0, size[1] - 1)
    down -= down.clip(0, size[0] - 1)
    return reach + np.hypot(right, down, out=right)
