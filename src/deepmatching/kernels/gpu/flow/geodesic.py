"""Geodesic distances in tiles, and the search for the nearest seeds: one program each.

Neither waits for the host: shapes and launches depend on the size of the image and the number of seeds alone, so that
a CUDA graph can record them.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from deepmatching.geometry.seeds import Graph, Nearest, graph_of, seed_map
from deepmatching.kernels.constants import DISTANCE_TOLERANCE
from deepmatching.kernels.gpu.indexing import fetch, launch, launch_on_pixels, pixels_of

# Chosen by measurements on an H200 with 1024×436 pixels: 0.58 ms, and 0.79 with tiles of 32.
TILE = 16  #: side of the tiles that distances spread in
CHECK = 8  #: iterations between two looks at whether a tile still changes
VISIT = 4  #: looks at most in a round, so that a round crosses a tile twice
EXTRA = 24  #: rounds beyond those that cross the whole image

SMALL = tl.constexpr(DISTANCE_TOLERANCE)
INFINITE = tl.constexpr(float("inf"))


@triton.jit
def lower_of(distance, first, second, has_first, has_second):
    """Return the lower of two distances, ∞ where there is none, and its place, the first one's if they are equal."""
    a = tl.load(distance + first, mask=has_first, other=INFINITE)
    b = tl.load(distance + second, mask=has_second, other=INFINITE)
    return tl.minimum(a, b), tl.where(b < a, second, first)


@triton.jit
def arrival_of(a, b, cost):
    """Return D from the lower neighbour along x and along y."""
    gap = tl.abs(a - b)
    meets = gap < cost  # not where both are ∞
    square = tl.where(meets, 2.0 * cost * cost - gap * gap, 0.0)
    return tl.where(meets, 0.5 * (a + b + tl.sqrt(square)), tl.minimum(a, b) + cost)


@triton.jit
def _spread(
    cost, distance, moved, h, w, tiles_y, tiles_x, source,
    CHECK: tl.constexpr, VISIT: tl.constexpr, TILE: tl.constexpr
):  # fmt: skip
    """Do one round: iterations inside each tile, with the pixels around it as they were before the round.

    Both states, before and after, are planes of ``distance`` and of ``moved``, the tiles that changed; ``source`` is
    the plane to read. A tile that did not change, among four that did not, is the same in both.
    """
    tile = tl.program_id(0)
    y, x = tile // tiles_x, tile % tiles_x
    tiles = tiles_y * tiles_x
    before = moved + source * tiles + tile
    active = tl.load(before)
    active |= fetch(before - 1, x > 0) | fetch(before + 1, x + 1 < tiles_x)
    active |= fetch(before - tiles_x, y > 0) | fetch(before + tiles_x, y + 1 < tiles_y)
    if active != 0:
        i, j = tl.arange(0, TILE)[:, None], tl.arange(0, TILE)[None, :]
        row, column = y * TILE + i, x * TILE + j
        inside = (row < h) & (column < w)
        at = row * w + column
        old, new = source * h * w + at, (1 - source) * h * w + at
        price = tl.load(cost + at, mask=inside, other=1.0)
        first = tl.load(distance + old, mask=inside, other=INFINITE)
        value = first
        tl.store(distance + new, value, mask=inside)
        tl.debug_barrier()
        left = tl.where(j > 0, new, old) - 1
        right = tl.where(j + 1 < TILE, new, old) + 1
        up = tl.where(i > 0, new, old) - w
        down = tl.where(i + 1 < TILE, new, old) + w
        has_left, has_right = inside & (column > 0), inside & (column + 1 < w)
        has_up, has_down = inside & (row > 0), inside & (row + 1 < h)
        looks = 0
        fall = 1.0
        while (looks < VISIT) & (fall > 0.0):
            seen = value
            for _ in range(CHECK):
                a, _beside = lower_of(distance, left, right, has_left, has_right)
                b, _above = lower_of(distance, up, down, has_up, has_down)
                value = tl.minimum(value, arrival_of(a, b, price))
                tl.debug_barrier()
                tl.store(distance + new, value, mask=inside)
                tl.debug_barrier()
            fall = tl.max(tl.where(value < seen, 1.0, 0.0))
            looks += 1
        change = tl.where(value < first, first - value, 0.0)
        changed = tl.max(change) > SMALL
        if not changed:
            tl.store(distance + new, first, mask=inside)
        tl.store(moved + (1 - source) * tiles + tile, changed.to(tl.int32))
    else:
        tl.store(moved + (1 - source) * tiles + tile, 0)


