"""Geodesic distances: how far it is from one match to another without crossing edges.

A path pays each pixel's edge strength (plus a little), so the shortest path between two points of one object is cheap
and a path across its outline is not. As in the original, distances between matches are measured through the cells of
pixels that are nearest to each match.
"""

from __future__ import annotations

import heapq

import numpy as np

from deepmatching.operators.constants import TOLERANCE
from deepmatching.operators.kernels import operator
from deepmatching.operators.seeds import Cells, Graph, Neighbours

#: Added to the edge strength, so that flat regions cost something too.
FLOOR = 0.001


def cells_of(edges: np.ndarray, pixels: np.ndarray) -> Cells:
    """The cells of seeds.

    Args:
        edges: (H, W), edge strength, 0 … 1.
        pixels: (S, 2), column and row of each seed; no two in the same pixel.
    """
    distance, label = distance_transform(edges.astype(np.float32) + np.float32(FLOOR), pixels)
    return Cells(label, cell_graph(distance, label, len(pixels)))


@operator()
def distance_transform(cost: np.ndarray, pixels: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The distance D of every pixel to its nearest seed, and that seed's number.

    D solves |∇D| = cost, upwind: with a the lower of the two neighbours' values along x, and b along y,

        D = (a + b + √(2 cost² − (a − b)²)) / 2   if |a − b| < cost,   else min(a, b) + cost.

    A seed's own pixel counts its cost, as in the original (found by comparison with its output). On a strong edge, two
    cheap paths that meet there may cost less; the seed then has no cell.

    Args:
        cost: (H, W) float32, positive.
        pixels: (S, 2), column and row of each seed.

    Returns:
        D (H, W) float32 and the seeds' numbers (H, W) int32.
    """
    padded = np.full((cost.shape[0] + 2, cost.shape[1] + 2), np.inf, dtype=np.float32)
    labels = np.full(padded.shape, -1, dtype=np.int32)
    distance, label = padded[1:-1, 1:-1], labels[1:-1, 1:-1]
    column, row = np.asarray(pixels).T
    distance[row, column] = cost[row, column]
    label[row, column] = np.arange(len(pixels))
    beside = [(slice(1, -1), slice(0, -2)), (slice(1, -1), slice(2, None))]
    above = [(slice(0, -2), slice(1, -1)), (slice(2, None), slice(1, -1))]
    fall: float = np.inf
    while fall > TOLERANCE:
        (a, a_label), (b, b_label) = (_lower(padded, labels, *sides) for sides in (beside, above))
        with np.errstate(invalid="ignore"):
            gap = np.abs(a - b)
            meeting = np.float32(0.5) * (a + b + np.sqrt(np.maximum(2 * cost * cost - gap * gap, 0)))
            arrival = np.where(gap < cost, meeting, np.minimum(a, b) + cost)
            change = np.where(arrival < distance, distance - arrival, np.float32(0))
        fall = float(change.max())
        label[...] = np.where(change > 0, np.where(a <= b, a_label, b_label), label)
        distance[...] = np.where(change > 0, arrival, distance)
    return distance.copy(), label.copy()


def _lower(
    values: np.ndarray, labels: np.ndarray, first: tuple[slice, slice], second: tuple[slice, slice]
) -> tuple[np.ndarray, np.ndarray]:
    """The lower of two neighbours' values, and its label."""
    lower = values[second] < values[first]
    return np.where(lower, values[second], values[first]), np.where(lower, labels[second], labels[first])


@operator()
def cell_graph(distance: np.ndarray, label: np.ndarray, seeds: int) -> Graph:
    """Adjacent cells, and the distance between their seeds: the least D(p) + D(q) over adjacent pixels p and q."""
    pairs = []
    for p, q in (((slice(None), slice(0, -1)), (slice(None), slice(1, None))), ((slice(0, -1),), (slice(1, None),))):
        border = label[p] != label[q]
        pairs.append((label[p][border], label[q][border], (distance[p] + distance[q])[border]))
    a, b, length = (np.concatenate(parts) for parts in zip(*pairs, strict=True))
    a, b, length = np.concatenate([a, b]), np.concatenate([b, a]), np.concatenate([length, length])
    order = np.lexsort((length, b, a))
    a, b, length = a[order], b[order], length[order]
    shortest = np.ones(len(a), dtype=bool)
    shortest[1:] = (a[1:] != a[:-1]) | (b[1:] != b[:-1])
    starts = np.searchsorted(a[shortest], np.arange(seeds + 1))
    return starts, b[shortest].astype(np.int32), length[shortest].astype(np.float32)


@operator()
def nearest_seeds(graph: Graph, number: int) -> Neighbours:
    """The K = min(number, S) nearest seeds of each seed along the graph, itself included (Dijkstra)."""
    starts, others, lengths = graph
    seeds = len(starts) - 1
    index = np.full((seeds, min(number, seeds)), -1, dtype=np.int32)
    distance = np.full(index.shape, np.inf, dtype=np.float32)
    for source in range(seeds):
        found: dict[int, np.float32] = {}
        heap = [(np.float32(0), source)]
        while heap and len(found) < index.shape[1]:
            length, seed = heapq.heappop(heap)
            if seed in found:
                continue
            index[source, len(found)], distance[source, len(found)] = seed, length
            found[seed] = length
            for n in range(starts[seed], starts[seed + 1]):
                heapq.heappush(heap, (length + lengths[n], int(others[n])))
    return Neighbours(index, distance)
