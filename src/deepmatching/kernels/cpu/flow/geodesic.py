"""CPU kernels of ``deepmatching.flow.operators.geodesic``."""

import numpy as np
import torch
from torch import Tensor

from deepmatching.geometry.seeds import Graph, Nearest, seed_map
from deepmatching.kernels.constants import DISTANCE_TOLERANCE
from deepmatching.kernels.cpu.compilation import helper, kernel
from deepmatching.kernels.cpu.running import arrays_of, run_in_threads

STRIP = 64  #: rows that are swept together: few enough for the cache
SMALL = np.float32(DISTANCE_TOLERANCE)
FAR = np.float32(np.inf)
HALF, TWO, ZERO = np.float32(0.5), np.float32(2), np.float32(0)


def distance_transform(cost: Tensor, pixels: Tensor, counts: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """See :func:`deepmatching.flow.operators.geodesic.distance_transform`.

    Strips of rows are swept down and up, with the adjacent rows of other strips as those were before the sweep, until
    neither a strip nor those rows change. The result does not depend on the number of threads.
    """
    (prices,), label = arrays_of(cost), seed_map(pixels, counts, (cost.shape[0], cost.shape[1])).numpy()
    distance = np.where(label >= 0, prices, FAR)
    first = np.arange(0, len(prices), STRIP)
    outer = np.stack([first, np.minimum(first + STRIP, len(prices)) - 1], axis=1)  # the rows that other strips see
    active = np.arange(len(first))
    while len(active):
        seen, seen_label = distance[outer], label[outer]
        moving = np.zeros(len(first) + 2, dtype=bool)  # strip n is at n + 1
        run_in_threads(_sweep_strips, len(active), active, prices, seen, seen_label, distance, label, moving)
        with np.errstate(invalid="ignore"):
            fell = (seen - distance[outer] > SMALL).any(axis=2)
        moving[:-2] |= fell[:, 0]
        moving[2:] |= fell[:, 1]
        active = np.flatnonzero(moving[1:-1])
    return torch.from_numpy(distance), torch.from_numpy(label)


@helper
def _sweep_row(cost, y, d, l, r, beside, beside_label):
    """Update row r of a strip from left to right and back; return the largest fall of a distance."""
    width = cost.shape[1]
    for x in range(1, width + 1):
        up, down = d[r - 1, x], d[r + 1, x]
        lower = down < up
        beside[x] = down if lower else up
        beside_label[x] = l[r + 1, x] if lower else l[r - 1, x]
    fall = ZERO
    for direction in range(2):
        step = 1 - 2 * direction
        x = 1 if direction == 0 else width
        for _ in range(width):
            a, nearest = d[r, x - 1], l[r, x - 1]
            if d[r, x + 1] < a:
                a, nearest = d[r, x + 1], l[r, x + 1]
            b, c = beside[x], cost[y, x - 1]
            low, gap = min(a, b), abs(a - b)
            arrival = low + c
            if gap < c:
                arrival = HALF * (a + b + np.sqrt(TWO * c * c - gap * gap))
            if arrival < d[r, x]:
                fall = max(fall, d[r, x] - arrival)
                d[r, x] = arrival
                l[r, x] = nearest if a <= b else beside_label[x]
            x += step
    return fall


@kernel
def _sweep_strips(begin, end, active, cost, seen, seen_label, distance, label, moving):
    """Sweep some of the ``active`` strips down and up, and set moving[n + 1] if strip n changed.

    ``seen`` and ``seen_label``, (strips, 2, W), are the first and last row of every strip before this call.
    """
    height, width = cost.shape
    d = np.empty((STRIP + 2, width + 2), dtype=np.float32)
    l = np.empty((STRIP + 2, width + 2), dtype=np.int32)
    beside, beside_label = np.empty(width + 2, dtype=np.float32), np.empty(width + 2, dtype=np.int32)
    for n in range(begin, end):
        strip = active[n]
        top = strip * STRIP
        rows = min(STRIP, height - top)
        d[:], l[:] = FAR, -1
        for r in range(rows):  # loops: an assignment of slices takes a second to compile
            for x in range(width):
                d[r + 1, x + 1], l[r + 1, x + 1] = distance[top + r, x], label[top + r, x]
        for x in range(width):
            if strip > 0:
                d[0, x + 1], l[0, x + 1] = seen[strip - 1, 1, x], seen_label[strip - 1, 1, x]
            if top + rows < height:
                d[rows + 1, x + 1], l[rows + 1, x + 1] = seen[strip + 1, 0, x], seen_label[strip + 1, 0, x]
        fall = ZERO
        for r in range(1, rows + 1):
            fall = max(fall, _sweep_row(cost, top + r - 1, d, l, r, beside, beside_label))
        for r in range(rows, 0, -1):
            fall = max(fall, _sweep_row(cost, top + r - 1, d, l, r, beside, beside_label))
        moving[strip + 1] = fall > SMALL
        for r in range(rows):
            for x in range(width):
                distance[top + r, x], label[top + r, x] = d[r + 1, x + 1], l[r + 1, x + 1]


def cell_graph(distance: Tensor, label: Tensor, seeds: int) -> Graph:
    """See :func:`deepmatching.flow.operators.geodesic.cell_graph`."""
    counts = np.zeros(seeds + 1, dtype=np.int64)
    distances, cells = arrays_of(distance, label)
    _count_borders(cells, counts)
    starts, others, lengths = map(torch.from_numpy, _collect_borders(distances, cells, np.cumsum(counts)))
    return starts, others, lengths


@kernel
def _count_borders(label, counts):
    """Add to counts[a + 1] the pairs of adjacent pixels with one in cell a and the other in another cell."""
    height, width = label.shape
    for y in range(height):
        for x in range(width):
            for down in range(2):
                a, b = label[y, x], _adjacent(label, y, x, down)
                if a != b:
                    counts[a + 1] += 1
                    counts[b + 1] += 1


@helper
def _adjacent(label, y, x, down):
    """Return the cell of the pixel to the right or below; off the image, that of the pixel itself."""
    return label[min(y + down, label.shape[0] - 1), min(x + 1 - down, label.shape[1] - 1)]


@kernel
def _collect_borders(distance, label, starts):
    """Return where each cell's neighbours begin, their numbers, and the distances to them."""
    height, width = label.shape
    seeds = starts.shape[0] - 1
    others, lengths = np.empty(starts[-1], dtype=np.int32), np.empty(starts[-1], dtype=np.float32)
    filled = starts[:-1].copy()
    for y in range(height):
        for x in range(width):
            for down in range(2):
                a, b = label[y, x], _adjacent(label, y, x, down)
                if a != b:
                    length = distance[y, x] + distance[y + down, x + 1 - down]
                    others[filled[a]], lengths[filled[a]] = b, length
                    others[filled[b]], lengths[filled[b]] = a, length
                    filled[a] += 1
                    filled[b] += 1
    # Several borders between the same two cells: the shortest path counts.
    rows = np.zeros(seeds + 1, dtype=np.int64)
    place = np.full(seeds, -1, dtype=np.int64)
    count = 0
    for a in range(seeds):
        rows[a] = count
        for n in range(starts[a], starts[a + 1]):
            b, length = others[n], lengths[n]
            if place[b] < rows[a]:
                place[b] = count
                others[count], lengths[count] = b, length
                count += 1
            elif length < lengths[place[b]]:
                lengths[place[b]] = length
    rows[seeds] = count
    return rows, others[:count].copy(), lengths[:count].copy()


def nearest_seeds(graph: Graph, number: int) -> Nearest:
    """See :func:`deepmatching.flow.operators.geodesic.nearest_seeds`."""
    arrays, seeds = arrays_of(*graph), len(graph[0]) - 1
    index = np.full((seeds, min(number, seeds)), -1, dtype=np.int32)
    distance = np.full(index.shape, FAR, dtype=np.float32)
    run_in_threads(_search, seeds, *arrays, index, distance)
    return Nearest(torch.from_numpy(index), torch.from_numpy(distance))


@kernel
def _search(begin, end, rows, others, lengths, index, distance):
    """Do Dijkstra's search from each of the seeds ``begin`` … ``end`` − 1, until enough others are found.

    The binary heap holds a seed once for every shorter path found to it; all but the first to come out are skipped.
    """
    seeds, number = index.shape
    known, touched = np.full(seeds, FAR, dtype=np.float32), np.empty(seeds, dtype=np.int32)
    heap, who = np.empty(others.shape[0] + 2, dtype=np.float32), np.empty(others.shape[0] + 2, dtype=np.int32)
    for source in range(begin, end):
        known[source] = ZERO
        touched[0] = source
        count, found, size = 1, 0, 1
        heap[0], who[0] = ZERO, source
        while size > 0 and found < number:
            length, seed = heap[0], who[0]
            size -= 1
            _sift_down(heap, who, size)
            if length > known[seed]:
                continue
            index[source, found], distance[source, found] = seed, length
            found += 1
            for n in range(rows[seed], rows[seed + 1]):
                other, path = others[n], length + lengths[n]
                if path < known[other]:
                    if known[other] == FAR:
                        touched[count] = other
                        count += 1
                    known[other] = path
                    _sift_up(heap, who, size, path, other)
                    size += 1
        for n in range(count):
            known[touched[n]] = FAR


@helper
def _sift_up(heap, who, at, value, item):
    """Put an item into a heap of ``at`` others."""
    while at > 0:
        parent = (at - 1) >> 1
        if heap[parent] <= value:
            break
        heap[at], who[at] = heap[parent], who[parent]
        at = parent
    heap[at], who[at] = value, item


@helper
def _sift_down(heap, who, size):
    """Remove the first item: the last one, at ``size``, takes its place and sinks."""
    value, item = heap[size], who[size]
    at = 0
    while True:
        child = 2 * at + 1
        if child >= size:
            break
        if child + 1 < size and heap[child + 1] < heap[child]:
            child += 1
        if heap[child] >= value:
            break
        heap[at], who[at] = heap[child], who[child]
        at = child
    heap[at], who[at] = value, item
