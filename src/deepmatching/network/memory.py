"""Estimates of the memory that work needs, checked against the free memory before anything is allocated.

The estimates count the volumes that are held at the same time (see ``network.inference``). P_l is the number of
scores in S_{l+1/2}. A score takes four bytes and a switch takes one.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch

from deepmatching.errors import OutOfMemoryError
from deepmatching.geometry.discretization import Geometry
from deepmatching.geometry.strips import WHOLE, Tiling, target_bands, target_pitch
from deepmatching.kernels.constants import CHUNK_BYTES, POINT_TILE, TARGET_BLOCK
from deepmatching.kernels.limits import free_bytes
from deepmatching.kernels.registry import has_kernels
from deepmatching.network.convolutions import BAND_BYTES
from deepmatching.network.descriptors import Descriptor
from deepmatching.network.operators.subpixel import SIDE, chunk
from deepmatching.settings import Pooling

#: The widest cells that users can choose, in pixels.
LARGEST_STRIDE = 4

#: Advice that helps unless the libraries alone take too much.
SMALLER_IMAGES = "smaller images (max_size)"
WITHOUT_DENSE = "the flow without the dense network (preset interpolated)"

#: Fraction of the free memory that is used unless the user sets a limit.
SAFE_FRACTION = 0.8

#: Bytes that loading the CPU kernels takes: Numba and LLVM before images are described, and then the compiled code.
NUMBA, CPU_KERNELS = 90_000_000, 130_000_000

#: Bytes that PyTorch's own convolutions and temporaries take on a CPU.
PLAIN_OPERATORS = 150_000_000

#: Bytes that the convolutions of a learned descriptor take on a CPU, beside their maps.
CONVOLUTIONS = 20_000_000

#: Bytes that matrix products of PyTorch reserve on a GPU, from the first one on (measured on an H200).
MATRIX_WORKSPACE = 34_000_000

#: Bytes that flow takes after matching on a CPU: its kernels and those of matching; for each pixel, and with a dense
#: network.
FLOW_KERNELS, FLOW_PER_PIXEL, DENSE_PER_PIXEL = 190_000_000, 115, 200

#: Bytes that a CPU's allocator keeps of freed arrays, which are too small to be given back: a fifth of little work, a
#: twelfth of much, and more if several pairs are matched.
FRAGMENTS = 60_000_000

#: Floats beyond the last target position in a row of cells, see ``strips.target_pitch``; depends a little on the CPU.
BEYOND = 108

Size = tuple[int, int]  #: rows and columns


def decoding_bytes(
    geometry: Geometry,
    descriptor: Descriptor,
    batch: int = 1,
    device: str = "cpu",
    tiling: Tiling = WHOLE,
    pooling: Pooling = "hard",
) -> int:
    """Peak of matching a batch of pairs on a type of device: images in float32, descriptors and scores."""
    fast = has_kernels(device)
    before, after = (0, 0) if device != "cpu" else (NUMBA, CPU_KERNELS) if fast else (PLAIN_OPERATORS, PLAIN_OPERATORS)
    images = images_bytes(geometry) * (2 if batch > 1 else 1)  # a batch is a copy
    cells = _cells_bytes(geometry, descriptor)
    scores = batch * _scores_bytes(geometry, descriptor, device, tiling, batch)
    if pooling == "soft":
        scores = batch * _volumes_bytes(geometry, pooling)
    if descriptor.working:  # learned descriptors refine their matches and judge them
        after_scores = max(_subpixel_bytes(geometry, descriptor, batch, device), _confidence_bytes(geometry, batch))
        scores = max(scores, after_scores + (MATRIX_WORKSPACE if device == "cuda" else 0))
    work = max(before + batch * _describing_bytes(geometry, descriptor, device), after + batch * cells + scores)
    if device != "cpu":
        return work + batch * images
    fragments = max(min(FRAGMENTS, (work - before) // 5), work // 12) * (2 if batch > 1 else 1)
    return work + batch * images + fragments + (CONVOLUTIONS if descriptor.working else 0)


def flow_bytes(geometry: Geometry, descriptor: Descriptor, sizes: Sequence[Size] = (), dense: bool = False) -> int:
    """Peak of flow after matching on a CPU: images and descriptors of both frames, and all stages."""
    rows, columns = geometry.size0
    held = images_bytes(geometry) + _cells_bytes(geometry, descriptor) + originals_bytes(geometry, sizes)
    return FLOW_KERNELS + held + (DENSE_PER_PIXEL if dense else FLOW_PER_PIXEL) * rows * columns


def images_bytes(geometry: Geometry) -> int:
    """Size of a pair of colour images in float32."""
    return 12 * sum(rows * columns for rows, columns in (geometry.size0, geometry.size1))


def originals_bytes(geometry: Geometry, sizes: Sequence[Size]) -> int:
    """Size of a pair of colour images in float32 that are matched at a smaller size: they are held beside it."""
    if tuple(sizes) in ((), (geometry.size0, geometry.size1)):
        return 0
    return 12 * sum(rows * columns for rows, columns in sizes)


def _scores_bytes(geometry: Geometry, descriptor: Descriptor, device: str, tiling: Tiling, batch: int) -> int:
    """Peak of what ``inference.decode_cells`` allocates for each pair of a batch, with what remains of each point."""
    fast = has_kernels(device)
    points = geometry.grid(0)[0] * geometry.grid(0)[1]
    table = 4 * geometry.used1[0] * geometry.used1[1] // geometry.alpha**2
    results = 90 * points + table * (torch.get_num_threads() + 2 if device == "cpu" and fast else 2)
    if geometry.L == 0:
        return 12 * geometry.cells(0) + results
    P = [pooled_cells(geometry, l) for l in range(geometry.L)]
    cut = min(tiling.levels, geometry.L - 1) if tiling.is_split(geometry) else 0
    # Unpooling and disaggregation are one kernel on a CPU. Elsewhere, Q_{l+1} is stored in between.
    between = 4 if fast and device == "cpu" else 8
    # The levels that are held whole: S and m on the way up; at the top, S_L and Q; then Q of two levels at a time.
    whole = 5 * sum(P[cut:]) + 4 * geometry.cells(geometry.L) + between * P[-1]
    for l in range(cut, geometry.L - 1):
        whole = max(whole, 5 * sum(P[cut : l + 2]) + 4 * P[l + 1] + between * P[l])
    if not cut:
        first = _first_bytes(geometry, descriptor, device, geometry.grid(0)[0], batch)
        return max(first, whole, 9 * P[0] + _best_bytes(geometry, device, geometry.grid(0)[0])) + results
    row = [cells // geometry.grid(l)[0] for l, cells in enumerate(P)]
    up, down, below = _strip_rows(geometry, tiling.strips, cut)
    rising = max(
        _first_bytes(geometry, descriptor, device, up[0], batch),
        *(5 * up[l] * row[l] + 5 * up[l + 1] * row[l + 1] for l in range(cut)),
    )
    lower = 5 * sum(below[l] * row[l] for l in range(cut))
    falling = max(
        _first_bytes(geometry, descriptor, device, below[0], batch),
        *(lower + 4 * down[l + 1] * row[l + 1] * (l + 1 < cut) + between * down[l] * row[l] for l in range(cut)),
        lower + 4 * down[0] * row[0] + _best_bytes(geometry, device, down[0]),
    )
    return max(5 * P[cut] + rising, whole, 9 * P[cut] + falling) + results


def _strip_rows(geometry: Geometry, strips: int, cut: int) -> tuple[list[int], list[int], list[int]]:
    """The most rows at each level in ``strips_up``, and in the two strips of ``strips_down``."""
    heights = [geometry.grid(l)[0] for l in range(cut + 1)]
    spread = [plus - minus for minus, plus in (geometry.child_shifts(l) for l in range(cut))]
    up, down = [-(-heights[cut] // min(strips, heights[cut]))], [-(-heights[0] // min(strips, heights[0]))]
    for l in reversed(range(cut)):
        up.insert(0, min(heights[l], up[0] + spread[l]))
    for l in range(cut):
        down.append(min(heights[l + 1], down[l] + spread[l]))
    below = [down[cut - 1]]
    for l in reversed(range(cut - 1)):
        below.insert(0, min(heights[l], below[0] + spread[l]))
    return up, down, below


def _first_bytes(geometry: Geometry, descriptor: Descriptor, device: str, rows: int, batch: int) -> int:
    """Peak of ``correlate_and_pool`` for some rows of reference points: S_{1/2}, m_0 and what leads to them.

    A CPU copies the cells of one pair of a batch after the other, so that each counts for a part.
    """
    part = rows / geometry.grid(0)[0]
    result, S_0 = int(5 * part * pooled_cells(geometry, 0)), int(part * geometry.cells(0))
    if not has_kernels(device):
        return result + 8 * S_0 + _cells_bytes(geometry, descriptor) // 2
    if device != "cpu":
        row = 4 * S_0 // rows
        chunk_rows = max(POINT_TILE, CHUNK_BYTES // row // POINT_TILE * POINT_TILE)
        chunk = max(min(rows, chunk_rows) * row, min(CHUNK_BYTES // max(1, 4 * S_0), batch) * 4 * S_0) // batch
        return result + chunk + _half_cells_bytes(geometry, descriptor, rows)
    pitch = target_pitch(geometry, descriptor.patch, BEYOND)
    band, height = target_bands(geometry, descriptor.patch, descriptor.channels, pitch)
    target = min(height, rows * geometry.alpha // geometry.gamma + 2 * geometry.R(0)) if geometry.relative else height
    reference = min(band, rows) * geometry.alpha // geometry.gamma * geometry.used0[1] // geometry.gamma
    # Every row of a narrow target takes whole pages, of up to 64 KiB. The zeros on other pages take nothing.
    touched = min(pitch, geometry.used1[1] // geometry.gamma + 2**14)
    return result + 4 * descriptor.channels * (target * touched + reference) // batch


def _half_cells_bytes(geometry: Geometry, descriptor: Descriptor, rows: int) -> int:
    """The cells of both images as a GPU correlates them for some rows of reference points.

    Two numbers in half precision for each channel, with zeros as far as the windows of whole tiles of points look.
    """
    step, patch = geometry.alpha // geometry.gamma, descriptor.patch
    shift = step if geometry.relative else 0
    tiles = -(-rows // POINT_TILE), -(-geometry.grid(0)[1] // POINT_TILE)
    blocks = [
        -(-(h + (POINT_TILE - 1) * shift) // b) * b for h, b in zip(geometry.window(0), TARGET_BLOCK, strict=True)
    ]
    reference = [n * POINT_TILE * step + patch for n in tiles]
    target = [(n - 1) * POINT_TILE * shift + block + patch for n, block in zip(tiles, blocks, strict=True)]
    channels = -(-descriptor.channels // 8) * 8
    return 4 * channels * (reference[0] * reference[1] + target[0] * target[1])


def _best_bytes(geometry: Geometry, device: str, rows: int) -> int:
    """What ``best_pooled`` allocates for some rows of reference points: Q_0 and a copy, without kernels."""
    return 0 if has_kernels(device) else 8 * geometry.cells(0) * rows // geometry.grid(0)[0]


def _subpixel_bytes(geometry: Geometry, descriptor: Descriptor, batch: int, device: str) -> int:
    """What sub-pixel matches take: the target's cells around some rows of matches, twice, and all their patches."""
    rows, columns = geometry.grid(0)
    patches, around = SIDE**2 * descriptor.patch**2, (SIDE + descriptor.patch - 1) ** 2
    row = batch * columns * patches * descriptor.channels
    at_once = min(rows * row, max(row, chunk(device)))
    return int(4 * at_once * (2 * around / patches + (descriptor.patch > 1)))


