"""How much memory a piece of work needs, and whether it is there: asked before anything is allocated."""

from __future__ import annotations

import psutil
import torch

from deepmatching.descriptors import Descriptor
from deepmatching.errors import OutOfMemoryError
from deepmatching.geometry import Geometry


def decoding_bytes(geometry: Geometry, descriptor: Descriptor, batch: int = 1) -> int:
    """Peak of ``Network.decode``: what must be held at once to match a batch of pairs."""
    first = geometry.cells(0)
    if geometry.L == 0:
        volumes = 8 * first
    else:
        pooled = [pooled_cells(geometry, l) for l in range(geometry.L)]
        correlating = 8 * first + 10 * pooled[0]  # S_0 and its power, S_{1/2}, the switches and a candidate
        decoding = 4 * pooled[0] + 5 * sum(pooled) + 4 * first  # Q_{1/2}, all S_{l+1/2} and m_l, Q_0
        volumes = max(correlating, decoding)
    return batch * (volumes + descriptor_bytes(geometry, descriptor))


def pyramid_bytes(geometry: Geometry, descriptor: Descriptor, batch: int = 1, training: bool = True) -> int:
    """Peak of ``Network.forward``: all S_l and Q_l, and what backward needs of them."""
    per_cell = 8 + (10 if training else 0)  # S and Q; choices of UP and MP, the mask and the base of the power
    volumes = sum(geometry.cells(l) for l in range(geometry.L + 1)) * per_cell + 4 * geometry.cells(0)
    return batch * (volumes + descriptor_bytes(geometry, descriptor))


def pooled_cells(geometry: Geometry, l: int) -> int:
    """Number of scores in S_{l+1/2}."""
    rows, columns = geometry.grid(l)
    h, w = geometry.window(l + 1)
    return rows * columns * h * w


def descriptor_bytes(geometry: Geometry, descriptor: Descriptor) -> int:
    """Feature maps of both images: the descriptor's own and a few of its full-resolution intermediates."""
    pixels = geometry.used0[0] * geometry.used0[1] + geometry.used1[0] * geometry.used1[1]
    return 4 * descriptor.channels * pixels * 3


def free_bytes(device: torch.device) -> int | None:
    """Memory that could be had on a device now; None if that cannot be told."""
    if device.type == "cuda":
        free, _ = torch.cuda.mem_get_info(device)
        return free + torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    if device.type in ("cpu", "mps"):
        return psutil.virtual_memory().available
    return None


def require(needed: int, device: torch.device) -> None:
    """Raise if less memory is free on the device than the work needs."""
    free = free_bytes(device)
    if free is not None and needed > free:
        raise OutOfMemoryError(
            f"This needs about {gigabytes(needed)} of memory, but only {gigabytes(free)} is free on {device}: "
            "use a smaller radius, a larger downscale or smaller images."
        )


def gigabytes(amount: int) -> str:
    """'1.5 GB', or '12 MB' for small amounts."""
    return f"{amount / 1e9:.1f} GB" if amount >= 1e9 else f"{amount / 1e6:.0f} MB"
