"""Matches from descriptors without the score volumes: how inference runs the fused operators.

On the way up, S_{l+1/2} and the switches m_l of every level are kept. On the way down, Q_{l+1/2} replaces them level by
level. Level 0 takes three quarters of that memory, level 1 three quarters of the rest, and so on. When memory is short,
the lowest levels are held one strip of reference rows at a time and computed twice, once on the way up and once on the
way down. The result is the same to the last bit.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import count

import torch
from torch import Tensor

from deepmatching.geometry.discretization import Geometry, Strip
from deepmatching.geometry.strips import WHOLE, Tiling, strips_down, strips_up
from deepmatching.geometry.targets import Best, Decoded
from deepmatching.network.operators import correlation, power
from deepmatching.network.operators.decoding import best_pooled, decode, decode_pooled, mask_off_image, verify
from deepmatching.network.operators.fused import (
    aggregate,
    aggregate_and_pool,
    correlate_and_pool,
    disaggregate,
    unpool_and_disaggregate,
)
from deepmatching.network.operators.masking import Visible, weighed
from deepmatching.progress import tell
from deepmatching.settings import RECIPROCAL, Reciprocal


@dataclass(frozen=True)
class Decoding:
    """The options of inference, which do not change the network."""

    reciprocal: Reciprocal = RECIPROCAL  #: how matches are verified, see ``network.operators.decoding``
    half: bool = False  #: correlate and store S_{l+1/2} in half precision (CUDA kernels only); sums stay in float32
    subpixel: bool = True  #: move matches between the cells, if the network has a sharpness
    tiling: Tiling = WHOLE  #: the strips that the lowest levels are cut into
    confidence: bool = True  #: estimate the confidence of matches, if the network can
    #: Match again with this many levels, and keep the more confident match of each point; None, or a number that is not
    #: smaller, to match once. Without a confidence, frames are matched once.
    fewer_levels: int | None = None
    masked: bool = False  #: descriptors that are 0 are masked, see ``network.operators.masking``
    #: Called before each strip. Strips save memory: freed memory may be returned to the system here.
    between_strips: Callable[[], None] | None = None


def more_confident(decoded: Decoded, other: Decoded) -> Decoded:
    """Return, at each reference point, the match with the higher confidence; the first one of equals."""
    assert decoded.confidence is not None and other.confidence is not None
    better = other.confidence > decoded.confidence
    pairs = zip(decoded[1:], other[1:], strict=True)
    chosen = [
        None if a is None or b is None else torch.where(better.reshape(better.shape + (1,) * (a.ndim - 3)), b, a)
        for a, b in pairs
    ]
    return Decoded(decoded.points0, *chosen)  # type: ignore[arg-type]


@torch.no_grad()
def decode_fused(
    cells0: Tensor,
    cells1: Tensor,
    geometries: Sequence[Geometry],
    patch: int,
    nu: list[float],
    decoding: Decoding,
    visible: Visible | None = None,
) -> list[Decoded]:
    """Match a batch of pairs to cells, from their descriptors and with hard pooling. Never waits for the GPU.

    Args:
        cells0, cells1, patch: see :func:`~deepmatching.network.operators.correlation`.
        geometries: they differ in L alone, the lowest first. The pairs are matched with each. As the levels of one are
            the lowest of the next, they are computed once, unless memory is short.
        nu: ν_0, ν_1, …; levels beyond the last one share it.
        decoding: the options that concern the volumes and their verification.
        visible: what masks leave to be matched; None without masks.
    """
    *fewer, geometry = geometries
    if fewer and (fewer[0].L == 0 or decoding.tiling.is_split(geometry)):
        return [decode_fused(cells0, cells1, [each], patch, nu, decoding, visible)[0] for each in geometries]
    nu = nu + nu[-1:] * (geometry.L + 1 - len(nu))
    reciprocal, tiling, half = decoding.reciprocal, decoding.tiling, decoding.half
    if geometry.L == 0:
        scores = weighed(power(correlation(cells0, cells1, geometry, patch), nu[0]), visible, geometry, 0)
        scores = mask_off_image(scores, geometry)
        if visible is not None:
            visible.leave_out_of_all(scores, geometry)
        return [decode(scores, geometry, reciprocal)]

    begun = count(1)

    def first(part: Geometry) -> tuple[Tensor, Tensor]:
        """Compute S_{1/2} and m_0."""
        if part is not geometry:
            tell("strip", next(begun), total)
            if decoding.between_strips:  # describing and the strip before have freed much
                decoding.between_strips()
        volumes = correlate_and_pool(cells0, cells1, part, patch, nu[0], half)
        weighed(volumes[0], visible, part, 0)
        return volumes

    def finest(pooled: Tensor, switches: Tensor, part: Geometry) -> tuple[Tensor, Tensor]:
        """Return S_{1/2} and m_0 for decoding, in which no match starts or ends in a mask."""
        return pooled if visible is None else visible.leave_out(pooled, switches, part), switches

    total = 0
    if not tiling.is_split(geometry):
        levels, found = [first(geometry)], []
        for each in geometries:
            _ascend(levels, each, nu, len(levels) - 1, each.L - 1, visible)
            own = levels if each is geometry else levels[:]  # the last one frees them on its way down
            down = _descend(own, each, nu, 0, visible), *finest(*levels[0], each)
            found.append(decode_pooled(*down, each, reciprocal))
            del down  # what is next takes its place
            if visible is not None:
                levels[0][0].clamp_(min=0)  # what was left out scores 0 on the way up
        return found

    top = min(tiling.levels, geometry.L - 1)
    total = sum(min(tiling.strips, geometry.grid(l)[0]) for l in (top, 0))  # on the way up and down

    def up(part: Strip) -> tuple[Tensor, Tensor]:
        """Compute S_{l+1/2} and m_l of a strip for l = ``top``."""
        volumes = first(part)
        for l in range(top):
            volumes = aggregate_and_pool(volumes[0], part, l, nu[l + 1])
            weighed(volumes[0], visible, part, l + 1)
        return volumes

    levels = [_join(geometry, top, ((part, *up(part)) for part in strips_up(geometry, tiling)))]
    _ascend(levels, geometry, nu, top, geometry.L - 1, visible)
    coarse = _descend(levels, geometry, nu, top, visible)
    whole = levels.pop()

    def best(part: Strip, below: Strip) -> Best:
        lower = [first(below)]
        _ascend(lower, below, nu, 0, top - 1, visible)
        rows = slice(*part.rows[top])
        Q, pooled, switches = (volume[:, rows] for volume in (coarse, *whole))
        for l in reversed(range(top)):
            Q = unpool_and_disaggregate(Q, pooled, switches, part, l)
            begin, end = (row - below.rows[l][0] for row in part.rows[l])
            pooled, switches = (volume[:, begin:end] for volume in lower.pop())
        return best_pooled(Q, *finest(pooled, switches, part), part, reciprocal)

    return [verify(_merge(best(*strips) for strips in strips_down(geometry, tiling)), geometry, reciprocal)]


def _ascend(
    levels: list[tuple[Tensor, Tensor]],
    geometry: Geometry,
    nu: list[float],
    lowest: int,
    highest: int,
    visible: Visible | None,
) -> None:
    """Append (S_{l+1/2}, m_l) for l = ``lowest`` + 1 … ``highest`` to a list that ends with level ``lowest``."""
    for l in range(lowest, highest):
        pooled, switches = aggregate_and_pool(levels[-1][0], geometry, l, nu[l + 1])
        levels.append((weighed(pooled, visible, geometry, l + 1), switches))


def _descend(
    levels: list[tuple[Tensor, Tensor]], geometry: Geometry, nu: list[float], lowest: int, visible: Visible | None
) -> Tensor:
    """Compute Q_{lowest + 1/2}; remove all levels above ``lowest`` from the list."""
    top = geometry.L - 1
    Q = weighed(aggregate(levels[-1][0], geometry, top, nu[top + 1]).float(), visible, geometry, top + 1)
    Q = disaggregate(Q, geometry, top)
    for l in reversed(range(lowest, top)):
        Q = unpool_and_disaggregate(Q, *levels.pop(), geometry, l)
    return Q


def _join(geometry: Geometry, l: int, parts: Iterable[tuple[Strip, Tensor, Tensor]]) -> tuple[Tensor, Tensor]:
    """Assemble S_{l+1/2} and m_l of the whole grid from its strips."""
    whole: list[Tensor] = []
    for strip, *volumes in parts:
        whole = whole or [v.new_empty(v.shape[0], *geometry.grid(l), *v.shape[3:]) for v in volumes]
        for target, volume in zip(whole, volumes, strict=True):
            target[:, slice(*strip.rows[l])] = volume
    return whole[0], whole[1]


def _merge(parts: Iterable[Best]) -> Best:
    """Merge the best matches of all strips and the best score at every target."""
    scores, cells = [], []
    table: Tensor | None = None
    for part in parts:
        scores.append(part.scores)
        cells.append(part.cells)
        table = part.table if table is None else torch.maximum(table, part.table, out=table)
    assert table is not None
    return Best(torch.cat(scores, 1), torch.cat(cells, 1), table)
