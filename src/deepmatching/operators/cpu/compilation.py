"""Compilation of the kernels: once on a machine, kept on disk."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

from numba import njit

#: Kernels that Python calls, in the order of their definition.
_kernels: list[Any] = []


def kernel(function: Callable[..., Any]) -> Any:
    """Compile a function that Python calls, at its first call, without the interpreter's lock.

    The machine code is kept in Numba's cache (next to the source, or in the user's cache folder if that is not
    writable). If no folder at all is writable, it is compiled again by every process.
    """
    try:
        compiled: Any = njit(cache=True, nogil=True, error_model="numpy")(function)
    except RuntimeError:  # Numba's "cannot cache function: no locator available"
        return njit(nogil=True, error_model="numpy")(function)
    # Numba would look only at the file of the kernel itself to tell whether its machine code is out of date,
    # but a kernel also contains the helpers from the other files of this package.
    if hasattr(getattr(compiled._cache, "_cache_file", None), "_source_stamp"):
        compiled._cache._cache_file._source_stamp = _sources()
    _kernels.append(compiled)
    return compiled


def helper(function: Callable[..., Any]) -> Any:
    """Compile a function that only kernels call; a·b + c may be rounded once."""
    return njit(nogil=True, error_model="numpy", fastmath={"contract"})(function)


def compiled() -> bool:
    """Whether this machine has compiled kernels before; not all, since each descriptor has its own."""
    try:
        return any(kernel._cache._cache_file._load_index() for kernel in _kernels)
    except (AttributeError, OSError):
        return False


@cache
def _sources() -> str:
    """A fingerprint of the package's files."""
    digest = hashlib.sha256()
    for file in sorted(Path(__file__).parent.glob("*.py")):
        digest.update(file.read_bytes())
    return digest.hexdigest()