@triton.jit
def _parents(cost, distance, seeds, parents, h, w, PIXELS: tl.constexpr):
    """Store the pixel that each pixel's path comes from; a pixel where one starts is its own."""
    at, row, column, inside = pixels_of(h * w, w, PIXELS)
    a, beside = lower_of(distance, at - 1, at + 1, inside & (column > 0), inside & (column + 1 < w))
    b, above = lower_of(distance, at - w, at + w, inside & (row > 0), inside & (row + 1 < h))
    value = tl.load(distance + at, mask=inside, other=INFINITE)
    price = tl.load(cost + at, mask=inside, other=1.0)
    is_start = (tl.load(seeds + at, mask=inside, other=-1) >= 0) & (value >= price)
    reached = tl.minimum(a, b) < value
    parent = tl.where(is_start | ~reached, at, tl.where(a <= b, beside, above))
    tl.store(parents + at, parent, mask=inside)


@triton.jit
def _follow(parents, seeds, fallback, label, pixels, PIXELS: tl.constexpr):
    """Store the seed at the end of each pixel's path; ``fallback`` where no path arrived."""
    at = tl.program_id(0) * PIXELS + tl.arange(0, PIXELS)
    inside = at < pixels
    here = fetch(parents + at, inside)
    steps = 0
    going = 1
    while (going > 0) & (steps < pixels):  # a plateau of equal distances might be a circle
        further = fetch(parents + here, inside)
        going = tl.max((further != here).to(tl.int32))
        here = further
        steps += 1
    seed = tl.load(seeds + here, mask=inside, other=-1)
    tl.store(label + at, tl.where(seed >= 0, seed, tl.load(fallback)), mask=inside)


