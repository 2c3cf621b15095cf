"""Estimates of the memory that work needs, checked against the free memory before anything is allocated.

The estimates count the volumes that are held at the same time (see ``network.inference``). P_l is the number of
scores in S_{l+1/2}. A score takes four bytes and a switch takes one.
"""

import math
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import Self

import torch

from deepmatching.errors import OutOfMemoryError
from deepmatching.geometry.discretization import Geometry
from deepmatching.geometry.strips import WHOLE, Tiling, target_bands, target_pitch
from deepmatching.kernels.constants import CHUNK_BYTES, PATCH_BLOCK, POINT_TILE, VECTOR_BLOCK
from deepmatching.kernels.limits import free_bytes
from deepmatching.kernels.registry import has_kernels
from deepmatching.network.convolutions import BAND_BYTES
from deepmatching.network.descriptors import Descriptor
from deepmatching.network.network import Network
from deepmatching.network.operators.subpixel import SUBPIXEL_SIDE, chunk

LARGEST_STRIDE = 4  #: the widest cells that users can choose, in pixels
SMALLER_IMAGES = "smaller images (max_size)"  #: advice that helps unless the libraries alone take too much
SAFE_FRACTION = 0.8  #: fraction of the free memory that is used unless the user sets a limit

# In bytes:
NUMBA = 70_000_000  #: of loading the CPU kernels before images are described: Numba and LLVM
CPU_KERNELS = 90_000_000  #: of the same once the kernels are compiled
PLAIN_OPERATORS = 150_000_000  #: of PyTorch's own convolutions and temporaries on a CPU
CONVOLUTIONS = 20_000_000  #: of the convolutions of a learned descriptor on a CPU, beside their maps
MATRIX_WORKSPACE = 34_000_000  #: reserved by PyTorch's matrix products on a GPU (measured on an H200)
FLOW_KERNELS = 140_000_000  #: of the kernels of flow and matching on a CPU
FLOW_PER_PIXEL = 115  #: of flow after matching, for each pixel, on a CPU

#: Bytes that a CPU's allocator keeps of freed arrays, which are too small to be given back: a fifth of little work, a
#: twelfth of much, and more if several pairs are matched.
FRAGMENTS = 60_000_000

BEYOND = 108  #: floats beyond the last target of a row, see ``strips.target_pitch``; depends a little on the CPU

Size = tuple[int, int]  #: rows and columns


@dataclass(frozen=True)
class Plan:
    """How to match a batch within a budget."""

    batch: int  #: pairs at a time
    tiling: Tiling  #: strips of the lowest levels
    needed: int  #: estimated peak, in bytes


