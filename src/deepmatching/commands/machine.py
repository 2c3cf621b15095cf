"""What the machine grants a command: threads, and addresses for the libraries.

A command uses as many threads as there are cores that other processes leave free. With more, threads wait for each
other at every step: ten times slower than one thread has been measured. The library itself leaves the number to
PyTorch.
"""

import contextlib
import os
import sys
import time
from collections.abc import Mapping
from pathlib import Path

from deepmatching.commands.messages import say_if_verbose
from deepmatching.errors import OutOfMemoryError, counted

#: Addresses in bytes that NumPy, PyTorch, OpenCV and Numba take at least. NumPy ends the process itself without them.
LIBRARY_ADDRESSES = 1_200_000_000

VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS")  #: Variables that PyTorch takes the number of threads from.

#: When the command started, and the processor time of this process until then, in seconds.
_start: tuple[float, float] | None = None


def watch() -> None:
    """Begin to observe what the processors do, for :func:`use_threads`."""
    import psutil

    global _start
    psutil.cpu_percent(percpu=True)
    _start = time.monotonic(), time.process_time()


def use_threads(requested: int | None, environ: Mapping[str, str] = os.environ) -> None:
    """Tell PyTorch, and our kernels with it, how many threads to use; a verbose command prints why."""
    import psutil
    import torch

    named = next((name for name in VARIABLES if environ.get(name)), None)
    if requested is not None:
        threads, why = requested, "as --threads asks"
    elif named is not None or _start is None:  # None if called as a function, not as a command
        threads, why = torch.get_num_threads(), f"as {named} asks" if named else "PyTorch's choice"
    else:
        cores = psutil.Process().cpu_affinity() if hasattr(psutil.Process, "cpu_affinity") else None
        cores = cores or list(range(os.cpu_count() or 1))
        percents = [percent for core, percent in enumerate(psutil.cpu_percent(percpu=True)) if core in cores]
        own = (time.process_time() - _start[1]) / max(time.monotonic() - _start[0], 1e-3)
        # In some containers, the system tells nothing but its load.
        busy = max(0.0, sum(percents) / 100 - own) if any(percents) else psutil.getloadavg()[0]
        threads, why = choose_threads(len(cores), read_quota(), busy)
    torch.set_num_threads(threads)
    say_if_verbose(f"{counted(threads, 'thread')} ({why})")


def choose_threads(cores: int, quota: float | None, busy: float) -> tuple[int, str]:
    """Return the number of threads, at least 1, and why.

    This process may run on ``cores`` cores and use the time of ``quota`` (of its container); others use ``busy`` now.
    """
    allowed = cores - busy if quota is None else min(cores - busy, quota)
    limit = "" if quota is None else f", {quota:g} allowed"
    available = f"{counted(cores, 'core')}{limit}"
    return max(1, min(cores, round(allowed))), f"{available}, {busy:.1f} of them in use by other processes"


def read_quota(root: Path = Path("/sys/fs/cgroup")) -> float | None:
    """Return the number of cores that the container's limit grants, or None."""
    for names in (["cpu.max"], ["cpu/cpu.cfs_quota_us", "cpu/cpu.cfs_period_us"]):  # versions 2 and 1 of cgroups
        with contextlib.suppress(OSError, ValueError, ZeroDivisionError):
            quota, period = " ".join((root / name).read_text() for name in names).split()
            return None if quota in ("max", "-1") else int(quota) / int(period)
    return None


def require_addresses() -> None:
    """Raise if a limit of addresses (``ulimit -v``) leaves too few for the libraries. Only Linux enforces it."""
    if sys.platform != "linux":
        return
    import resource

    import psutil

    limit = resource.getrlimit(resource.RLIMIT_AS)[0]
    left = limit - psutil.Process().memory_info().vms
    if limit != resource.RLIM_INFINITY and left < LIBRARY_ADDRESSES:
        raise OutOfMemoryError(
            f"The limit of addresses (ulimit -v) leaves {max(0, left) / 1e6:.0f} MB of memory, but loading the "
            f"libraries takes {LIBRARY_ADDRESSES / 1e6:.0f} MB: raise the limit."
        )
