"""Geodesic distances: how far it is from one match to another without crossing edges.

A path pays each pixel's edge strength (plus a little), so the shortest path between two points of one object is cheap
and a path across its outline is not. As in the original, distances between matches are measured through the cells of
pixels that are nearest to each match.

The operators take all S seeds and a mask of those that count, so that their shapes do not depend on which are dropped.
"""

import heapq

import numpy as np
import torch
from torch import Tensor

from deepmatching.geometry.seeds import Graph, Nearest, graph_of, seed_map
from deepmatching.kernels.constants import DISTANCE_TOLERANCE
from deepmatching.kernels.registry import operator

FLOOR = 0.001  #: added to the edge strength, so that flat regions cost something too
_SPARE = 8192  #: places for pairs of pixels that are no edge of the graph


@operator()
def distance_transform(cost: Tensor, pixels: Tensor, counts: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Return the distance D of every pixel to its nearest seed, and that seed's number.

    D solves |∇D| = cost, upwind: with a the lower of the two neighbours' values along x, and b along y,

        D = (a + b + √(2 cost² − (a − b)²)) / 2   if |a − b| < cost,   else min(a, b) + cost.

    A seed's own pixel counts its cost, as in the original (found by comparison with its output). On a strong edge, two
    cheap paths that meet there may cost less; the seed then has no cell. D is (H, W) float32, the numbers are int32.

    Args:
        cost: (H, W) float32, positive.
        pixels: (S, 2) int64, column and row of each seed; no two of those that count in the same pixel.
        counts: (S,) bool, the seeds that count; None for all. At least one must.
    """
    height, width = cost.shape
    padded = cost.new_full((height + 2, width + 2), torch.inf)
    labels = torch.full_like(padded, -1, dtype=torch.int32)
    distance, label = padded[1:-1, 1:-1], labels[1:-1, 1:-1]
    label.copy_(seed_map(pixels, counts, (height, width)))
    distance.copy_(torch.where(label >= 0, cost, torch.inf))
    beside = [(slice(1, -1), slice(0, -2)), (slice(1, -1), slice(2, None))]
    above = [(slice(0, -2), slice(1, -1)), (slice(2, None), slice(1, -1))]
    fall = torch.inf
    while fall > DISTANCE_TOLERANCE:
        (a, a_label), (b, b_label) = (_lower(padded, labels, *sides) for sides in (beside, above))
        gap = (a - b).abs()
        meeting = 0.5 * (a + b + (2 * cost * cost - gap * gap).clamp(min=0).sqrt())
        arrival = torch.where(gap < cost, meeting, torch.minimum(a, b) + cost)
        change = torch.where(arrival < distance, distance - arrival, 0)
        fall = float(change.max())
        label.copy_(torch.where(change > 0, torch.where(a <= b, a_label, b_label), label))
        distance.copy_(torch.where(change > 0, arrival, distance))
    return distance.clone(), label.clone()


def _lower(
    values: Tensor, labels: Tensor, first: tuple[slice, ...], second: tuple[slice, ...]
) -> tuple[Tensor, Tensor]:
    """Return the lower of two neighbours' values, and its label."""
    lower = values[second] < values[first]
    return torch.where(lower, values[second], values[first]), torch.where(lower, labels[second], labels[first])


@operator()
def cell_graph(distance: Tensor, label: Tensor, seeds: int) -> Graph:
    """Return adjacent cells, and the distance between their seeds: the least D(p) + D(q) over adjacent pixels p and q.

    Cells are connected, so the graph is planar and has less than 3 S edges; each is listed from both ends.
    """
    beside = (label[:, :-1], label[:, 1:], distance[:, :-1] + distance[:, 1:])
    below = (label[:-1], label[1:], distance[:-1] + distance[1:])
    a, b, length = (torch.cat([x.flatten(), y.flatten()]) for x, y in zip(beside, below, strict=True))
    last, most = (seeds + 1) ** 2, 3 * seeds  # the number of those that are no edge, and of places
    kind = torch.int32 if last < 2**31 else torch.int64
    pair = torch.minimum(a, b).to(kind) * (seeds + 1) + torch.maximum(a, b).to(kind)
    pair, order = torch.where(a == b, last, pair).sort()
    place = (pair != torch.cat([pair[:1], pair[:-1]])).cumsum(0)
    # Most pairs of pixels are no edge. They get places of their own, many, because a GPU writes one after the other to
    # the same place.
    other = torch.arange(len(pair), device=label.device) % _SPARE
    place = torch.where(pair < last, place.clamp_(max=most), most + other)
    ends = torch.full((most + _SPARE,), last, dtype=torch.int64, device=label.device)
    ends.scatter_(0, place, pair.long())
    lengths = distance.new_full((most + _SPARE,), torch.inf)
    lengths.scatter_reduce_(0, place, length[order], "amin")
    return graph_of(ends[:most], lengths[:most], seeds)


@operator()
def nearest_seeds(graph: Graph, number: int) -> Nearest:
    """Return the K = min(number, S) nearest seeds of each seed along the graph, itself included (Dijkstra)."""
    starts, others, lengths = (tensor.cpu().numpy() for tensor in graph)
    seeds = len(starts) - 1
    index = np.full((seeds, min(number, seeds)), -1, dtype=np.int32)
    distance = np.full(index.shape, np.inf, dtype=np.float32)
    for source in range(seeds):
        found: dict[int, np.float32] = {}
        heap = [(np.float32(0), source)]
        while heap and len(found) < index.shape[1]:
            length, seed = heapq.heappop(heap)
            if seed in found or not np.isfinite(length):
                continue
            index[source, len(found)], distance[source, len(found)] = seed, length
            found[seed] = length
            for n in range(starts[seed], starts[seed + 1]):
                heapq.heappush(heap, (length + lengths[n], int(others[n])))
    device = graph[0].device
    return Nearest(torch.from_numpy(index).to(device), torch.from_numpy(distance).to(device))
