"""What the machine grants a command: threads, and addresses for the libraries.

A command uses as many threads as there are cores that other processes leave free. With more, threads wait for each
other at every step: ten times slower than one thread has been measured. The library itself leaves the number to
PyTorch.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from deepmatching.errors import OutOfMemoryError

#: Addresses in bytes that NumPy, PyTorch, OpenCV and Numba take at least. NumPy ends the process itself without them.
LIBRARY_ADDRESSES = 1_200_000_000

#: Variables that PyTorch takes the number of threads from.
VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS")


@dataclass(frozen=True)
class Usage:
    """What the processors have done since the machine started, in seconds."""

    time: float  #: the moment of this record
    busy: float  #: processor time of all processes on our cores
    own: float  #: processor time of this process


_before: Usage | None = None


def watch() -> None:
    """Record what the processors have done when a command starts, for :func:`use_threads`."""
    global _before
    _before = _usage(_cores())


def use_threads(requested: int | None, environ: Mapping[str, str] = os.environ) -> str:
    """Tell PyTorch, and our kernels with it, how many threads to use; return one line on why."""
    import torch

    cores = _cores()
    if requested is not None:
        torch.set_num_threads(requested)
        return _line(requested, "as --threads asks")
    named = next((name for name in VARIABLES if environ.get(name)), None)
    if named is not None:
        return _line(torch.get_num_threads(), f"as {named} asks")
    if _before is None:  # called as a function, not as a command
        return _line(torch.get_num_threads(), "PyTorch's choice")
    busy = busy_cores(_before, _usage(cores), _load())
    threads, why = choose_threads(len(cores), read_quota(), busy)
    torch.set_num_threads(threads)
    return _line(threads, why)


def choose_threads(cores: int, quota: float | None, busy: float) -> tuple[int, str]:
    """Return the number of threads, at least 1, and why.

    Args:
        cores: number of cores that this process may run on.
        quota: number of cores whose time it may use, from its container; None for no limit.
        busy: number of cores that other processes use now.
    """
    free = cores - busy
    allowed = free if quota is None else min(free, quota)
    limit = "" if quota is None else f", {quota:g} allowed"
    return max(1, min(cores, round(allowed))), f"{cores} cores{limit}, {busy:.1f} of them in use by other processes"


def busy_cores(before: Usage, after: Usage, load: float) -> float:
    """Return how many cores other processes used between two records; the system's load if these tell nothing."""
    if after.time <= before.time or after.busy <= before.busy:
        return load
    others = (after.busy - before.busy) - (after.own - before.own)
    return max(0.0, others / (after.time - before.time))


def _line(threads: int, why: str) -> str:
    return f"{threads} {'thread' if threads == 1 else 'threads'} ({why})"


def _cores() -> set[int]:
    if hasattr(os, "sched_getaffinity"):
        return set(os.sched_getaffinity(0))
    return set(range(os.cpu_count() or 1))


def _usage(cores: set[int]) -> Usage:
    return Usage(time.monotonic(), read_busy(cores), time.process_time())


def read_busy(cores: set[int], file: Path = Path("/proc/stat")) -> float:
    """Return the seconds that these cores have not been idle, from Linux's table of ticks; 0 without it."""
    try:
        rows = [line.split() for line in file.read_text().splitlines() if line.startswith("cpu")]
        ticks = os.sysconf("SC_CLK_TCK")
        # user, nice, system, (idle, waiting,) interrupts, soft interrupts, stolen
        used = [[*map(int, row[1:4]), *map(int, row[6:9])] for row in rows if row[0] in {f"cpu{n}" for n in cores}]
    except (OSError, ValueError, AttributeError):
        return 0.0
    return sum(map(sum, used)) / ticks


def _load() -> float:
    try:
        return os.getloadavg()[0]
    except (OSError, AttributeError):
        return 0.0


def read_quota(root: Path = Path("/sys/fs/cgroup")) -> float | None:
    """Return the number of cores that the container's limit grants, or None."""
    try:
        for file in (root / "cpu.max", root / "cpu" / "cpu.cfs_quota_us"):
            if file.is_file():
                words = file.read_text().split()
                if file.name != "cpu.max":
                    words.append((root / "cpu" / "cpu.cfs_period_us").read_text())
                return None if words[0] in ("max", "-1") else int(words[0]) / int(words[1])
    except (OSError, ValueError, IndexError, ZeroDivisionError):
        pass
    return None


def require_addresses(statistics: Path = Path("/proc/self/statm")) -> None:
    """Raise if a limit of addresses (``ulimit -v``) leaves too few for the libraries. Only Linux enforces it.

    Args:
        statistics: the file whose first word is the number of pages that this process has addresses for.
    """
    try:
        import resource

        pages = int(statistics.read_text().split()[0])
    except (ImportError, OSError, ValueError, IndexError):  # not Linux
        return
    limit = resource.getrlimit(resource.RLIMIT_AS)[0]
    left = limit - pages * resource.getpagesize()
    if limit != resource.RLIM_INFINITY and left < LIBRARY_ADDRESSES:
        raise OutOfMemoryError(
            f"The limit of addresses (ulimit -v) leaves {max(0, left) / 1e6:.0f} MB of memory, but loading the "
            f"libraries takes {LIBRARY_ADDRESSES / 1e6:.0f} MB: raise the limit."
        )
