"""The operators in the forms that ONNX can say: no writing in place, one pair, few large nodes.

``network.operators`` writes into parts of tensors, which ONNX has no word for. Here, a shift is a slice with a border
around it, max pooling compares every second entry with the ones beside it (TensorRT has no ``MaxPool`` with indices),
and unpooling is ``ScatterElements`` that keeps the largest. Volumes have no batch axis: S_l is (H_l, W_l, h_l, w_l). A
switch is the raster index of the chosen cell in its map. Of scores that are equal, another may win than in
``deepmatching.network.operators``.
"""

from collections.abc import Iterator, Sequence
from functools import reduce
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from deepmatching.geometry.discretization import Geometry, overlap
from deepmatching.geometry.targets import rectification, reference_patches
from deepmatching.network.descriptors import HOG
from deepmatching.network.descriptors.hog import cells_of

BLOCK = 8  #: reference rows and columns of a block, whose points share a region of target cells and one convolution


def shifted(source: Tensor, shifts: Sequence[int], shape: Sequence[int], fill: float) -> Tensor | None:
    """Return result[o] = source[o + shifts], of this shape; None if the source has none of these elements.

    Those that it does not have are ``fill``. One node, ``Pad``, which also cuts off: its borders may be negative.
    """
    pads: list[int] = []
    for shift, outputs, sources in zip(shifts, shape, source.shape, strict=True):
        if overlap(shift, outputs, sources) is None:
            return None
        pads = [-shift, outputs - sources + shift, *pads]
    return F.pad(source, pads, value=fill)


def cut(source: Tensor, starts: Sequence[int], shape: Sequence[int]) -> Tensor:
    """Return the part of this shape that starts there."""
    part = shifted(source, starts, shape, 0.0)
    assert part is not None
    return part


def aggregation(pooled: Tensor, geometry: Geometry, l: int, exponent: float) -> Tensor:
    """Do AG and PW: return S_{l+1} from S_{l+1/2}."""
    grid, window = geometry.grid(l + 1), geometry.window(l + 1)
    parts = [shifted(pooled, link, (*grid, *window), 0.0) for link in geometry.links(l)]
    total = sum((part for part in parts if part is not None), torch.zeros(()))
    return (total * _share_of_a_child(geometry, l)).pow(exponent)


def _share_of_a_child(geometry: Geometry, l: int) -> Tensor:
    """Return one over the number of children of each point of level l + 1, (H_{l+1}, W_{l+1}, 1, 1)."""
    (rows, columns), below = geometry.grid(l + 1), geometry.grid(l)
    count = np.zeros((rows, columns, 1, 1), np.float32)
    for down, right, *_ in geometry.links(l):
        vertical, horizontal = overlap(down, rows, below[0]), overlap(right, columns, below[1])
        if vertical and horizontal:
            count[vertical[0], horizontal[0]] += 1
    return torch.from_numpy(1 / count.clip(min=1))


def disaggregation(scores: Tensor, geometry: Geometry, l: int) -> Tensor:
    """Do DA: return Q_{l+1/2} from Q_{l+1}."""
    shape = (*geometry.grid(l), *geometry.window(l + 1))
    parts = (shifted(scores, [-shift for shift in link], shape, -torch.inf) for link in geometry.links(l))
    found = [part for part in parts if part is not None]
    return reduce(torch.maximum, found) if found else torch.full(shape, -torch.inf)


def max_pooling(scores: Tensor, geometry: Geometry, l: int) -> tuple[Tensor, Tensor]:
    """Do MP: return S_{l+1/2} and m_l from S_l, or from some of its rows of points.

    The first maximum of each row of a window is found, and the first of these.
    """
    (h, w), (rows, columns) = geometry.window(l), geometry.window(l + 1)
    reach, first = geometry.pool_reach, geometry.pool_offset(l) - geometry.pool_reach  # the first window's first cell

    def beside(values: Tensor, axis: int, size: int, pooled: int) -> list[Tensor]:
        """Return the entries 2k + first + d along an axis, for each place d in a window."""
        border = (-first, max(0, 2 * (pooled + reach) - 1 + first - size))
        padded = F.pad(values, (0, 0) * (3 - axis) + border, value=-torch.inf)
        rest: Any = (slice(None),) * (3 - axis)
        return [padded[..., d : d + 2 * pooled - 1 : 2, *rest] for d in range(2 * reach + 1)]

    best, place = _first_maximum(beside(scores, 3, w, columns), [float(d) for d in range(2 * reach + 1)])
    places = (there + d * w for d, there in enumerate(beside(place, 2, h, rows)))
    best, place = _first_maximum(beside(best, 2, h, rows), list(places))
    windows = (2 * torch.arange(rows)[:, None] + first) * w + 2 * torch.arange(columns) + first
    return best, place.long() + windows


