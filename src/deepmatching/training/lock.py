"""One training at a time in a folder."""

from __future__ import annotations

import contextlib
import errno
import os
import sys
from collections.abc import Iterator
from pathlib import Path

from deepmatching.errors import DeepMatchingError

if sys.platform == "win32":
    import msvcrt
else:
    import fcntl

#: How systems say that another has the lock.
_TAKEN = (errno.EACCES, errno.EAGAIN, errno.EWOULDBLOCK, errno.EDEADLK)


@contextlib.contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Keep other processes out of a folder while this lasts.

    The lock is the system's, on the file ``.lock``: it ends with the process, however that ends, so that a file that is
    left behind locks nobody out.
    """
    path = folder / ".lock"
    file = _lock(folder, path)
    try:
        yield
    finally:
        if sys.platform == "win32":  # which does not remove open files
            os.close(file)
            with contextlib.suppress(OSError):  # another may have opened it at once
                path.unlink()
        else:
            path.unlink(missing_ok=True)
            os.close(file)


def _lock(folder: Path, path: Path) -> int:
    """Open the file and lock it, once more if whoever had it has removed it in between."""
    while True:
        try:
            file = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
        except OSError as error:
            raise DeepMatchingError(f"'{path}' cannot be opened ({error.strerror}): remove it.") from error
        is_locked = False
        try:
            is_locked = _take(file, folder, path)
        finally:
            if not is_locked:
                os.close(file)
        if is_locked:
            return file


def _take(file: int, folder: Path, path: Path) -> bool:
    """Lock the open file, or raise if another has it; False if it is no longer the one at this path."""
    try:
        if sys.platform == "win32":
            msvcrt.locking(file, msvcrt.LK_NBLCK, 1)
        else:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno not in _TAKEN:
            return True  # a file system without locks is no reason not to train
        raise DeepMatchingError(
            f"Another process is training in '{folder}': stop it or wait for its end, or use another out=…."
        ) from None
    try:
        return os.path.samestat(os.fstat(file), os.stat(path))
    except FileNotFoundError:
        return False
