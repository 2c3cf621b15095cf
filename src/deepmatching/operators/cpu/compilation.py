"""Compilation of the kernels: once per machine, kept on disk."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

from numba import njit

_log = logging.getLogger("deepmatching")


def kernel(function: Callable[..., Any]) -> Any:
    """Compile a function that Python calls, at its first call, without the interpreter's lock.

    The machine code is kept in Numba's cache (next to the source, or in the user's cache folder if that is not
    writable). If no folder at all is writable, every process compiles it again.
    """
    try:
        compiled: Any = njit(cache=True, nogil=True, error_model="numpy")(function)
    except RuntimeError:  # Numba's "cannot cache function: no locator available"
        compiled = njit(nogil=True, error_model="numpy")(function)
    # Numba looks only at the file of the kernel itself to tell whether its machine code is out of date, but a kernel
    # also contains the helpers from the other files of this package.
    if hasattr(getattr(compiled._cache, "_cache_file", None), "_source_stamp"):
        compiled._cache._cache_file._source_stamp = _sources()
    _announce_misses(compiled._cache)
    return compiled


def helper(function: Callable[..., Any]) -> Any:
    """Compile a function that only kernels call; a·b + c may be rounded once."""
    return njit(nogil=True, error_model="numpy", fastmath={"contract"})(function)


def _announce_misses(stored: Any) -> None:
    """Announce the compilation that follows when the cache does not hold a kernel for the types of its arguments."""
    load = stored.load_overload

    def load_or_announce(*arguments: Any) -> Any:
        found = load(*arguments)
        if found is None:
            announce_compilation()
        return found

    stored.load_overload = load_or_announce


@cache
def announce_compilation() -> None:
    """Tell the user, once, why this run takes longer."""
    _log.warning("compiling the kernels for this machine: the first run takes longer, later ones start at once")


@cache
def _sources() -> str:
    """A fingerprint of the package's files."""
    digest = hashlib.sha256()
    for file in sorted(Path(__file__).parent.glob("*.py")):
        digest.update(file.read_bytes())
    return digest.hexdigest()
