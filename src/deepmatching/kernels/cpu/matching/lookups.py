"""S_0 at any displacement of every point of a grid, without the volume."""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from deepmatching.kernels.cpu.compilation import helper, kernel, reduction
from deepmatching.kernels.cpu.running import arrays_of, run_in_threads

ZERO, ONE = np.float32(0), np.float32(1)


def lookup(vectors0: Tensor, cells1: Tensor, places: Tensor, gamma: int) -> Tensor:
    """See :func:`deepmatching.network.operators.lookups.lookup`."""
    B, K, H, W, _ = places.shape
    found = np.empty((B, K, H, W), dtype=np.float32)
    for b in range(B):
        run_in_threads(_lookup, H, *_vectors(vectors0[b], cells1[b], places[b]), np.float32(gamma), found[b])
    return torch.from_numpy(found)


def lookup_squares(
    vectors0: Tensor, cells1: Tensor, targets: Tensor, gamma: int, squares: Sequence[tuple[int, float]]
) -> Tensor:
    """See :func:`deepmatching.network.operators.lookups.lookup_squares`."""
    B, H, W, _ = targets.shape
    reaches, steps = np.array([reach for reach, _ in squares]), np.array([s / gamma for _, s in squares], np.float32)
    found = np.empty((B, H, W, int(((2 * reaches + 1) ** 2).sum())), dtype=np.float32)
    for b in range(B):
        vectors = _vectors(vectors0[b], cells1[b], targets[b])
        run_in_threads(_lookup_squares, H, *vectors, np.float32(gamma), reaches, steps, found[b])
    return torch.from_numpy(found).permute(0, 3, 1, 2)


def _vectors(vectors0: Tensor, cells1: Tensor, places: Tensor) -> list[np.ndarray]:
    """Return the maps (C, H, W) as arrays (H, W, C), and the places."""
    return arrays_of(vectors0.permute(1, 2, 0), cells1.permute(1, 2, 0), places)


@kernel
def _lookup(begin, end, vectors, cells, places, gamma, found):
    for k in range(found.shape[0]):
        for i in range(begin, end):
            for j in range(found.shape[2]):
                x, y = places[k, i, j, 0] / gamma, places[k, i, j, 1] / gamma
                found[k, i, j] = _at(vectors[i, j], cells, x, y)


@kernel
def _lookup_squares(begin, end, vectors, cells, targets, gamma, reaches, steps, found):
    h, w, _ = cells.shape
    side = 2 * reaches.max() + 2
    products = np.empty((side, side), np.float32)
    for i in range(begin, end):
        for j in range(targets.shape[1]):
            vector = vectors[i, j]
            x, y = targets[i, j, 0] / gamma, targets[i, j, 1] / gamma
            k = 0
            for s in range(len(reaches)):
                reach, step = reaches[s], steps[s]
                if step != ONE:
                    for row in range(-reach, reach + 1):
                        for column in range(-reach, reach + 1):
                            there = x + np.float32(column) * step, y + np.float32(row) * step
                            found[i, j, k] = _at(vector, cells, there[0], there[1])
                            k += 1
                    continue
                # Neighbours share cells: multiply each once, and interpolate the products.
                far = np.float32(reach + 2)  # beyond this, all of the square takes values of the border
                inner_x, inner_y = min(max(x, -far), np.float32(w) + far), min(max(y, -far), np.float32(h) + far)
                left, top = int(np.floor(inner_x)) - reach, int(np.floor(inner_y)) - reach
                p, q = inner_x - np.floor(inner_x), inner_y - np.floor(inner_y)
                for row in range(2 * reach + 2):
                    cell_row = cells[min(max(top + row, 0), h - 1)]
                    for column in range(2 * reach + 2):
                        products[row, column] = _product(vector, cell_row[min(max(left + column, 0), w - 1)])
                for row in range(2 * reach + 1):
                    for column in range(2 * reach + 1):
                        above = (ONE - p) * products[row, column] + p * products[row, column + 1]
                        below = (ONE - p) * products[row + 1, column] + p * products[row + 1, column + 1]
                        found[i, j, k] = max(ZERO, (ONE - q) * above + q * below)
                        k += 1


@helper
def _at(vector, cells, x, y):
    """Return the score of a vector at a fractional place, in cells."""
    h, w, _ = cells.shape
    x, y = min(max(x, ZERO), np.float32(w - 1)), min(max(y, ZERO), np.float32(h - 1))
    column, row = int(x), int(y)
    right, lower = min(column + 1, w - 1), min(row + 1, h - 1)
    p, q = x - np.float32(column), y - np.float32(row)
    above, below = cells[row], cells[lower]
    return max(ZERO, _blended(vector, above[column], above[right], below[column], below[right], p, q))


@reduction
def _blended(vector, first, second, third, fourth, p, q):
    """Return the product with the bilinear mean of four cells."""
    a, b, c, d = (ONE - p) * (ONE - q), p * (ONE - q), (ONE - p) * q, p * q
    total = ZERO
    for n in range(len(vector)):
        total += vector[n] * (a * first[n] + b * second[n] + c * third[n] + d * fourth[n])
    return total


@reduction
def _product(first, second):
    total = ZERO
    for n in range(len(first)):
        total += first[n] * second[n]
    return total
