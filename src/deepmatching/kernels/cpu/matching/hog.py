"""The HOG descriptor in one pass over bands of rows."""

import numpy as np
import torch
from torch import Tensor

from deepmatching.kernels.cpu.compilation import helper, kernel
from deepmatching.kernels.cpu.matching.power import exp2
from deepmatching.kernels.cpu.running import empty, run_in_threads

BAND = 32  #: rows of pixels that are described together: few enough for the cache, many beside the 14 around them
ZERO, ONE, QUARTER, TINY = np.float32(0), np.float32(1), np.float32(0.25), np.float32(1e-16)


def hog_cells(
    image: Tensor, directions: Tensor, stride: int, sigmas: tuple[float, float, float], slope: float, ninth: float
) -> Tensor:
    """See :func:`deepmatching.network.descriptors.hog.hog_cells`."""
    batch, _, height, width = image.shape
    cells = empty((batch, len(directions) + 1, height // stride, width // stride), torch.float32)
    taps = [np.exp(-np.square(np.arange(-2.0, 3.0)) / (2 * sigma**2)) for sigma in sigmas]
    tables = [_weights(kernel, height, width, border) for kernel, border in zip(taps, (1, 0, 0), strict=True)]
    for picture, result in zip(image.detach().contiguous().numpy(), cells.numpy(), strict=True):
        run_in_threads(
            _describe_bands, -(-result.shape[1] // max(1, BAND // stride)),
            picture, stride, directions.detach().to("cpu", torch.float32).numpy(), *tables,
            np.float32(slope / np.log(2)), np.float32(ninth), result,
        )  # fmt: skip
    return cells


def _weights(taps: np.ndarray, height: int, width: int, border: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the weights of a normalised convolution evaluated up to ``border`` pixels outside the image.

    These are five at each row (height + 2·border, 5), the kernel (5,) and 1 / its mass inside the image at each column
    (width + 2·border,).
    """
    by_row, by_column = (np.convolve(np.pad(np.ones(n), border), taps)[2:-2] for n in (height, width))
    return (taps / by_row[:, None]).astype(np.float32), taps.astype(np.float32), (1 / by_column).astype(np.float32)


@helper
def _smooth(rows, r, y, weights, column, result, to):
    """Fill in row ``to`` of the result (·, ≥ n): row y of the normalised convolution with these ``_weights``.

    The five rows around it are those from r on in ``rows``, (·, n + 4), which are zero outside the image; ``column``
    is a buffer (n + 4,).
    """
    by_row, taps, mass = weights
    a, b, c, d, e = by_row[y, 0], by_row[y, 1], by_row[y, 2], by_row[y, 3], by_row[y, 4]
    for x in range(column.shape[0]):
        sides = b * rows[r + 1, x] + d * rows[r + 3, x]
        column[x] = a * rows[r, x] + e * rows[r + 4, x] + sides + c * rows[r + 2, x]
    a, b, c, d, e = taps[0], taps[1], taps[2], taps[3], taps[4]
    for x in range(mass.shape[0]):
        sides = b * column[x + 1] + d * column[x + 3]
        result[to, x] = (a * column[x] + e * column[x + 4] + sides + c * column[x + 2]) * mass[x]


@helper
def _gradient(image, top, rows, weights, gradient):
    """Fill in the gradient of the smoothed grey image, (2, ≥ rows, W), from row ``top`` on; 0 outside the image."""
    channels, height, width = image.shape
    grey = np.zeros((rows + 6, width + 6), dtype=np.float32)  # three more rows and columns on each side
    scale = np.float32(255) / np.float32(channels)
    for r in range(max(0, 3 - top), min(rows + 6, height + 3 - top)):
        for c in range(channels):
            for x in range(width):
                grey[r, x + 3] += image[c, top - 3 + r, x]
        for x in range(width):
            grey[r, x + 3] *= scale
    smooth = np.zeros((rows + 2, width + 2), dtype=np.float32)  # one more on each side
    column = np.empty(width + 6, dtype=np.float32)
    for r in range(max(0, -top), min(rows + 2, height + 2 - top)):
        _smooth(grey, r, top + r, weights, column, smooth, r)
    for r in range(rows):
        inside = ONE if 0 <= top + r < height else ZERO
        for x in range(width):
            gradient[0, r, x] = inside * (smooth[r + 1, x + 2] - smooth[r + 1, x])
        for x in range(width):
            gradient[1, r, x] = inside * (smooth[r + 2, x + 1] - smooth[r, x + 1])


@helper
def _pool(rows, cells, o, y):
    """Pool blocks of stride × stride pixels: cells[o, y] (w,) from rows (stride, W), which are overwritten."""
    stride = rows.shape[0]
    for r in range(1, stride):
        for x in range(rows.shape[1]):
            rows[0, x] = max(rows[0, x], rows[r, x])
    for x in range(cells.shape[2]):
        highest = rows[0, stride * x]
        for d in range(1, stride):
            highest = max(highest, rows[0, stride * x + d])
        cells[o, y, x] = highest


@helper
def _normalise(cells, y, ninth, squares):
    """Add the constant channel to row y of the cells (9, h, w), and scale each cell to the norm 1/4."""
    channels, width = cells.shape[0], cells.shape[2]
    for x in range(width):
        cells[channels - 1, y, x] = ninth
        squares[x] = TINY
    for o in range(channels):
        for x in range(width):
            squares[x] += cells[o, y, x] * cells[o, y, x]
    for x in range(width):
        squares[x] = QUARTER / np.sqrt(squares[x])
    for o in range(channels):
        for x in range(width):
            cells[o, y, x] *= squares[x]


@kernel
def _describe_bands(begin, end, image, stride, directions, weights0, weights1, weights2, slope, ninth, cells):
    """Fill in the cells (9, h, w) of bands of ``BAND`` rows of the image (C, H, W), or of one row of cells if larger.

    ``directions`` are unit vectors (x, y), (8, 2), and the slope of the saturation is in powers of two. Each smoothing
    step has its ``_weights``.
    """
    height, width = image.shape[1:]
    per_band = max(1, BAND // stride)
    gradient = np.empty((2, per_band * stride + 8, width), dtype=np.float32)
    projected = np.zeros((per_band * stride + 8, width + 4), dtype=np.float32)
    saturated = np.zeros((per_band * stride + 4, width + 4), dtype=np.float32)
    oriented = np.empty((stride, width), dtype=np.float32)
    column, row = np.empty(width + 4, dtype=np.float32), np.empty((1, width), dtype=np.float32)
    squares = np.empty(cells.shape[2], dtype=np.float32)
    for band in range(begin, end):
        first, last = band * per_band, min((band + 1) * per_band, cells.shape[1])
        top, rows = first * stride, (last - first) * stride
        _gradient(image, top - 4, rows + 8, weights0, gradient)
        for o in range(directions.shape[0]):
            along_x, along_y = directions[o, 0], directions[o, 1]
            for r in range(rows + 8):
                for x in range(width):
                    projected[r, x + 2] = max(along_x * gradient[0, r, x] + along_y * gradient[1, r, x], ZERO)
            for r in range(rows + 4):
                y = top - 2 + r
                inside = 0 <= y < height
                if inside:
                    _smooth(projected, r, y, weights1, column, row, 0)
                for x in range(width):
                    decay = exp2(ZERO, -slope * row[0, x])
                    # = 2 / (1 + decay) − 1
                    saturated[r, x + 2] = (ONE - decay) / (ONE + decay) if inside else ZERO
            for k in range(first, last):
                for r in range(stride):
                    y = k * stride + r
                    _smooth(saturated, y - top, y, weights2, column, oriented, r)
                _pool(oriented, cells, o, k)
        for k in range(first, last):
            _normalise(cells, k, ninth, squares)