def distance_transform(cost: Tensor, pixels: Tensor, counts: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """See :func:`deepmatching.flow.operators.geodesic.distance_transform`.

    Distances spread inside all tiles at once, then from tile to tile, round by round. In most rounds most tiles have
    nothing to do. The number of rounds is that of the tiles along both sides of the image and a few more; a path that
    winds through more tiles is not found to its end, and its pixels take the shortest one that was.
    """
    h, w = cost.shape
    cost = cost.contiguous()
    seeds = seed_map(pixels, counts, (h, w))
    distance = torch.where(seeds >= 0, cost, torch.inf).expand(2, h, w).contiguous()
    tiles = triton.cdiv(h, TILE), triton.cdiv(w, TILE)
    moved = torch.ones((2, *tiles), dtype=torch.int32, device=cost.device)
    rounds = tiles[0] + tiles[1] + EXTRA
    rounds += rounds % 2  # the last one writes plane 0
    for n in range(rounds):
        launch(
            _spread, (tiles[0] * tiles[1],), cost, distance, moved, h, w, *tiles, n % 2,
            CHECK=CHECK, VISIT=VISIT, TILE=TILE, num_warps=2, num_stages=1,
        )  # fmt: skip
    parents, label = torch.empty_like(seeds), torch.empty_like(seeds)
    launch_on_pixels(_parents, h * w, cost, distance, seeds, parents, h, w)
    launch_on_pixels(_follow, h * w, parents, seeds, seeds.amax().clamp(min=0), label, h * w)
    return distance[0], label


@triton.jit
def _borders(distance, label, pairs, lengths, h, w, seeds, last, WIDE: tl.constexpr, PIXELS: tl.constexpr):
    """Store the cells a < b on both sides of each pair of adjacent pixels, as a (S + 1) + b, and D(p) + D(q).

    First the pairs beside each other, then those below each other; ``last`` where there is no border.
    """
    pixels = h * w
    at, row, column, on = pixels_of(pixels, w, PIXELS)
    here, own = fetch(label + at, on), fetch(distance + at, on)
    for below in tl.static_range(2):
        step = w if below else 1
        has = on & (row + 1 < h) if below else on & (column + 1 < w)
        there = fetch(label + at + step, has)
        low, high = tl.minimum(here, there), tl.maximum(here, there)
        if WIDE:
            low = low.to(tl.int64)
        pair = tl.where(has & (here != there), low * (seeds + 1) + high, last)
        tl.store(pairs + below * pixels + at, pair, mask=on)
        tl.store(lengths + below * pixels + at, own + fetch(distance + at + step, has), mask=on)


@triton.jit
def _shortest(pairs, order, places, lengths, ends, shortest, number, last, most, PIXELS: tl.constexpr):
    """Store every edge once, with the least of its lengths. Positive numbers are in the order of their bits."""
    n = tl.program_id(0) * PIXELS + tl.arange(0, PIXELS)
    on = n < number
    pair = fetch(pairs + n, on)
    place = fetch(places + n - 1, on & (n > 0))
    is_edge = on & (pair < last) & (place < most)
    length = tl.load(lengths + tl.load(order + n, mask=is_edge, other=0), mask=is_edge, other=0.0)
    tl.store(ends + place, pair.to(tl.int64), mask=is_edge)
    tl.atomic_min(shortest + place, length.to(tl.int32, bitcast=True), mask=is_edge, sem="relaxed")


def cell_graph(distance: Tensor, label: Tensor, seeds: int) -> Graph:
    """See :func:`deepmatching.flow.operators.geodesic.cell_graph`."""
    h, w = label.shape
    last, most, number = (seeds + 1) ** 2, 3 * seeds, 2 * h * w
    is_wide = last >= 2**31
    pairs = torch.empty(number, dtype=torch.int64 if is_wide else torch.int32, device=label.device)
    lengths = torch.empty(number, device=label.device)
    tensors = (distance.contiguous(), label.contiguous(), pairs, lengths)
    launch_on_pixels(_borders, h * w, *tensors, h, w, seeds, last, WIDE=is_wide)
    pairs, order = pairs.sort()
    places = (pairs[1:] != pairs[:-1]).cumsum(0, dtype=torch.int32)
    ends = torch.full((most,), last, dtype=torch.int64, device=label.device)
    shortest = torch.full((most,), torch.inf, device=label.device)
    ordered = (pairs, order, places, lengths)
    launch_on_pixels(_shortest, number, *ordered, ends, shortest.view(torch.int32), number, last, most)
    return graph_of(ends, shortest, seeds)


@triton.jit
def _search(starts, others, lengths, index, distance, number, PLACES: tl.constexpr):
    """Do Dijkstra's search from one seed.

    Seeds that were seen are in ``PLACES`` ≥ ``number`` places. If all are taken, a nearer seed replaces the furthest
    one that waits: so many wait already that it could only be found along a shorter path, which brings it back.
    """
    source = tl.program_id(0)
    place = tl.arange(0, PLACES)
    who = tl.where(place == 0, source, -1)
    path = tl.where(place == 0, 0.0, INFINITE)
    waiting = path  # ∞ where a seed is found, or none is
    index += source.to(tl.int64) * number
    distance += source.to(tl.int64) * number
    taken = 1
    for found in range(number):
        length = tl.min(waiting)
        if length < INFINITE:
            here = tl.min(tl.where(waiting == length, place, PLACES))
            seed = tl.max(tl.where(place == here, who, -1))
            tl.store(index + found, seed)
            tl.store(distance + found, length)
            waiting = tl.where(place == here, INFINITE, waiting)
            first, end = tl.load(starts + seed).to(tl.int32), tl.load(starts + seed + 1).to(tl.int32)
            for n in range(first, end):
                other, arrival = tl.load(others + n), length + tl.load(lengths + n)
                same = who == other
                is_known = tl.max(same.to(tl.int32)) > 0
                target = taken
                if taken >= PLACES:
                    furthest = tl.max(tl.where(waiting < INFINITE, waiting, -1.0))
                    worst = tl.min(tl.where(waiting == furthest, place, PLACES))
                    target = tl.where(arrival < furthest, worst, PLACES)
                same = tl.where(is_known, same, place == target)
                shorter = same & (arrival < tl.where(is_known, path, INFINITE))
                path = tl.where(shorter, arrival, path)
                waiting = tl.where(shorter, arrival, waiting)
                who = tl.where(shorter, other, who)
                new = (not is_known) & (arrival < INFINITE)
                taken = tl.where(new, tl.minimum(taken + 1, PLACES), taken)


def nearest_seeds(graph: Graph, number: int) -> Nearest:
    """See :func:`deepmatching.flow.operators.geodesic.nearest_seeds`."""
    starts = graph[0]
    seeds, number = len(starts) - 1, min(number, len(starts) - 1)
    index = torch.full((seeds, number), -1, dtype=torch.int32, device=starts.device)
    distance = torch.full((seeds, number), torch.inf, device=starts.device)
    places = max(32, triton.next_power_of_2(number))
    warps = max(1, min(8, places // 256))
    launch(_search, (seeds,), *graph, index, distance, number, PLACES=places, num_warps=warps)
    return Nearest(index, distance)
