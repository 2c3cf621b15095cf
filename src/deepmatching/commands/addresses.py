"""Room for the libraries, looked at before they are imported: NumPy's ends the process itself if it has too little."""

from __future__ import annotations

from pathlib import Path

from deepmatching.errors import OutOfMemoryError

#: Addresses in bytes that NumPy, PyTorch, OpenCV and Numba take at least.
LIBRARIES = 1_200_000_000


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
    if limit != resource.RLIM_INFINITY and left < LIBRARIES:
        raise OutOfMemoryError(
            f"The limit of addresses (ulimit -v) leaves {max(0, left) / 1e6:.0f} MB of memory, but loading the "
            f"libraries takes {LIBRARIES / 1e6:.0f} MB: raise the limit."
        )