def _first_maximum(values: list[Tensor], places: Sequence[Tensor | float]) -> tuple[Tensor, Any]:
    """Return the largest of some values, and the place of the first that is as large."""
    best, place = values[0], places[0]
    for value, there in zip(values[1:], places[1:], strict=True):
        place = torch.where(value > best, there, place)
        best = torch.maximum(best, value)
    return best, place


def unpooling(scores: Tensor, switches: Tensor, geometry: Geometry, l: int) -> Tensor:
    """Do UP: return U_l from Q_{l+1/2} and m_l."""
    h, w = geometry.window(l)
    empty = torch.full((scores.shape[0] * scores.shape[1], h * w), -torch.inf)
    flat = switches.flatten(0, 1).flatten(1), scores.flatten(0, 1).flatten(1)
    return empty.scatter_reduce(1, *flat, "amax").view(*scores.shape[:2], h, w)


def correlate_and_pool(
    cells0: Tensor, cells1: Tensor, geometry: Geometry, patch: int, exponent: float
) -> tuple[Tensor, Tensor]:
    """Do CORR, MP and PW: return S_{1/2} and m_0 from descriptors (1, C, h, w).

    The power is monotone: it may follow the maximum, at a quarter of the work.
    """
    filters = reference_patches(cells0, geometry, patch)[0]
    rows = _rows_of_windows(filters, cells1, geometry, patch) if geometry.relative else _rows(filters, cells1, patch)
    vertical, horizontal = (factors.float() for factors in rectification(geometry, patch))
    parts = []
    for i, scores in enumerate(rows):  # (W_0, h_0, w_0)
        if patch > 1:  # single vectors are zero off the image, and never cut
            scores = scores * vertical[min(i, len(vertical) - 1), :, None] * horizontal[:, None, :]
        parts.append(max_pooling(scores[None].relu(), geometry, 0))
    return torch.cat([values for values, _ in parts]).pow(exponent), torch.cat([switches for _, switches in parts])


