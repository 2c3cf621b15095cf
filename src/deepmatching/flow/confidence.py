"""How far a flow can be trusted, pixel by pixel."""

from __future__ import annotations

import cv2
import numpy as np
import torch

from deepmatching.flow.interpolation import Interpolation
from deepmatching.flow.refinement import smooth, warp
from deepmatching.io.images import ImageLike, load_image

#: A logistic regression of "the error is below 3 pixels" on pairs of MPI Sintel, KITTI, Flying Chairs and Middlebury,
#: each data set counting alike, with matches of the model ``compact`` and default settings: its constant, and the
#: weights of :func:`evidence`. ``benchmarks/confidence.py`` fits it.
CONSTANT, WEIGHTS = 5.60, (-2.29, -0.81, -0.57, -2.19)

#: Reference points are 8 pixels apart: so far from the nearest one is as near as can be.
_NEAR = 6


def confidence(flow: np.ndarray, interpolation: Interpolation, image0: ImageLike, image1: ImageLike) -> np.ndarray:
    """The estimated probability that a flow is less than 3 pixels off: (H, W) float32, 0 … 1.

        1 / (1 + exp(−(5.60 − 2.29 ln(0.1 + spread + 8/n) − 0.81 ln(4 + reach) − 0.57 ln(1 + misfit) − 2.19 edge)))

    See :func:`evidence` for the words and the arguments.
    """
    logit = np.full(flow.shape[:2], CONSTANT, dtype=np.float32)
    for weight, values in zip(WEIGHTS, evidence(flow, interpolation, image0, image1), strict=True):
        values *= np.float32(weight)
        logit += values
    return torch.from_numpy(logit).sigmoid_().numpy()


@torch.no_grad()
def evidence(
    flow: np.ndarray, interpolation: Interpolation, image0: ImageLike, image1: ImageLike
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """What speaks against each pixel of a flow: four arrays (H, W) float32.

    * ln(0.1 + spread + 8/n): how much the n matches around disagree with their common model, in pixels.
    * ln(4 + reach): how far the nearest match is, beyond 6 pixels, and how far beyond the second image the flow leads.
    * ln(1 + misfit): how badly the warped second image fits the first, the mean difference in 0 … 255 of the images
      smoothed by 1 pixel, averaged over about 3 pixels around.
    * edge: the edge strength, averaged over about 2 pixels around.

    Args:
        flow: (H, W, 2), the interpolated flow, refined or not.
        interpolation: where it comes from.
        image0, image1: the images.
    """
    first, second = (load_image(image, name).cpu() for image, name in ((image0, "image0"), (image1, "image1")))
    if first.shape[0] != second.shape[0]:
        first, second = (image.expand(3, -1, -1) for image in (first, second))
    field = torch.from_numpy(np.ascontiguousarray(flow.transpose(2, 0, 1), dtype=np.float32))
    difference = torch.zeros_like(field[:1])
    for plane0, plane1 in zip(first.split(1), second.split(1), strict=True):  # one at a time: a third of the memory
        warped = warp(smooth(plane0, 1.0, 255), smooth(plane1, 1.0, 255), field)
        difference += warped[1].abs_().div_(len(first))
    misfit = smooth(difference, 3.0)[0].numpy()
    reach = _reach(field.numpy(), interpolation, second.shape[1:])
    for values, offset in ((misfit, 1), (reach, 4)):
        values += offset
        np.log(values, out=values)
    spread = np.log(0.1 + interpolation.spread + 8 / interpolation.support).astype(np.float32)
    return spread[interpolation.cells.label], reach, misfit, cv2.GaussianBlur(interpolation.edges, (0, 0), 2.0)


def _reach(flow: np.ndarray, interpolation: Interpolation, size: tuple[int, ...]) -> np.ndarray:
    """How far each pixel (H, W) is from its match, and its target beyond an image of this size."""
    label = interpolation.cells.label
    rows, columns = (np.arange(n, dtype=np.float32) for n in label.shape)
    x, y = interpolation.points.T.astype(np.float32)
    reach = np.hypot(columns - x[label], rows[:, None] - y[label])
    reach = np.maximum(reach - _NEAR, 0, out=reach)
    right, down = columns + flow[0], rows[:, None] + flow[1]
    right -= right.clip(0, size[1] - 1)
    down -= down.clip(0, size[0] - 1)
    return reach + np.hypot(right, down, out=right)
