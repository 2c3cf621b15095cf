"""Memory that this process may still take: what is free, and the limits around it."""

import contextlib
import ctypes
from pathlib import Path

import psutil
import torch

UNLIMITED = 2**60  #: a limit of this many bytes or more is none
THREAD_ADDRESSES = 72 * 2**20  #: addresses that a thread reserves: a stack of 8 MiB and a heap of 64 MiB


def free_bytes(device: torch.device) -> int | None:
    """Return the memory that is free on a device now; None if unknown."""
    if device.type == "cuda":
        free, _ = torch.cuda.mem_get_info(device)
        return free + torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    if device.type in ("cpu", "mps"):
        return max(0, min([psutil.virtual_memory().available, *group_limits(), *process_limits()]))
    return None


def release_freed() -> None:
    """Give freed arrays back to the operating system, where the C library can; by itself it keeps the smaller ones."""
    with contextlib.suppress(AttributeError, OSError, TypeError):
        ctypes.CDLL(None).malloc_trim(0)


def group_limits(root: Path = Path("/")) -> list[int]:
    """Return what each control group with a limit around this process may still take, counting file caches as free.

    Containers, Slurm and systemd set such limits. They hold for all groups below, in version 1 and 2 alike.
    """
    try:
        lines = (root / "proc/self/cgroup").read_text().splitlines()
    except OSError:
        lines = []
    mounted = root / "sys/fs/cgroup"
    folders: list[Path] = []
    for line in (*lines, "0::/", "1:memory:/"):  # in a container, its own group may be mounted as the root
        _, controllers, path = (*line.split(":", 2), "", "")[:3]
        tops = [mounted, mounted / "unified"] if not controllers else [mounted / controllers, mounted / "memory"]
        if controllers and "memory" not in controllers.split(","):
            continue
        parts = [part for part in path.split("/") if part not in ("", "..")]
        folders += [top.joinpath(*parts[:n]) for top in tops for n in range(len(parts), -1, -1)]
    found = (_group_limit(folder, *names) for folder in dict.fromkeys(folders) for names in _GROUP_FILES)
    return [free for free in found if free is not None]


#: Files of limit and use, and the file caches' name in memory.stat, in version 2 (its second limit slows down) and 1.
_GROUP_FILES = (
    ("memory.max", "memory.current", "inactive_file"),
    ("memory.high", "memory.current", "inactive_file"),
    ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
)


def _group_limit(folder: Path, limit: str, used: str, caches: str) -> int | None:
    """Return what is free in the group of this folder; None without a limit, or with one that cannot be read."""
    try:
        most = int((folder / limit).read_text())  # a ValueError for "max"
        free = most - int((folder / used).read_text())
    except (OSError, ValueError):
        return None
    with contextlib.suppress(OSError, ValueError):
        lines = (line.split() for line in (folder / "memory.stat").read_text().splitlines())
        free += next((int(words[1]) for words in lines if len(words) == 2 and words[0] == caches), 0)
    return free if most < UNLIMITED else None


def process_limits() -> list[int]:
    """Return what this process may still take by its own limits, such as ``ulimit -v``; [] without a limit.

    These count addresses, and every thread takes some for its stack and its part of the heap.
    """
    try:
        import resource
    except ImportError:  # on Windows
        return []
    found = []
    taken = psutil.Process().memory_info()
    for name, used in (("RLIMIT_AS", taken.vms), ("RLIMIT_DATA", getattr(taken, "data", taken.rss))):
        limit = resource.getrlimit(getattr(resource, name))[0] if hasattr(resource, name) else resource.RLIM_INFINITY
        if limit != resource.RLIM_INFINITY and limit < UNLIMITED:
            found.append(limit - used - THREAD_ADDRESSES * torch.get_num_threads())
    return found
