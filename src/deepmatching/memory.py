"""Estimates of the memory that work needs, checked against the free memory before anything is allocated.

The estimates count the volumes that are held at the same time (see ``deepmatching.inference``). P_l is the number of
scores in S_{l+1/2}. A score takes four bytes and a switch takes one.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import psutil
import torch

from deepmatching.descriptors import Descriptor
from deepmatching.errors import OutOfMemoryError
from deepmatching.geometry import Geometry
from deepmatching.operators.constants import CHUNK_BYTES
from deepmatching.operators.kernels import has_kernels

#: Fraction of the free memory that is used unless the user sets a limit.
SAFE_FRACTION = 0.8

#: Bytes that loading the CPU kernels takes: Numba, LLVM and the compiled code.
CPU_KERNELS = 110_000_000

#: Bytes that PyTorch's own convolutions and temporaries take on a CPU.
PLAIN_OPERATORS = 150_000_000


def decoding_bytes(
    geometry: Geometry, descriptor: Descriptor, batch: int = 1, device: str = "cpu", strips: int = 1
) -> int:
    """Peak of ``Network.decode`` for a batch of pairs on a type of device, with level 0 in ``strips`` strips."""
    fast = has_kernels(device)
    overhead = 0 if device != "cpu" else CPU_KERNELS if fast else PLAIN_OPERATORS
    cells, padded = _cells_bytes(geometry, descriptor), _cells_bytes(geometry, descriptor) // 2
    describing = _describing_bytes(geometry, descriptor, device)
    if geometry.L == 0:
        return batch * max(describing, 12 * geometry.cells(0) + cells) + overhead
    P = [pooled_cells(geometry, l) for l in range(geometry.L)] + [0, 0]
    first, S_0 = P[0], geometry.cells(0)
    if strips > 1 and geometry.L > 1:
        rows = geometry.grid(0)[0]
        fraction = min(1.0, (-(-rows // min(strips, rows)) + 1) / rows)
        first, S_0 = int(fraction * first), int(fraction * S_0)
    kept = P[0] if strips == 1 or geometry.L == 1 else 0
    # S_0: not held at all, in pieces, or whole with its power.
    held = 8 * S_0 if not fast else 0 if device == "cpu" else min(CHUNK_BYTES, 4 * S_0)
    correlating = 5 * first + held + padded
    # Unpooling and disaggregation are one kernel on a CPU. Elsewhere, Q_{l+1} is stored in between.
    between = 0 if fast and device == "cpu" else 4
    # Q_{1/2}, S_{1/2}, m_0 and Q_{3/2}, S_{3/2}, m_1; in strips, S_{1/2} is computed while the others are held.
    last = max(between * first, 0 if kept else held, 0 if fast else 8 * S_0)
    decoding = 9 * first + 9 * P[1] + last
    # The whole way up; the last step down to level 1.
    above = 5 * kept + max(5 * sum(P[1:]), (9 + between) * P[1] + 9 * P[2])
    return batch * max(describing, max(correlating, decoding, above) + cells) + overhead


def _describing_bytes(geometry: Geometry, descriptor: Descriptor, device: str) -> int:
    """Peak of describing the two images of a pair: one after the other, or on a GPU both at once."""
    pixels0, pixels1 = (rows * columns for rows, columns in (geometry.used0, geometry.used1))
    if device == "cuda":
        return descriptor.working * (pixels0 + pixels1)
    first = 4 * descriptor.channels * pixels0 // geometry.gamma**2
    return max(descriptor.working * pixels0, first + descriptor.working * pixels1)


def pyramid_bytes(
    geometry: Geometry, descriptor: Descriptor, batch: int = 1, training: bool = True, device: str = "cpu"
) -> int:
    """Peak of ``Network.forward``, which holds all S_l and Q_l, and of its backward pass when training.

    Measured per score: 11 bytes for S, Q and the temporaries of one level. Training adds what backward needs from
    correlation, power, pooling and unpooling, and the gradients themselves.
    """
    per_score = 11 if not training else 24 if has_kernels(device) and device == "cuda" else 46
    scores = sum(geometry.cells(l) for l in range(geometry.L + 1))
    overhead = PLAIN_OPERATORS if device == "cpu" else 0
    return batch * (per_score * scores + _cells_bytes(geometry, descriptor)) + overhead


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
    strips: int  #: strips of level 0
    needed: int  #: estimated peak, in bytes


def plan_decoding(geometry: Geometry, descriptor: Descriptor, batch: int, device: str, budget: int) -> Plan:
    """The largest pieces that fit into the budget: first fewer pairs at a time, then strips of level 0.

    Raises:
        OutOfMemoryError: if even the smallest pieces do not fit.
    """
    one, two = (decoding_bytes(geometry, descriptor, pairs, device) for pairs in (1, 2))
    if one <= budget:
        pairs = min(batch, 1 + (budget - one) // (two - one))  # every further pair needs as much as the second
        return Plan(pairs, 1, one + (pairs - 1) * (two - one))
    needed = one
    for strips in range(2, geometry.grid(0)[0] + 1):
        needed = decoding_bytes(geometry, descriptor, 1, device, strips)
        if needed <= budget:
            return Plan(1, strips, needed)
    raise _not_enough(min(one, needed), budget, device)


def free_bytes(device: torch.device) -> int | None:
    """Memory that is free on a device now; None if unknown."""
    if device.type == "cuda":
        free, _ = torch.cuda.mem_get_info(device)
        return free + torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    if device.type in ("cpu", "mps"):
        return min([psutil.virtual_memory().available, *_container_limit()])
    return None


def _container_limit() -> list[int]:
    """Memory that a container (cgroup version 2) may still take, counting file caches as free; [] without a limit."""
    folder = Path("/sys/fs/cgroup")
    try:
        limit, used = ((folder / name).read_text().strip() for name in ("memory.max", "memory.current"))
        caches = dict(line.split() for line in (folder / "memory.stat").read_text().splitlines())["inactive_file"]
        return [] if limit == "max" else [max(0, int(limit) - int(used) + int(caches))]
    except (OSError, ValueError, KeyError):
        return []


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
        raise _not_enough(needed, budget, device.type)


def _not_enough(needed: int, budget: int, device: str) -> OutOfMemoryError:
    return OutOfMemoryError(
        f"This needs about {amount(needed)} of memory on {device}, but may use only {amount(budget)}: "
        "use a smaller radius, a larger downscale or smaller images, or allow more memory."
    )


def amount(size: int) -> str:
    """'1.5 GB', or '12 MB' for small amounts."""
    return f"{size / 1e9:.1f} GB" if size >= 1e9 else f"{size / 1e6:.0f} MB"