@dataclass(frozen=True)
class Work:
    """Matching pairs of images with one geometry, whose memory is estimated."""

    geometry: Geometry
    descriptor: Descriptor
    device: str = "cpu"
    pooling: str = "hard"  #: or any other, with which all volumes are held
    fewer_levels: int | None = None  #: see ``inference.Decoding``

    @classmethod
    def of(cls, network: Network, geometry: Geometry, device: str) -> Self:
        """Return the work of a network on a type of device."""
        return cls(geometry, network.descriptor, device, "hard" if network.is_fusable else "other")

    def peak(self, batch: int = 1, tiling: Tiling = WHOLE) -> int:
        """Return the peak of matching a batch: images in float32, descriptors and scores."""
        before = after = 0 if self.device != "cpu" else PLAIN_OPERATORS
        if self.device == "cpu" and has_kernels(self.device):
            before, after = NUMBA, CPU_KERNELS
        images = images_bytes(self.geometry) * (2 if batch > 1 else 1)  # a batch is a copy
        scores = batch * (self.fused(tiling, batch) if self.pooling == "hard" else self.volumes())
        if self.descriptor.working:  # learned descriptors refine their matches and estimate their confidence
            refining = max(self._subpixel(batch), 1500 * batch * self._points)  # the evidence, and the network's maps
            scores = max(scores, refining + (MATRIX_WORKSPACE if self.device == "cuda" else 0))
        work = max(before + batch * self._describing(), after + batch * self.cells() + scores)
        if self.device != "cpu":
            return work + batch * images
        fragments = max(min(FRAGMENTS, (work - before) // 5), work // 12) * (2 if batch > 1 else 1)
        return work + batch * images + fragments + (CONVOLUTIONS if self.descriptor.working else 0)

    def pyramid(self, batch: int = 1, training: bool = True) -> int:
        """Return the peak of ``Network.forward``, which holds all S_l and Q_l, and of its backward pass if training."""
        return batch * (self.volumes(training) + self.cells()) + (PLAIN_OPERATORS if self.device == "cpu" else 0)

    def least(self) -> int:
        """Return what matching one pair takes in the smallest pieces."""
        smallest = (Tiling(self.geometry.grid(0)[0], levels) for levels in range(1, self.geometry.L))
        return min(self.peak(1, tiling) for tiling in (WHOLE, *smallest))

    def cells(self) -> int:
        """Return the size of the descriptors of both images."""
        pixels = math.prod(self.geometry.used0) + math.prod(self.geometry.used1)
        return 4 * self.descriptor.channels * pixels // self.geometry.gamma**2

    def volumes(self, training: bool = False) -> int:
        """Return the peak of all score volumes of a pair, and of the backward pass when training.

        Measured per score: 11 bytes for S, Q and the temporaries of one level, and 16 with the maxima and the sums of
        soft pooling. Training adds what backward needs from correlation, power, pooling and unpooling, and the
        gradients themselves; kernels on a GPU keep less.
        """
        state = 0 if not training else 1 if self.device == "cuda" and has_kernels(self.device) else 2
        per_score = ((11, 24, 46) if self.pooling == "hard" else (16, 32, 56))[state]
        return per_score * sum(self.geometry.cells(l) for l in range(self.geometry.L + 1))

    def fused(self, tiling: Tiling, batch: int) -> int:
        """Return the peak of ``inference.decode_fused`` for each pair of a batch, with what remains of each point."""
        geometry, is_cpu, rows = self.geometry, self.device == "cpu", self.geometry.grid(0)[0]
        table = 4 * geometry.used1[0] * geometry.used1[1] // geometry.alpha**2
        tables = torch.get_num_threads() + 2 if is_cpu and has_kernels(self.device) else 2
        results = 90 * self._points + table * tables
        if geometry.L == 0:
            return 12 * geometry.cells(0) + results
        P = [pooled_cells(geometry, l) for l in range(geometry.L)]
        cut = min(tiling.levels, geometry.L - 1) if tiling.is_split(geometry) else 0
        # Unpooling and disaggregation are one kernel on a CPU. Elsewhere, Q_{l+1} is stored in between.
        between = 4 if has_kernels(self.device) and is_cpu else 8
        # The levels that are held whole: S and m on the way up; at the top, S_L and Q; then Q of two levels at a time.
        whole = 5 * sum(P[cut:]) + 4 * geometry.cells(geometry.L) + between * P[-1]
        twice = 0 if cut else self.fewer_levels or 0  # levels that are held on the first of two ways down
        for l in range(cut, geometry.L - 1):
            whole = max(whole, 5 * sum(P[cut : max(l + 2, twice)]) + 4 * P[l + 1] + between * P[l])
        if not cut:
            return max(self._first(rows, batch), whole, 9 * P[0] + 5 * sum(P[1:twice]) + self._best(rows)) + results
        row = [cells // geometry.grid(l)[0] for l, cells in enumerate(P)]
        up, down, below = _rows_of_strips(geometry, tiling.strips, cut)
        rising = (5 * up[l] * row[l] + 5 * up[l + 1] * row[l + 1] for l in range(cut))
        lower = 5 * sum(below[l] * row[l] for l in range(cut))
        falling = (4 * down[l + 1] * row[l + 1] * (l + 1 < cut) + between * down[l] * row[l] for l in range(cut))
        last = 4 * down[0] * row[0] + self._best(down[0])
        return results + max(
            5 * P[cut] + max(self._first(up[0], batch), *rising),
            whole,
            9 * P[cut] + max(self._first(below[0], batch), lower + max(last, *falling)),
        )

    @property
    def _points(self) -> int:
        """Return the number of reference points of level 0."""
        return math.prod(self.geometry.grid(0))

    def _describing(self) -> int:
        """Return the peak of describing the two images of a pair: one after the other, or on a GPU both at once."""
        descriptor = self.descriptor
        pixels0, pixels1 = math.prod(self.geometry.used0), math.prod(self.geometry.used1)
        if self.device == "cuda":
            return (descriptor.working_on_gpu or descriptor.working) * (pixels0 + pixels1)
        first = 4 * descriptor.channels * pixels0 // self.geometry.gamma**2
        return max(_image_bytes(descriptor, pixels0), first + _image_bytes(descriptor, pixels1))

    def _first(self, rows: int, batch: int) -> int:
        """Return the peak of ``correlate_and_pool`` for some rows of reference points: S_{1/2}, m_0 and before.

        A CPU copies the cells of one pair of a batch after the other, so that each counts for a part.
        """
        geometry, patch = self.geometry, self.descriptor.patch
        channels, part = self.descriptor.channels, rows / geometry.grid(0)[0]
        result, S_0 = int(5 * part * pooled_cells(geometry, 0)), int(part * geometry.cells(0))
        if not has_kernels(self.device):
            return result + 8 * S_0 + self.cells() // 2
        if self.device != "cpu":
            row = 4 * S_0 // rows
            chunk_rows = max(POINT_TILE, CHUNK_BYTES // row // POINT_TILE * POINT_TILE)
            held = max(min(rows, chunk_rows) * row, min(CHUNK_BYTES // max(1, 4 * S_0), batch) * 4 * S_0) // batch
            return result + held + self._half_cells(rows)
        pitch = target_pitch(geometry, patch, BEYOND)
        band, height = target_bands(geometry, patch, channels, pitch)
        target = min(height, rows * geometry.step + 2 * geometry.R(0)) if geometry.relative else height
        reference = min(band, rows) * geometry.grid(0)[1] * patch**2
        # Every row of a narrow target takes whole pages, of up to 64 KiB. The zeros on other pages take nothing.
        touched = min(pitch, geometry.used1[1] // geometry.gamma + 2**14)
        return result + 4 * channels * (target * touched + reference) // batch

    def _half_cells(self, rows: int) -> int:
        """Return the size of both images' cells as a GPU correlates them for some rows of reference points.

        Two numbers in half precision for each channel, with zeros as far as the windows of whole tiles of points look.
        """
        geometry, patch = self.geometry, self.descriptor.patch
        step, shift = geometry.step, geometry.shift
        tiles = -(-rows // POINT_TILE), -(-geometry.grid(0)[1] // POINT_TILE)
        sides = (h + (POINT_TILE - 1) * shift for h in geometry.window(0))
        block = PATCH_BLOCK if patch > 1 else VECTOR_BLOCK
        blocks = [-(-side // n) * n for side, n in zip(sides, block, strict=True)]
        reference = [n * POINT_TILE * step + patch for n in tiles]
        target = [(n - 1) * POINT_TILE * shift + block + patch for n, block in zip(tiles, blocks, strict=True)]
        channels = -(-self.descriptor.channels // 8) * 8
        return 4 * channels * (reference[0] * reference[1] + target[0] * target[1])

    def _best(self, rows: int) -> int:
        """Return what ``best_pooled`` allocates for some rows of reference points: Q_0 and a copy, without kernels."""
        return 0 if has_kernels(self.device) else 8 * self.geometry.cells(0) * rows // self.geometry.grid(0)[0]

    def _subpixel(self, batch: int) -> int:
        """Return what sub-pixel matches take: target cells around some rows of matches, twice, and their patches."""
        rows, columns = self.geometry.grid(0)
        patch = self.descriptor.patch
        patches, around = SUBPIXEL_SIDE**2 * patch**2, (SUBPIXEL_SIDE + patch - 1) ** 2
        row = batch * columns * patches * self.descriptor.channels
        at_once = min(rows * row, max(row, chunk(self.device)))
        return int(4 * at_once * (2 * around / patches + (patch > 1)))


def require_pyramid(
    network: Network, geometry: Geometry, batch: int, device: torch.device, memory: int | None = None
) -> None:
    """Raise if ``Network.forward`` needs more memory than it may use, with its backward pass if gradients are on."""
    require(Work.of(network, geometry, device.type).pyramid(batch, torch.is_grad_enabled()), device, memory)


def flow_bytes(work: Work, sizes: Sequence[Size] = ()) -> int:
    """Return the peak of flow after matching on a CPU: images and descriptors of both frames, and all stages."""
    held = images_bytes(work.geometry) + work.cells() + originals_bytes(work.geometry, sizes)
    return FLOW_KERNELS + held + FLOW_PER_PIXEL * math.prod(work.geometry.size0)


def images_bytes(geometry: Geometry) -> int:
    """Return the size of a pair of colour images in float32."""
    return 12 * sum(map(math.prod, (geometry.size0, geometry.size1)))


def originals_bytes(geometry: Geometry, sizes: Sequence[Size]) -> int:
    """Return the size of a pair of colour images that are matched at a smaller size: they are held beside it."""
    if tuple(sizes) in ((), (geometry.size0, geometry.size1)):
        return 0
    return 12 * sum(map(math.prod, sizes))


def pooled_cells(geometry: Geometry, l: int) -> int:
    """Return P_l, the number of scores in S_{l+1/2}."""
    return math.prod((*geometry.grid(l), *geometry.window(l + 1)))


def is_banded(descriptor: Descriptor, pixels: int) -> bool:
    """Return whether a CPU describes an image in bands of rows."""
    return descriptor.banded is not None and descriptor.working * pixels > BAND_BYTES


def _image_bytes(descriptor: Descriptor, pixels: int) -> int:
    """Return the peak of describing one image on a CPU."""
    if not is_banded(descriptor, pixels):
        return descriptor.working * pixels
    return max((descriptor.banded or 0) * pixels, descriptor.mapped * pixels + 7 * BAND_BYTES // 8)  # rounded down


def _rows_of_strips(geometry: Geometry, strips: int, cut: int) -> tuple[list[int], list[int], list[int]]:
    """Return the most rows at each level in ``strips_up``, and in the two strips of ``strips_down``."""
    heights = [geometry.grid(l)[0] for l in range(cut + 1)]
    spread = [plus - minus for minus, plus in (geometry.child_shifts(l) for l in range(cut))]

    def grow(rows: int, levels: Iterable[tuple[int, int]]) -> list[int]:
        """Return these rows and those of the next levels, each (height, spread)."""
        return list(accumulate(levels, lambda n, level: min(level[0], n + level[1]), initial=rows))

    towards_0 = list(zip(heights, spread, strict=False))[::-1]
    up = grow(-(-heights[cut] // min(strips, heights[cut])), towards_0)[::-1]
    down = grow(-(-heights[0] // min(strips, heights[0])), zip(heights[1:], spread, strict=True))
    below = grow(down[cut - 1], towards_0[1:])[::-1]
    return up, down, below


def plan_decoding(work: Work, batch: int, budget: int, sizes: Sequence[Size] = ()) -> Plan:
    """Return the largest pieces that fit into the budget: fewer pairs at a time, then strips of the lowest levels.

    ``sizes`` are those of the two images as they were given, if they are matched at a smaller size. Raises if even the
    smallest pieces do not fit.
    """
    geometry, device = work.geometry, work.device
    held = batch * originals_bytes(geometry, sizes)

    def needed(tiling: Tiling, pairs: int = 1) -> int:
        waiting = (batch - pairs) * images_bytes(geometry) + FRAGMENTS * (device == "cpu" and pairs < batch)
        return held + waiting + work.peak(pairs, tiling)

    pairs = bisect_right(range(1, batch + 1), budget, key=lambda n: needed(WHOLE, n))
    if pairs:
        return Plan(pairs, WHOLE, needed(WHOLE, pairs))
    fitting = []
    counts = range(2, geometry.grid(0)[0] + 1)
    for levels in range(1, geometry.L if work.pooling == "hard" else 1):
        # More strips need less: the first count that fits.
        n = bisect_left(counts, True, key=lambda n: needed(Tiling(n, levels)) <= budget)
        if n < len(counts):
            fitting.append(Tiling(counts[n], levels))
    if not fitting:
        least = held + (batch - 1) * images_bytes(geometry) + work.least()
        raise not_enough(least, budget, device, _advice(work, budget, held))

    def rows_computed(tiling: Tiling) -> int:
        """Return how many rows of level 0 are correlated in total: a measure of time."""
        up, _, below = _rows_of_strips(geometry, tiling.strips, tiling.levels)
        return tiling.strips * (up[0] + below[0])

    best = min(fitting, key=rows_computed)
    return Plan(1, best, needed(best))


def plan_flow(work: Work, budget: int, sizes: Sequence[Size] = ()) -> Plan:
    """Plan as :func:`plan_decoding` for one pair, with what flow takes after matching. Counted on a CPU only."""
    after = flow_bytes(work, sizes) if work.device == "cpu" else 0
    if after > budget:
        raise not_enough(after, budget, work.device, [SMALLER_IMAGES] * (budget > FLOW_KERNELS))
    plan = plan_decoding(work, 1, budget, sizes)
    return replace(plan, needed=max(plan.needed, after))


def _advice(work: Work, budget: int, held: int) -> list[str]:
    """Return what helps to match within the budget; images of this size take ``held`` of it."""
    geometry, descriptor = work.geometry, work.descriptor
    sizes, gamma, patch = (geometry.size0, geometry.size1), 2 * geometry.gamma, descriptor.cells_of_patch
    options = {} if work.pooling == "hard" else {"hard pooling": replace(work, pooling="hard")}
    options["a smaller radius"] = replace(work, geometry=replace(geometry, radius=geometry.gamma, levels=None))
    if descriptor.scalable and descriptor.stride < LARGEST_STRIDE and min(sizes[0] + sizes[1]) >= patch * gamma:
        radius = None if geometry.radius is None else -(-geometry.radius // gamma) * gamma
        coarser = Geometry.for_downscale(*sizes, gamma.bit_length() - 1, radius, patch=patch)
        options["a larger downscale"] = replace(work, geometry=coarser)
    smallest = (geometry.delta, geometry.delta)
    small = replace(work, geometry=replace(geometry, size0=smallest, size1=smallest, levels=None))
    advice = [name for name, other in options.items() if held + other.least() <= budget]
    return advice + [SMALLER_IMAGES] * (small.least() <= budget)


def budget_for(device: torch.device, memory: int | None = None) -> int:
    """Return the memory that may be used: the user's limit, or a safe fraction of the free memory."""
    free = free_bytes(device)
    if free is None:
        return 2**63 if memory is None else memory
    return int(SAFE_FRACTION * free) if memory is None else min(memory, free)


def require(needed: int, device: torch.device, memory: int | None = None) -> None:
    """Raise if the work needs more than may be used. Nothing is checked while a CUDA graph is recorded."""
    if device.type == "cuda" and torch.cuda.is_current_stream_capturing():
        return
    if needed > (budget := budget_for(device, memory)):
        raise not_enough(needed, budget, device.type)


def not_enough(
    needed: int, budget: int, device: str, advice: Sequence[str] = ("a smaller radius", SMALLER_IMAGES)
) -> OutOfMemoryError:
    """Return the refusal, with what helps beside more memory."""
    helps = f"use {', '.join(advice)} or allow" if advice else "allow"
    return OutOfMemoryError(
        f"This needs about {amount(needed)} of memory on {device}, but may use only {amount(budget)}: "
        f"{helps} more memory."
    )


def amount(size: int) -> str:
    """Return '1.5 GB', or '12 MB' for small amounts."""
    return f"{size / 1e9:.1f} GB" if size >= 1e9 else f"{size / 1e6:.0f} MB"
