"""One run at a time in a folder."""

from __future__ import annotations

import contextlib
import errno
from collections.abc import Iterator
from pathlib import Path

from filelock import FileLock, Timeout

from deepmatching.errors import DeepMatchingError
from deepmatching.io.files import remove_temporaries

#: What file systems without locks answer. A run there goes on unprotected.
_UNSUPPORTED = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP)


@contextlib.contextmanager
def lock_folder(folder: Path, work: str, other: str) -> Iterator[None]:
    """Keep other processes out of a folder while the block lasts, and remove what killed ones left half written.

    The operating system holds the lock on the file ``.lock`` and releases it however the process ends. A file that a
    killed process leaves behind locks nobody out.

    Args:
        folder: exists and is writable.
        work: what the other process does, for the error: ``training in``.
        other: how to name another folder: ``out=…``.
    """
    path = folder / ".lock"
    lock = FileLock(path)
    try:
        lock.acquire(blocking=False)
    except Timeout:
        raise DeepMatchingError(
            f"Another process is {work} '{folder}': wait for it, stop it, or use another {other}."
        ) from None
    except OSError as error:
        if error.errno not in _UNSUPPORTED:
            raise DeepMatchingError(f"'{path}' cannot be locked ({error.strerror}): remove it.") from error
    try:
        remove_temporaries(folder, is_locked=True)
        yield
    finally:
        with contextlib.suppress(OSError):  # Windows does not remove open files
            path.unlink()  # before the release: afterwards it could be another run's
        lock.release()
