"""The operators in the forms that ONNX can say: no writing in place, one pair, few large nodes.

``network.operators`` writes into parts of tensors, which ONNX has no word for. Here, a shift is a slice with a border
around it, max pooling is ``MaxPool`` with its indices, and unpooling is ``ScatterElements`` that keeps the largest.
Volumes have no batch axis: S_l is (H_l, W_l, h_l, w_l). A switch is the raster index of the chosen cell in its map. Of
scores that are equal, another may win than in ``deepmatching.network.operators``.
"""

from collections.abc import Iterator, Sequence

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from deepmatching.geometry.discretization import Geometry, overlap
from deepmatching.geometry.targets import rectification, reference_patches
from deepmatching.network.descriptors import HOG
from deepmatching.network.descriptors.hog import cells_of

#: Reference rows and columns of a block, whose points share a region of target cells and one convolution.
BLOCK = 8


def shifted(source: Tensor, shifts: Sequence[int], shape: Sequence[int], fill: float) -> Tensor | None:
    """result[o] = source[o + shifts], of this shape, ``fill`` where the source has no element; None if it never has.

    One node, ``Pad``, which also cuts off: its borders may be negative.
    """
    pads: list[int] = []
    for shift, outputs, sources in zip(shifts, shape, source.shape, strict=True):
        if overlap(shift, outputs, sources) is None:
            return None
        pads = [-shift, outputs - sources + shift, *pads]
    return F.pad(source, pads, value=fill)


def cut(source: Tensor, starts: Sequence[int], shape: Sequence[int]) -> Tensor:
    """The part of this shape that starts there."""
    part = shifted(source, starts, shape, 0.0)
    assert part is not None
    return part


def aggregation(pooled: Tensor, geometry: Geometry, l: int, exponent: float) -> Tensor:
    """AG and PW: S_{l+1} from S_{l+1/2}."""
    grid, window = geometry.grid(l + 1), geometry.window(l + 1)
    parts = [shifted(pooled, link, (*grid, *window), 0.0) for link in geometry.links(l)]
    total = sum((part for part in parts if part is not None), torch.zeros(()))
    return (total * _share_of_a_child(geometry, l)).pow(exponent)


def _share_of_a_child(geometry: Geometry, l: int) -> Tensor:
    """One over the number of children of each point of level l + 1, (H_{l+1}, W_{l+1}, 1, 1)."""
    (rows, columns), below = geometry.grid(l + 1), geometry.grid(l)
    count = np.zeros((rows, columns, 1, 1), np.float32)
    for down, right, *_ in geometry.links(l):
        vertical, horizontal = overlap(down, rows, below[0]), overlap(right, columns, below[1])
        if vertical and horizontal:
            count[vertical[0], horizontal[0]] += 1
    return torch.from_numpy(1 / count.clip(min=1))


def disaggregation(scores: Tensor, geometry: Geometry, l: int) -> Tensor:
    """DA: Q_{l+1/2} from Q_{l+1}."""
    shape = (*geometry.grid(l), *geometry.window(l + 1))
    best: Tensor | None = None
    for link in geometry.links(l):
        part = shifted(scores, [-shift for shift in link], shape, -torch.inf)
        if part is not None:
            best = part if best is None else torch.maximum(best, part)
    return torch.full(shape, -torch.inf) if best is None else best


def padded_window(geometry: Geometry, l: int) -> tuple[tuple[int, int, int, int], tuple[int, int]]:
    """The border around the maps of S_l that max pooling needs beyond its own, one cell: (left, right, top, bottom).

    And the size of the maps with it. A switch of level l is an index into such a map.
    """
    before = -geometry.pool_offset(l)
    after = [
        max(0, 2 * (pooled - 1) + geometry.pool_offset(l) + 1 - size)
        for size, pooled in zip(geometry.window(l), geometry.window(l + 1), strict=True)
    ]
    h, w = geometry.window(l)
    return (before, after[1], before, after[0]), (h + before + after[0], w + before + after[1])


def max_pooling(scores: Tensor, geometry: Geometry, l: int) -> tuple[Tensor, Tensor]:
    """MP: S_{l+1/2} and m_l from S_l, or from some of its rows; m_l in maps of :func:`padded_window`."""
    border, _ = padded_window(geometry, l)
    maps = scores.flatten(0, 1)[None]
    if any(border):
        maps = F.pad(maps, border, value=-torch.inf)
    pooled, switches = F.max_pool2d(maps, 3, stride=2, padding=1, return_indices=True)
    shape = (*scores.shape[:2], *geometry.window(l + 1))
    return pooled.view(shape), switches.view(shape)


def unpooling(scores: Tensor, switches: Tensor, geometry: Geometry, l: int) -> Tensor:
    """UP: U_l from Q_{l+1/2} and m_l."""
    (left, _, top, _), (rows, columns) = padded_window(geometry, l)
    empty = torch.full((scores.shape[0] * scores.shape[1], rows * columns), -torch.inf)
    flat = switches.flatten(0, 1).flatten(1), scores.flatten(0, 1).flatten(1)
    found = empty.scatter_reduce(1, *flat, "amax").view(*scores.shape[:2], rows, columns)
    h, w = geometry.window(l)
    return found[:, :, top : top + h, left : left + w]


