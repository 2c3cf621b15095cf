"""Images seen through a transformation."""

from __future__ import annotations

import cv2
import numpy as np
import torch
from torch import Tensor

from deepmatching.geometry.homographies import Size, resizing

#: What lies beyond an image: grey.
BEYOND = 0.5


def pixels_of(image: Tensor) -> np.ndarray:
    """The image (C, H, W) as an array (H, W, C)."""
    return np.ascontiguousarray(image.detach().cpu().numpy().transpose(1, 2, 0))


def tensor_of(pixels: np.ndarray) -> Tensor:
    """The array (H, W[, C]) as an image (C, H, W)."""
    planar = pixels.reshape(*pixels.shape[:2], -1).transpose(2, 0, 1)
    return torch.from_numpy(np.ascontiguousarray(planar))


def resized(pixels: np.ndarray, factor: float, smallest: int = 1) -> tuple[np.ndarray, np.ndarray]:
    """The image, shrunk, and the transformation from its pixels to the new ones; each is the mean of what it covers."""
    old = pixels.shape[0], pixels.shape[1]
    new = max(smallest, round(old[0] * factor)), max(smallest, round(old[1] * factor))
    if new == old:
        return pixels, np.eye(3)
    smaller = cv2.resize(pixels, (new[1], new[0]), interpolation=cv2.INTER_AREA)
    return smaller.reshape(*new, -1), resizing(old, new)


def warped(pixels: np.ndarray, matrix: np.ndarray, size: Size) -> np.ndarray:
    """The image (H, W, C) in a frame of another size, whose point ``matrix`` · p shows its point p. Bilinear."""
    flags = cv2.INTER_LINEAR
    beyond = (BEYOND,) * 4
    found = cv2.warpPerspective(pixels, matrix, (size[1], size[0]), flags=flags, borderValue=beyond)
    return found.reshape(*size, -1)
