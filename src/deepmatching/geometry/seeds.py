"""Matches as seeds: the pixels that belong to each seed, and its nearest other seeds."""

from typing import NamedTuple

import torch
from torch import Tensor

#: For each cell: where its neighbours begin (S + 1,), then all neighbours and the distances to them, (E,) each. The
#: last start is the number of entries that count; on a GPU, where shapes must not depend on values, more follow.
Graph = tuple[Tensor, Tensor, Tensor]


def graph_of(ends: Tensor, lengths: Tensor, seeds: int) -> Graph:
    """Build the graph of S seeds from its edges (E,), in any order.

    ``ends`` holds the two ends a < b of an edge as a (S + 1) + b, int64; (S + 1)² where there is none.
    """
    last = (seeds + 1) ** 2
    a, b = ends // (seeds + 1), ends % (seeds + 1)
    both, order = torch.cat([ends, torch.where(ends < last, b * (seeds + 1) + a, last)]).sort()
    starts = torch.searchsorted(both, torch.arange(seeds + 1, device=ends.device) * (seeds + 1))
    return starts, (both % (seeds + 1)).int(), torch.cat([lengths, lengths])[order]


class Nearest(NamedTuple):
    """The K nearest seeds of each seed."""

    seeds: Tensor  #: (S, K) int32, nearest first, itself among them; −1 beyond the last
    distances: Tensor  #: (S, K) float32; ∞ beyond the last


def seed_map(pixels: Tensor, counts: Tensor | None, size: tuple[int, int]) -> Tensor:
    """Return the seed in each pixel, (H, W) int32; −1 where there is none."""
    number = torch.arange(len(pixels), dtype=torch.int32, device=pixels.device)
    if counts is not None:
        number = torch.where(counts, number, -1)
    found = torch.full((size[0] * size[1],), -1, dtype=torch.int32, device=pixels.device)
    found.scatter_reduce_(0, pixels[:, 1] * size[1] + pixels[:, 0], number, "amax")
    return found.view(size)
