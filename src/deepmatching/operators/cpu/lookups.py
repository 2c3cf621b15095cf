"""S_0 at any displacement of every point of a grid, without the volume."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from deepmatching.operators.cpu.compilation import kernel, reduction
from deepmatching.operators.cpu.threads import run_in_threads

ZERO, ONE = np.float32(0), np.float32(1)


def lookup(vectors0: Tensor, cells1: Tensor, places: Tensor, gamma: int) -> Tensor:
    """See :func:`deepmatching.operators.lookups.lookup`."""
    B, K, H, W, _ = places.shape
    found = np.empty((B, K, H, W), dtype=np.float32)
    for b in range(B):
        vectors, cells = (t[b].detach().permute(1, 2, 0).contiguous().numpy() for t in (vectors0, cells1))
        run_in_threads(_lookup, H, vectors, cells, places[b].detach().contiguous().numpy(), np.float32(gamma), found[b])
    return torch.from_numpy(found)


@kernel
def _lookup(begin: int, end: int, vectors: Any, cells: Any, places: Any, gamma: Any, found: Any) -> None:
    h, w, _ = cells.shape
    for k in range(found.shape[0]):
        for i in range(begin, end):
            for j in range(found.shape[2]):
                x = min(max(places[k, i, j, 0] / gamma, ZERO), np.float32(w - 1))
                y = min(max(places[k, i, j, 1] / gamma, ZERO), np.float32(h - 1))
                column, row = int(x), int(y)
                right, lower = min(column + 1, w - 1), min(row + 1, h - 1)
                p, q = x - np.float32(column), y - np.float32(row)
                vector = vectors[i, j]
                above = (ONE - p) * _product(vector, cells[row, column])
                below = (ONE - p) * _product(vector, cells[lower, column])
                if p > ZERO:
                    above += p * _product(vector, cells[row, right])
                    below += p * _product(vector, cells[lower, right])
                found[k, i, j] = max(ZERO, (ONE - q) * above + q * below)


@reduction
def _product(first: Any, second: Any) -> Any:
    total = ZERO
    for n in range(len(first)):
        total += first[n] * second[n]
    return total
