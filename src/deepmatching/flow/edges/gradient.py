"""Edges without a model: the smoothed gradient of the colours."""

from __future__ import annotations

import cv2
import numpy as np
from torch import Tensor

_SIGMA = 1.0
_QUANTILE = 0.99  # the gradient at this quantile becomes 1; stronger ones are clipped
_FLOOR = 1.0  # ΔE per pixel, a lower bound for that gradient: noise in a flat picture must not become edges


def gradient_edges(image: Tensor) -> np.ndarray:
    """The gradient magnitude ‖∇(G_σ * Lab)‖, divided by its 99th percentile and clipped at 1.

    The magnitude is sqrt(Σ_c |∇c|²) over the three channels, in units of CIE Lab: one unit is about the smallest
    visible difference.

    Args:
        image: (1 or 3, H, W) in [0, 1].

    Returns:
        (H, W) float32 in [0, 1].
    """
    planar = image.detach().cpu().numpy()
    rgb = np.ascontiguousarray(np.broadcast_to(planar, (3, *planar.shape[1:])).transpose(1, 2, 0)).clip(0, 1)
    lab = cv2.GaussianBlur(cv2.cvtColor(rgb, cv2.COLOR_RGB2Lab), (0, 0), _SIGMA, borderType=cv2.BORDER_REPLICATE)
    squared = np.zeros(lab.shape[:2], np.float32)
    for x, y in ((1, 0), (0, 1)):
        # Sobel's kernel gives 8 for a slope of 1.
        slope = cv2.Sobel(lab, cv2.CV_32F, x, y, scale=1 / 8, borderType=cv2.BORDER_REPLICATE)
        squared += np.square(slope).sum(axis=2)
    magnitude = np.sqrt(squared)
    strongest = np.quantile(magnitude, _QUANTILE)
    return np.minimum(magnitude / np.float32(max(strongest, _FLOOR)), np.float32(1))
