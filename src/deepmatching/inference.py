"""Matches from descriptors without the score volumes: how inference runs the fused operators.

On the way up, S_{l+1/2} and the switches m_l of every level are kept. On the way down, Q_{l+1/2} replaces them level by
level. Level 0 takes four fifths of that memory. When memory is short, level 0 is held one strip of reference rows at a
time and computed twice, once on the way up and once on the way down. The result is the same to the last bit.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor

from deepmatching.defaults import RECIPROCAL, Reciprocal
from deepmatching.geometry import Geometry, Strip
from deepmatching.operators import correlation, power
from deepmatching.operators.decoding import best_pooled, decode, decode_pooled, mask_off_image, verify
from deepmatching.operators.fused import (
    aggregate,
    aggregate_and_pool,
    correlate_and_pool,
    disaggregate,
    unpool_and_disaggregate,
)
from deepmatching.operators.targets import Best, Decoded


@dataclass(frozen=True)
class Decoding:
    """The options of inference, which do not change the network.

    Attributes:
        reciprocal: how matches are verified, see ``deepmatching.operators.decoding``.
        half: correlate and store S_{l+1/2} in half precision (CUDA kernels only). Sums stay in float32.
        subpixel: move matches between the cells, if the network has a sharpness.
        strips: number of strips that level 0 is cut into.
        confidence: judge the matches, if the network can.
    """

    reciprocal: Reciprocal = RECIPROCAL
    half: bool = False
    subpixel: bool = True
    strips: int = 1
    confidence: bool = True


@dataclass(frozen=True, eq=False)
class Frame:
    """A frame of a sequence and its descriptors, which serve in two pairs."""

    image: Tensor  #: (C, H, W), where it was loaded
    on_device: Tensor  #: (C, H, W), on the matcher's device
    cells: Tensor  #: (1, C, h, w)
    geometry: Geometry  #: that of a pair of such frames
    size: tuple[int, int]  #: of the frame as it was given


@torch.no_grad()
def decode_cells(
    cells0: Tensor, cells1: Tensor, geometry: Geometry, patch: int, exponents: list[float], decoding: Decoding
) -> Decoded:
    """The matches of a batch of pairs from their descriptors, on the cells. Never waits for the GPU.

    Args:
        cells0, cells1, patch: see :func:`~deepmatching.operators.correlation`.
        exponents: ν_0, ν_1, …; levels beyond the last one share it.
        decoding: the options; ``subpixel`` has no effect here.
    """
    nu = exponents + exponents[-1:] * (geometry.L + 1 - len(exponents))
    reciprocal, strips, half = decoding.reciprocal, decoding.strips, decoding.half
    if geometry.L == 0:
        scores = power(correlation(cells0, cells1, geometry, patch), nu[0])
        return decode(mask_off_image(scores, geometry), geometry, reciprocal)

    def first(part: Geometry) -> tuple[Tensor, Tensor]:
        """S_{1/2} and m_0."""
        return correlate_and_pool(cells0, cells1, part, patch, nu[0], half)

    if strips == 1 or geometry.L == 1:
        levels = [first(geometry)]
        _ascend(levels, geometry, nu, 0)
        coarse = _descend(levels, geometry, nu, 0)
        return decode_pooled(coarse, *levels.pop(), geometry, reciprocal)

    levels = [
        _join(geometry, ((p, *aggregate_and_pool(first(p)[0], p, 0, nu[1])) for p in _strips_up(geometry, strips)))
    ]
    _ascend(levels, geometry, nu, 1)
    coarse = _descend(levels, geometry, nu, 1)
    pooled, switches = levels.pop()

    def best(part: Strip) -> Best:
        rows = slice(*part.rows1)
        fine = unpool_and_disaggregate(coarse[:, rows], pooled[:, rows], switches[:, rows], part, 0)
        return best_pooled(fine, *first(part), part, reciprocal)

    return verify(_merge(best(part) for part in _strips_down(geometry, strips)), geometry, reciprocal)


def _ascend(levels: list[tuple[Tensor, Tensor]], geometry: Geometry, nu: list[float], lowest: int) -> None:
    """Append (S_{l+3/2}, m_{l+1}) for l = ``lowest`` … L − 2 to a list that ends with level ``lowest``."""
    for l in range(lowest, geometry.L - 1):
        levels.append(aggregate_and_pool(levels[-1][0], geometry, l, nu[l + 1]))


def _descend(levels: list[tuple[Tensor, Tensor]], geometry: Geometry, nu: list[float], lowest: int) -> Tensor:
    """Q_{lowest + 1/2}; removes all levels above ``lowest`` from the list."""
    top = geometry.L - 1
    Q = disaggregate(aggregate(levels[-1][0], geometry, top, nu[top + 1]).float(), geometry, top)
    for l in reversed(range(lowest, top)):
        Q = unpool_and_disaggregate(Q, *levels.pop(), geometry, l)
    return Q


def _strips_up(geometry: Geometry, count: int) -> Iterable[Strip]:
    """Strips that partition the rows of level 1, each with all its children at level 0."""
    minus, plus = geometry.child_shifts(0)
    for first, end in _ranges(geometry.grid(1)[0], count):
        yield geometry.strip((max(0, first + minus), min(geometry.grid(0)[0], end + plus)), (first, end))


def _strips_down(geometry: Geometry, count: int) -> Iterable[Strip]:
    """Strips that partition the rows of level 0, each with all its parents at level 1."""
    minus, plus = geometry.child_shifts(0)
    for first, end in _ranges(geometry.grid(0)[0], count):
        yield geometry.strip((first, end), (max(0, first - plus), min(geometry.grid(1)[0], end - minus)))


def _ranges(rows: int, count: int) -> Iterable[tuple[int, int]]:
    count = min(count, rows)
    return pairwise(rows * n // count for n in range(count + 1))


def _join(geometry: Geometry, parts: Iterable[tuple[Strip, Tensor, Tensor]]) -> tuple[Tensor, Tensor]:
    """S_{3/2} and m_1 of the whole grid, assembled from its strips."""
    whole: list[Tensor] = []
    for strip, *volumes in parts:
        if not whole:
            whole = [v.new_empty(v.shape[0], *geometry.grid(1), *v.shape[3:]) for v in volumes]
        for target, volume in zip(whole, volumes, strict=True):
            target[:, slice(*strip.rows1)] = volume
    return whole[0], whole[1]


def _merge(parts: Iterable[Best]) -> Best:
    """The best matches of all strips and the best score at every target."""
    found = list(parts)
    table = found[0].table
    for part in found[1:]:
        table = torch.maximum(table, part.table)
    return Best(torch.cat([part.scores for part in found], 1), torch.cat([part.cells for part in found], 1), table)
