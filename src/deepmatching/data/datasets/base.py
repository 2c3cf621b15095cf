"""Pairs of images with ground truth, the items of every data set."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor


class Pair(NamedTuple):
    """Two images and their ground truth; a batch of pairs has one more axis B in front of each tensor.

    ``flow[i, j]`` is the displacement (x, y) of the pixel in row i and column j, in pixels.
    """

    image0: Tensor  #: (3, H, W) float32 in [0, 1]
    image1: Tensor  #: (3, H', W')
    flow: Tensor  #: (H, W, 2) float32, NaN where unknown
    occluded: Tensor  #: (H, W) bool: not visible in image 1; all False if the data set has no masks
    name: str = ""  #: scene and frame, for display