def _confidence_bytes(geometry: Geometry, batch: int) -> int:
    """What judging the matches takes: the evidence and the network's maps."""
    return 1500 * batch * geometry.grid(0)[0] * geometry.grid(0)[1]


def _describing_bytes(geometry: Geometry, descriptor: Descriptor, device: str) -> int:
    """Peak of describing the two images of a pair: one after the other, or on a GPU both at once."""
    pixels0, pixels1 = (rows * columns for rows, columns in (geometry.used0, geometry.used1))
    if device == "cuda":
        working = descriptor.working if descriptor.working_on_gpu is None else descriptor.working_on_gpu
        return working * (pixels0 + pixels1)
    first = 4 * descriptor.channels * pixels0 // geometry.gamma**2
    one, two = (_image_bytes(descriptor, pixels) for pixels in (pixels0, pixels1))
    return max(one, first + two)


def _image_bytes(descriptor: Descriptor, pixels: int) -> int:
    """Peak of describing one image on a CPU."""
    whole = descriptor.working * pixels
    if descriptor.banded is None or whole <= BAND_BYTES:
        return whole
    return max(descriptor.banded * pixels, descriptor.mapped * pixels + 7 * BAND_BYTES // 8)  # bands are rounded down


def pyramid_bytes(
    geometry: Geometry,
    descriptor: Descriptor,
    batch: int = 1,
    training: bool = True,
    device: str = "cpu",
    pooling: Pooling = "hard",
) -> int:
    """Peak of ``Network.forward``, which holds all S_l and Q_l, and of its backward pass when training.

    Measured per score: 11 bytes for S, Q and the temporaries of one level, and 16 with the maxima and the sums of soft
    pooling. Training adds what backward needs from correlation, power, pooling and unpooling, and the gradients
    themselves.
    """
    volumes = _volumes_bytes(geometry, pooling, training, has_kernels(device) and device == "cuda")
    overhead = PLAIN_OPERATORS if device == "cpu" else 0
    return batch * (volumes + _cells_bytes(geometry, descriptor)) + overhead


def _volumes_bytes(geometry: Geometry, pooling: Pooling, training: bool = False, fused: bool = False) -> int:
    """Peak of all score volumes of a pair; ``fused`` if kernels keep what backward needs."""
    if pooling == "soft":
        per_score = 16 if not training else 32 if fused else 56
    else:
        per_score = 11 if not training else 24 if fused else 46
    return per_score * sum(geometry.cells(l) for l in range(geometry.L + 1))


def pooled_cells(geometry: Geometry, l: int) -> int:
    """P_l, the number of scores in S_{l+1/2}."""
    rows, columns = geometry.grid(l)
    h, w = geometry.window(l + 1)
    return rows * columns * h * w


def _cells_bytes(geometry: Geometry, descriptor: Descriptor) -> int:
    """Size of the descriptors of both images."""
    pixels = sum(rows * columns for rows, columns in (geometry.used0, geometry.used1))
    return 4 * descriptor.channels * pixels // geometry.gamma**2


@dataclass(frozen=True)
class Plan:
    """How to match a batch within a budget."""

    batch: int  #: pairs at a time
    tiling: Tiling  #: strips of the lowest levels
    needed: int  #: estimated peak, in bytes


def plan_decoding(
    geometry: Geometry,
    descriptor: Descriptor,
    batch: int,
    device: str,
    budget: int,
    sizes: Sequence[Size] = (),
    pooling: Pooling = "hard",
) -> Plan:
    """The largest pieces that fit into the budget: first fewer pairs at a time, then strips of the lowest levels.

    Args:
        sizes: those of the two images as they were given, if they are matched at a smaller size.
        pooling: soft pooling holds all volumes, so that nothing is cut into strips.

    Raises:
        OutOfMemoryError: if even the smallest pieces do not fit.
    """
    held = batch * originals_bytes(geometry, sizes)

    def needed(tiling: Tiling, pairs: int = 1) -> int:
        waiting = (batch - pairs) * images_bytes(geometry) + FRAGMENTS * (device == "cpu" and pairs < batch)
        return held + waiting + decoding_bytes(geometry, descriptor, pairs, device, tiling, pooling)

    pairs = bisect_right(range(1, batch + 1), budget, key=lambda n: needed(WHOLE, n))
    if pairs:
        return Plan(pairs, WHOLE, needed(WHOLE, pairs))
    fitting = []
    counts = range(2, geometry.grid(0)[0] + 1)
    for levels in range(1, geometry.L if pooling == "hard" else 1):
        # More strips need less: the first count that fits.
        n = bisect_left(counts, True, key=lambda n: needed(Tiling(n, levels)) <= budget)
        if n < len(counts):
            fitting.append(Tiling(counts[n], levels))
    if not fitting:
        advice = _advice(geometry, descriptor, device, budget, held, pooling)
        least = held + (batch - 1) * images_bytes(geometry) + _least(geometry, descriptor, device, pooling)
        raise not_enough(least, budget, device, advice)
    best = min(fitting, key=lambda tiling: _rows_computed(geometry, tiling))
    return Plan(1, best, needed(best))


def plan_flow(
    geometry: Geometry, descriptor: Descriptor, device: str, budget: int, sizes: Sequence[Size],
    pooling: Pooling = "hard", dense: bool = False,
) -> Plan:  # fmt: skip
    """As :func:`plan_decoding` for one pair, with what flow takes after matching. Counted on a CPU only."""
    after = flow_bytes(geometry, descriptor, sizes, dense) if device == "cpu" else 0
    if after > budget:
        advice = [WITHOUT_DENSE] * (dense and flow_bytes(geometry, descriptor, sizes) <= budget)
        raise not_enough(after, budget, device, advice + [SMALLER_IMAGES] * (budget > FLOW_KERNELS))
    plan = plan_decoding(geometry, descriptor, 1, device, budget, sizes, pooling)
    return replace(plan, needed=max(plan.needed, after))


def _least(geometry: Geometry, descriptor: Descriptor, device: str, pooling: Pooling) -> int:
    """What matching one pair takes in the smallest pieces."""
    smallest = (Tiling(geometry.grid(0)[0], levels) for levels in range(1, geometry.L))
    return min(decoding_bytes(geometry, descriptor, 1, device, tiling, pooling) for tiling in (WHOLE, *smallest))


def _advice(
    geometry: Geometry, descriptor: Descriptor, device: str, budget: int, held: int, pooling: Pooling
) -> list[str]:
    """What helps to match these images within the budget, ``held`` of which is taken by images of this size."""
    gamma = 2 * geometry.gamma
    radius = None if geometry.radius is None else -(-geometry.radius // gamma) * gamma
    options = {"a smaller radius": replace(geometry, radius=geometry.gamma, levels=None)}
    side = descriptor.cells_of_patch * gamma
    if descriptor.scalable and descriptor.stride < LARGEST_STRIDE and min(geometry.size0 + geometry.size1) >= side:
        sizes, downscale = (geometry.size0, geometry.size1), gamma.bit_length() - 1
        coarser = Geometry.for_downscale(*sizes, downscale, radius, patch=descriptor.cells_of_patch)
        options["a larger downscale"] = coarser
    advice = [name for name, other in options.items() if held + _least(other, descriptor, device, pooling) <= budget]
    if pooling == "soft" and held + _least(geometry, descriptor, device, "hard") <= budget:
        advice.insert(0, "hard pooling")
    smallest = (geometry.delta, geometry.delta)
    small = replace(geometry, size0=smallest, size1=smallest, levels=None)
    return advice + [SMALLER_IMAGES] * (_least(small, descriptor, device, pooling) <= budget)


def _rows_computed(geometry: Geometry, tiling: Tiling) -> int:
    """Rows of level 0 that are correlated in total: a measure of time."""
    up, _, below = _strip_rows(geometry, tiling.strips, tiling.levels)
    return tiling.strips * (up[0] + below[0])


def budget_for(device: torch.device, memory: int | None = None) -> int:
    """Memory that may be used: the user's limit, or a safe fraction of the free memory."""
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
    """The refusal, with what helps beside more memory."""
    helps = f"use {', '.join(advice)} or allow" if advice else "allow"
    return OutOfMemoryError(
        f"This needs about {amount(needed)} of memory on {device}, but may use only {amount(budget)}: "
        f"{helps} more memory."
    )


def amount(size: int) -> str:
    """'1.5 GB', or '12 MB' for small amounts."""
    return f"{size / 1e9:.1f} GB" if size >= 1e9 else f"{size / 1e6:.0f} MB"
