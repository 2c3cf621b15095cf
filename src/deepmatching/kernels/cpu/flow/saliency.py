"""Smoothing and saliency by OpenCV: ten times as fast as PyTorch's convolutions."""

import cv2
import numpy as np
import torch
from torch import Tensor

from deepmatching.kernels.constants import LAB_REACH, RGB_TO_XYZ, TENSOR_REACH, WHITE_XYZ
from deepmatching.kernels.cpu.running import run_in_threads

STRIP = 64  #: rows that are computed at a time
REACH = LAB_REACH + TENSOR_REACH + 1  #: rows around a pixel that affect it: the Gaussians', and 1 for the gradient


def gaussian(image: Tensor, sigma: float, reach: int, factor: float = 1.0) -> Tensor:
    """See :func:`deepmatching.flow.operators.saliency.gaussian`."""
    planes = image.detach().numpy()
    taps = np.exp(-np.square(np.arange(-reach, reach + 1, dtype=np.float64)) / (2 * sigma**2))
    row, column = ((scale * taps / taps.sum()).astype(planes.dtype) for scale in (factor, 1))
    result = np.empty(planes.shape, dtype=planes.dtype)
    for plane, target in zip(planes, result, strict=True):
        cv2.sepFilter2D(plane, -1, row, column, dst=target, borderType=cv2.BORDER_REPLICATE)
    return torch.from_numpy(result)


def saliency(image: Tensor) -> Tensor:
    """See :func:`deepmatching.flow.operators.saliency.saliency`."""
    planes = image.detach().numpy()
    result = np.empty(planes.shape[1:], dtype=np.float32)
    run_in_threads(_strips, -(-len(result) // STRIP), planes, result)
    return torch.from_numpy(result)


def _strips(begin: int, end: int, planes: np.ndarray, result: np.ndarray) -> None:
    """Fill in strips of ``STRIP`` rows: the intermediate steps take 30 numbers per pixel."""
    height = len(result)
    for top in range(begin * STRIP, min(height, end * STRIP), STRIP):
        first, bottom = max(0, top - REACH), min(height, top + STRIP)
        values = _saliency(planes[:, first : min(height, bottom + REACH)])
        result[top:bottom] = values[top - first :][: bottom - top]


def _saliency(image: np.ndarray) -> np.ndarray:
    rgb = np.ascontiguousarray(np.broadcast_to(image, (3, *image.shape[1:])).transpose(1, 2, 0), dtype=np.float32)
    lab = cv2.GaussianBlur(_lab(rgb), (0, 0), 0.8, borderType=cv2.BORDER_REPLICATE)
    difference = np.array([[-0.5, 0, 0.5]], dtype=np.float32)
    x, y = (cv2.filter2D(lab, -1, kernel, borderType=cv2.BORDER_REPLICATE) for kernel in (difference, difference.T))
    tensor = np.stack([(x * x).sum(axis=2), (x * y).sum(axis=2), (y * y).sum(axis=2)], axis=2)
    xx, xy, yy = np.moveaxis(cv2.GaussianBlur(tensor, (0, 0), 1.0, borderType=cv2.BORDER_REPLICATE), 2, 0)
    smallest = (xx + yy - np.sqrt((xx - yy) ** 2 + 4 * xy * xy)) / 2
    return np.sqrt(np.maximum(smallest, 0))


def _lab(rgb: np.ndarray) -> np.ndarray:
    """Return CIE Lab of (H, W, 3), taken as linear RGB."""
    xyz = cv2.transform(rgb, np.array(RGB_TO_XYZ) / np.array(WHITE_XYZ)[:, None])
    x, y, z = np.moveaxis(np.where(xyz > 0.008856, np.cbrt(xyz), 7.787 * xyz + 16 / 116), 2, 0)
    return np.stack([116 * y - 16, 500 * (x - y), 200 * (y - z)], axis=2).astype(np.float32)
