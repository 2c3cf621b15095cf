"""Warping the second image by a flow."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from deepmatching.kernels.cpu.compilation import kernel
from deepmatching.kernels.cpu.running import arrays_of, run_in_threads

ZERO, HALF, ONE = np.float32(0), np.float32(0.5), np.float32(1)


def warp(image0: Tensor, image1: Tensor, flow: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """See :func:`deepmatching.flow.operators.warping.warp`."""
    first, second, field = arrays_of(image0, image1, flow)
    mean, difference, inside = warp_rows(first, second, field, 0, image0.shape[1])
    return torch.from_numpy(mean), torch.from_numpy(difference), torch.from_numpy(inside)


def warp_rows(
    image0: np.ndarray, image1: np.ndarray, flow: np.ndarray, top: int, bottom: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """:func:`warp` of the rows from ``top`` to ``bottom`` − 1."""
    channels, rows, width = image0.shape[0], bottom - top, image0.shape[2]
    mean, difference = (np.empty((channels, rows, width), dtype=np.float32) for _ in range(2))
    inside = np.empty((rows, width), dtype=np.float32)
    run_in_threads(_warp, rows, top, image0, image1, flow, mean, difference, inside)
    return mean, difference, inside


@kernel
def _warp(
    begin: int, end: int, top: int,
    image0: Any, image1: Any, flow: Any, mean: Any, difference: Any, inside: Any,
) -> None:  # fmt: skip
    channels, height, width = image1.shape
    for r in range(begin, end):
        y = top + r
        for x in range(inside.shape[1]):
            u, v = np.float32(x) + flow[0, y, x], np.float32(y) + flow[1, y, x]
            inside[r, x] = ONE if (u >= ZERO and v >= ZERO and u <= width - 1 and v <= height - 1) else ZERO
            u, v = min(max(u, ZERO), np.float32(width - 1)), min(max(v, ZERO), np.float32(height - 1))
            j, i = int(u), int(v)
            p, q = u - np.float32(j), v - np.float32(i)
            k, l = min(j + 1, width - 1), min(i + 1, height - 1)
            for c in range(channels):
                above = image1[c, i, j] + p * (image1[c, i, k] - image1[c, i, j])
                below = image1[c, l, j] + p * (image1[c, l, k] - image1[c, l, j])
                value = above + q * (below - above)
                mean[c, r, x] = HALF * (image0[c, y, x] + value)
                difference[c, r, x] = value - image0[c, y, x]
