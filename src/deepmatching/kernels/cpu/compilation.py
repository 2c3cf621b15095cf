"""Compilation of the kernels: once per machine, kept on disk."""

from __future__ import annotations

import hashlib
import logging
import os
import pickle
import stat
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
    if hasattr(compiled._cache, "_cache_file"):
        _store_apart(compiled._cache._cache_file)
    _survive_damage(compiled._cache)
    _announce_misses(compiled._cache)
    return compiled


def helper(function: Callable[..., Any]) -> Any:
    """Compile a function that only kernels call; a·b + c may be rounded once."""
    return njit(nogil=True, error_model="numpy", fastmath={"contract"})(function)


def reduction(function: Callable[..., Any]) -> Any:
    """As :func:`helper`, for a sum whose terms may be added in any order: several at once."""
    return njit(nogil=True, error_model="numpy", fastmath={"contract", "reassoc", "nsz"})(function)


def _announce_misses(stored: Any) -> None:
    """Announce the compilation that follows when the cache does not hold a kernel for the types of its arguments."""
    load = stored.load_overload

    def load_or_announce(*arguments: Any) -> Any:
        found = load(*arguments)
        if found is None:
            announce_compilation()
        return found

    stored.load_overload = load_or_announce


def _survive_damage(stored: Any) -> None:
    """Compile again what cannot be loaded, and go on without a cache that cannot be written. Numba would raise.

    What is loaded is run. From a folder that other users can write to, nothing is.
    """
    load, save = stored.load_overload, stored.save_overload

    def load_or_forget(*arguments: Any) -> Any:
        if _is_exposed(stored.cache_path):
            _warn_of_exposure(stored.cache_path)
            return None
        try:
            return load(*arguments)
        except Exception as error:  # whatever unpickling, or building from damaged parts, raises
            _warn_of_damage(stored.cache_path, _reason(error))
            return None  # what is compiled then takes its place

    def save_or_warn(*arguments: Any) -> None:
        if _is_exposed(stored.cache_path):
            return
        try:
            save(*arguments)
        except Exception as error:
            _warn_of_lost_work(stored.cache_path, _reason(error))

    stored.load_overload, stored.save_overload = load_or_forget, save_or_warn


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


def _store_apart(file: Any) -> None:
    """Keep machine code in a file for each kernel and types of arguments, with a checksum: damaged code must not run.

    Numba keeps a list of a kernel's files, which each process writes anew. Of processes that compile at once, one would
    lose its entry or find the code of another under its name.
    """

    def path(key: Any) -> Path:
        return Path(file._index_path).with_suffix(f".{hashlib.sha256(repr(key).encode()).hexdigest()[:16]}.nbc")

    def seal(key: Any, content: bytes) -> bytes:
        return hashlib.sha256(repr(key).encode() + content).digest()

    def save(key: Any, data: Any) -> None:
        content = _version(file) + file._dump(data)
        with file._open_for_write(path(key)) as stream:
            stream.write(seal(key, content) + content)

    def load(key: Any) -> Any:
        try:
            stored = path(key).read_bytes()
        except FileNotFoundError:
            return None
        checksum, version, code = stored[:32], stored[32:64], stored[64:]
        if checksum != seal(key, version + code):
            raise ValueError("the checksum is wrong")
        return pickle.loads(code) if version == _version(file) else None

    file.save, file.load = save, load


def _version(file: Any) -> bytes:
    """A fingerprint of Numba and of the whole package, since a kernel contains helpers from other files."""
    return hashlib.sha256(f"{file._version} {_sources()}".encode()).digest()


def _reason(error: Exception) -> str:
    return getattr(error, "strerror", None) or str(error) or type(error).__name__


#: What was said about the cache already. Dozens of kernels share it, and one sentence is enough.
_said: set[str] = set()


def _warn_of_damage(folder: str, reason: str) -> None:
    if "damage" not in _said:
        _said.add("damage")
        _log.warning("stored kernels in '%s' are damaged (%s): they are compiled again", folder, reason)


def _warn_of_exposure(folder: str) -> None:
    if "exposure" not in _said:
        _said.add("exposure")
        _log.warning(
            "other users can write to '%s', so stored kernels there are not run, and every run compiles them again: "
            "close it (chmod go-w), or set the environment variable NUMBA_CACHE_DIR to a folder of your own",
            folder,
        )


def _warn_of_lost_work(folder: str, reason: str) -> None:
    if "lost" not in _said:
        _said.add("lost")
        _log.warning(
            "compiled kernels cannot be stored in '%s' (%s), so every run compiles them again: free some space there, "
            "or set the environment variable NUMBA_CACHE_DIR to another folder",
            folder,
            reason,
        )


@cache
def announce_compilation() -> None:
    """Tell the user, once, why this run takes longer."""
    _log.warning("compiling the kernels for this machine: the first run takes longer, later ones start at once")


@cache
def _sources() -> str:
    """A fingerprint of the package's files."""
    digest = hashlib.sha256()
    for file in sorted(Path(__file__).parent.rglob("*.py")):
        digest.update(file.read_bytes())
    return digest.hexdigest()