def _rows(filters: Tensor, cells1: Tensor, patch: int) -> Iterator[Tensor]:
    """Yield every target position of each row of reference points, (W_0, h_0, w_0), without a radius."""
    for row in filters:
        yield F.conv2d(cells1, row, padding=patch // 2)[0]


def _rows_of_windows(filters: Tensor, cells1: Tensor, geometry: Geometry, patch: int) -> Iterator[Tensor]:
    """Yield the target positions around each row of reference points, (W_0, 2R_0 + 1, 2R_0 + 1).

    The points of a block share a region of target cells. Along a row of blocks, a grouped convolution correlates all
    regions with all patches of their points, and each point keeps its own part.
    """
    (rows, columns), step, (side, _) = geometry.grid(0), geometry.step, geometry.window(0)
    down, across = min(BLOCK, rows), min(BLOCK, columns)
    block_rows, block_columns = -(-rows // down), -(-columns // across)
    height, width = (side + patch - 1 + (points - 1) * step for points in (down, across))
    top, left = (cell - patch // 2 for cell in geometry.first_target)
    region = ((block_rows - 1) * down * step + height, (block_columns - 1) * across * step + width)
    target = cut(cells1[0], (0, top, left), (cells1.shape[1], *region))
    filters = F.pad(filters, (0, 0) * 3 + (0, block_columns * across - columns, 0, block_rows * down - rows))
    filters = filters.unflatten(1, (block_columns, across)).unflatten(0, (block_rows, down)).transpose(1, 2)
    shared, own = (cells1.shape[1], height, width), (block_columns, 1, side, side)
    for n in range(block_rows):
        regions = [cut(target, (0, n * down * step, m * across * step), shared) for m in range(block_columns)]
        scores = F.conv2d(torch.cat(regions)[None], filters[n].flatten(0, 2), groups=block_columns)
        scores = scores[0].unflatten(0, (block_columns, down * across))
        for r in range(min(down, rows - n * down)):
            parts = [cut(scores, (0, r * across + c, r * step, c * step), own) for c in range(across)]
            yield torch.cat(parts, dim=1).flatten(0, 1)[:columns]


class Bins:
    """Decoding without Q_0, verified by ``bins``: see ``deepmatching.network.operators.decoding``.

    The target bins, of α₀ × α₀ pixels, are numbered on a grid that also covers what is off the image. Because the used
    part of an image consists of whole bins, a cell is on the image if its bin is.
    """

    def __init__(self, geometry: Geometry) -> None:
        self.grid, axes = geometry.grid(0), []
        for cells, points, used, start in zip(
            geometry.window(0), self.grid, geometry.used1, geometry.first_target, strict=True
        ):
            # The bin of each cell of a map, relative to its reference point's; the bins of the points; those there are.
            relative = torch.div(torch.arange(cells) + start, geometry.step, rounding_mode="floor")
            moves = torch.arange(points) * (geometry.shift // geometry.step)
            first, last = int(relative[0]), max(int(relative[-1] + moves[-1]), used // geometry.alpha - 1)
            bins = torch.arange(first, last + 1)
            axes.append((relative - first, moves, (bins >= 0) & (bins < used // geometry.alpha)))
        (rows, rows_of_point, inside_rows), (columns, columns_of_point, inside_columns) = axes
        width = len(inside_columns)
        self.of_cell = (rows[:, None] * width + columns).flatten()
        self.of_point = (rows_of_point[:, None] * width + columns_of_point).flatten()[:, None]
        self.off_image = torch.where(inside_rows[:, None] & inside_columns, 0.0, -torch.inf).flatten()

    def decode(self, total: Tensor, switches: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return scores, cells and the verified flags of the matches, (1, H_0, W_0) each.

        ``total`` = Q_{1/2} + S_{1/2}, (H_0, W_0, h_1, w_1), are the scores Q_0 of the cells that windows chose, m_0.
        """
        points = total.shape[0] * total.shape[1]
        switches = switches.reshape(points, -1)
        bins = self.of_cell[switches] + self.of_point
        claims = total.reshape(points, -1) + self.off_image[bins]
        scores, windows = claims.max(dim=1)
        table = torch.full_like(self.off_image, -torch.inf).scatter_reduce(0, bins.flatten(), claims.flatten(), "amax")
        own = bins.gather(1, windows[:, None])[:, 0]
        verified = torch.isfinite(scores) & (scores >= table[own])
        order = torch.arange(points)
        first = torch.full_like(self.off_image, points, dtype=torch.int64)
        first = first.scatter_reduce(0, own, torch.where(verified, order, points), "amin")
        verified = verified & (first[own] == order)
        cells = torch.where(torch.isfinite(scores), switches.gather(1, windows[:, None])[:, 0], 0)
        return tuple(values.view(1, *self.grid) for values in (scores, cells, verified))  # type: ignore[return-value]


def hog(image: Tensor, descriptor: HOG) -> Tensor:
    """Return the cells of HOG, as ``deepmatching.network.descriptors.hog.hog_cells``, for images of any size."""
    settings = (descriptor.stride, descriptor.sigmas, descriptor.slope, descriptor.ninth)
    return cells_of(image, descriptor.directions, *settings, _smoothing) * (4 / descriptor.patch)


def _smoothing(image: Tensor, sigma: float, border: int = 0) -> Tensor:
    """Do the normalised convolution with a 5 × 5 Gaussian: divide that of the image by that of its support."""
    taps = torch.exp(-torch.arange(-2.0, 3.0).square() / (2 * sigma**2))
    kernel = (taps[:, None] * taps)[None, None]
    channels = image.shape[1]
    mass = F.conv2d(torch.ones_like(image[:, :1]), kernel, padding=2 + border)
    return F.conv2d(image, kernel.expand(channels, 1, 5, 5), padding=2 + border, groups=channels) / mass
