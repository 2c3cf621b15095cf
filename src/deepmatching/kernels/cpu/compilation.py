"""Compilation of the kernels: once per machine, kept on disk."""

import hashlib
import io
import logging
import os
import pickle
import stat
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

from numba import njit
from numba.core.caching import FunctionCache, IndexDataCacheFile
from numba.core.environment import Environment, lookup_environment
from numba.core.runtime import rtsys

from deepmatching.kernels.first_run import announce_compilation

_log = logging.getLogger("deepmatching")


def kernel(function: Callable[..., Any]) -> Any:
    """Compile a function that Python calls, at its first call, without the interpreter's lock.

    The machine code is kept in Numba's cache (next to the source, or in the user's cache folder if that is not
    writable). If no folder at all is writable, every process compiles it again.
    """
    compiled: Any = njit(nogil=True, error_model="numpy")(function)
    compiled._cache = _KernelCache(function)
    return compiled


def helper(function: Callable[..., Any]) -> Any:
    """Compile a function that only kernels call; a·b + c may be rounded once."""
    return njit(nogil=True, error_model="numpy", fastmath={"contract"})(function)


class _KernelCache(FunctionCache):
    """Numba's cache, where what cannot be loaded is compiled again, and what cannot be stored costs the cache only.

    What is loaded is run. From a folder that other users can write to, nothing is.
    """

    def __init__(self, function: Callable[..., Any]) -> None:
        try:
            super().__init__(function)
            self._cache_file = _KernelFile(self._cache_path, self._impl.filename_base, "")
        except RuntimeError:  # Numba's "cannot cache function: no locator available"
            self._cache_path = None
            self.disable()

    def load_overload(self, signature: Any, target: Any) -> Any:
        found = None
        if _is_exposed(self.cache_path):
            _warn_once(
                "other users can write to '%s', so stored kernels there are not run, and every run compiles them "
                "again: close it (chmod go-w), or set the environment variable NUMBA_CACHE_DIR to a folder of your own",
                self.cache_path,
            )
        else:
            try:
                rtsys.initialize(target)
                with self._guard_against_spurious_io_errors():
                    found = self._load_overload(signature, target)
            except Exception as error:  # whatever unpickling, or building from damaged parts, raises
                message = "stored kernels in '%s' are damaged (%s): they are compiled again"
                _warn_once(message, self.cache_path, _reason(error))
        if found is None:
            announce_compilation()
        return found

    def save_overload(self, signature: Any, data: Any) -> None:
        if _is_exposed(self.cache_path):
            return
        try:
            super().save_overload(signature, data)
        except Exception as error:
            _warn_once(
                "compiled kernels cannot be stored in '%s' (%s), so every run compiles them again: free some space "
                "there, or set the environment variable NUMBA_CACHE_DIR to another folder",
                self.cache_path, _reason(error),
            )  # fmt: skip


class _KernelFile(IndexDataCacheFile):
    """A file for each kernel and types of arguments, with a checksum: damaged code must not run.

    Numba keeps a list of a kernel's files, which each process writes anew. Of processes that compile at once, one would
    lose its entry or find the code of another under its name.
    """

    def save(self, key: Any, data: Any) -> None:
        content = self._fingerprint() + self._dump(data)
        with self._open_for_write(self._path(key)) as stream:
            stream.write(_checksum(key, content) + content)

    def load(self, key: Any) -> Any:
        try:
            stored = self._path(key).read_bytes()
        except FileNotFoundError:
            return None
        if stored[:32] != _checksum(key, stored[32:]):
            raise ValueError("the checksum is wrong")
        return _Reader(io.BytesIO(stored[64:])).load() if stored[32:64] == self._fingerprint() else None

    def _path(self, key: Any) -> Path:
        return Path(self._index_path).with_suffix(f".{hashlib.sha256(repr(key).encode()).hexdigest()[:16]}.nbc")

    def _fingerprint(self) -> bytes:
        """Return a digest of Numba's version and the whole package: a kernel contains helpers from other files."""
        return hashlib.sha256(f"{self._version} {_sources()}".encode()).digest()


class _Reader(pickle.Unpickler):
    """Reads stored code without importing the modules of Numba that it was compiled from: half a second at each start.

    Code that does not call the interpreter needs no global names.
    """

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) == ("numba.core.environment", "_rebuild_env"):
            return _environment
        return super().find_class(module, name)


def _environment(module: str, constants: list[Any], name: str) -> Environment:
    """Return what Numba keeps beside a compiled function of this mangled name: its module and constants."""
    found = lookup_environment(name)
    if found is None:
        found = Environment._memo[name] = Environment({"__name__": module})
        found.consts[:] = constants
        found.env_name = name
    return found


def _checksum(key: Any, content: bytes) -> bytes:
    return hashlib.sha256(repr(key).encode() + content).digest()


@cache
def _sources() -> str:
    digest = hashlib.sha256()
    for file in sorted(Path(__file__).parent.rglob("*.py")):
        digest.update(file.read_bytes())
    return digest.hexdigest()


def _is_exposed(folder: str | None) -> bool:
    """Tell whether others can write to a folder: than this user, root, the owner of the package, and a group of one."""
    if folder is None or os.name != "posix":
        return False
    try:
        about = os.stat(folder)
    except OSError:
        return False  # there is nothing to load
    trusted = (os.geteuid(), 0, os.stat(__file__).st_uid)
    by_group = bool(about.st_mode & stat.S_IWGRP) and not _is_group_of(about.st_gid, about.st_uid)
    return about.st_uid not in trusted or by_group or bool(about.st_mode & stat.S_IWOTH)


def _is_group_of(group: int, user: int) -> bool:
    """Tell whether a group is a user's own: many systems give each user one, and let it write to the user's files."""
    import grp  # POSIX only
    import pwd

    try:
        found, name = grp.getgrgid(group), pwd.getpwuid(user).pw_name
    except KeyError:
        return False
    return found.gr_name == name and set(found.gr_mem) <= {name}


def _reason(error: Exception) -> str:
    return getattr(error, "strerror", None) or str(error) or type(error).__name__


#: What was said already. Dozens of kernels share a cache, and one sentence is enough.
_said: set[str] = set()


def _warn_once(message: str, *values: object) -> None:
    if message not in _said:
        _said.add(message)
        _log.warning(message, *values)