def correlate_and_pool(
    cells0: Tensor, cells1: Tensor, geometry: Geometry, patch: int, exponent: float
) -> tuple[Tensor, Tensor]:
    """CORR, MP and PW: S_{1/2} and m_0. The power is monotone: it may follow the maximum, at a quarter of the work.

    Args:
        cells0, cells1: descriptors, (1, C, h, w).
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
    """Every target position of each row of reference points, (W_0, h_0, w_0), without a radius."""
    for row in filters:
        yield F.conv2d(cells1, row, padding=patch // 2)[0]


def _rows_of_windows(filters: Tensor, cells1: Tensor, geometry: Geometry, patch: int) -> Iterator[Tensor]:
    """The target positions around each row of reference points, (W_0, 2R_0 + 1, 2R_0 + 1).

    The points of a block share a region of target cells. Along a row of blocks, a grouped convolution correlates all
    regions with all patches of their points, and each point keeps its own part.
    """
    (rows, columns), step, side = geometry.grid(0), geometry.step, 2 * geometry.R(0) + 1
    down, across = min(BLOCK, rows), min(BLOCK, columns)
    block_rows, block_columns = -(-rows // down), -(-columns // across)
    height, width = (side + patch - 1 + (points - 1) * step for points in (down, across))
    top, left = (cell - geometry.R(0) - patch // 2 for cell in geometry.first_cell)
    region = ((block_rows - 1) * down * step + height, (block_columns - 1) * across * step + width)
    target = shifted(cells1[0], (0, top, left), (cells1.shape[1], *region), 0.0)
    assert target is not None
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
        side = geometry.step
        (left, _, top, _), (rows, columns) = padded_window(geometry, 0)
        self.geometry, self.border, self.columns = geometry, (top, left), columns
        # Along each axis: the bin of each cell of a padded map, relative to its reference point's.
        relative, first, last = [], [], []
        for cells, before, points, used in zip(
            (rows, columns), (top, left), geometry.grid(0), geometry.used1, strict=True
        ):
            start = geometry.first_cell[0] - geometry.R(0) if geometry.relative else 0
            bins = torch.div(torch.arange(cells) - before + start, side, rounding_mode="floor")
            relative.append(bins)
            first.append(int(bins.min()))
            last.append(int(bins.max()) + (points - 1 if geometry.relative else 0))
            last[-1] = max(last[-1], used // geometry.alpha - 1)
        width = last[1] - first[1] + 1
        self.of_cell = ((relative[0] - first[0])[:, None] * width + relative[1] - first[1]).flatten()
        moves = [torch.arange(points) if geometry.relative else torch.zeros(points) for points in geometry.grid(0)]
        self.of_point = (moves[0][:, None] * width + moves[1]).flatten().long()[:, None]
        inside = [
            (torch.arange(a, b + 1) >= 0) & (torch.arange(a, b + 1) < used // geometry.alpha)
            for a, b, used in zip(first, last, geometry.used1, strict=True)
        ]
        on_image = inside[0][:, None] & inside[1]
        self.off_image = torch.where(on_image, 0.0, -torch.inf).flatten()

    def decode(self, total: Tensor, switches: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Scores, cells and the verified flags of the matches, (1, H_0, W_0) each.

        Args:
            total: Q_{1/2} + S_{1/2}, (H_0, W_0, h_1, w_1): the scores Q_0 of the cells that windows chose.
            switches: m_0, the cells.
        """
        grid, points = total.shape[:2], total.shape[0] * total.shape[1]
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
        chosen = switches.gather(1, windows[:, None])[:, 0]
        rows, columns = chosen // self.columns - self.border[0], chosen % self.columns - self.border[1]
        cells = rows * self.geometry.window(0)[1] + columns
        cells = torch.where(torch.isfinite(scores), cells, 0)
        return tuple(values.view(1, *grid) for values in (scores, cells, verified))  # type: ignore[return-value]


def hog(image: Tensor, descriptor: HOG) -> Tensor:
    """The cells of HOG, as ``deepmatching.network.descriptors.hog.hog_cells``, for images of any size."""
    settings = (descriptor.stride, descriptor.sigmas, descriptor.slope, descriptor.ninth)
    return cells_of(image, descriptor.directions, *settings, _smoothing) * (4 / descriptor.patch)


def _smoothing(image: Tensor, sigma: float, border: int = 0) -> Tensor:
    """Normalised convolution with a 5 × 5 Gaussian: that of the image, divided by that of its support."""
    taps = torch.exp(-torch.arange(-2.0, 3.0).square() / (2 * sigma**2))
    kernel = (taps[:, None] * taps)[None, None]
    channels = image.shape[1]
    mass = F.conv2d(torch.ones_like(image[:, :1]), kernel, padding=2 + border)
    return F.conv2d(image, kernel.expand(channels, 1, 5, 5), padding=2 + border, groups=channels) / mass
