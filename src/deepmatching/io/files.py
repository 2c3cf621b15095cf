"""Writing files so that a reader never sees half of one."""

from __future__ import annotations

import contextlib
import errno
import os
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

from deepmatching.errors import DeepMatchingError

#: Seconds between attempts to replace a file: on Windows a virus scanner or a reader may hold it for a moment.
_PAUSES = (0.05, 0.1, 0.2, 0.4, 0.8, 1.6) if os.name == "nt" else ()


def make_folder(path: str | os.PathLike[str]) -> None:
    """Create a folder and those above it; fine if it is there already."""
    try:
        os.makedirs(path, exist_ok=True)
    except FileExistsError:
        raise DeepMatchingError(f"Cannot use '{path}' as a folder: it is a file; give another name.") from None
    except OSError as error:
        raise _cannot_write(path, error) from error


def check_writable(path: str | os.PathLike[str]) -> None:
    """Raise now, before the work, if :func:`atomic_write` could not write `path`."""
    temporary = _create_temporary(path)[0]
    temporary.unlink()


@contextlib.contextmanager
def atomic_write(path: str | os.PathLike[str]) -> Iterator[Path]:
    """Give a temporary path beside `path`; rename it to `path` on success, remove it on failure.

    The temporary file exists (empty) and has the same suffix, since many writers choose the format by it.
    An existing file is replaced; a symbolic link keeps pointing where it pointed and its target is replaced.
    """
    temporary, target = _create_temporary(path)
    try:
        yield temporary
        try:
            _replace(temporary, target)
        except OSError as error:
            raise _cannot_write(path, error) from error
    except BaseException as error:
        with contextlib.suppress(OSError):
            temporary.unlink()
        if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise _cannot_write(path, error) from error
        raise


def _create_temporary(path: str | os.PathLike[str]) -> tuple[Path, Path]:
    """An empty temporary file beside `path`, and the file that it will replace."""
    target = Path(os.path.realpath(path))
    if target.is_dir():
        raise DeepMatchingError(f"Cannot write '{path}': it is a folder; give the name of a file.")
    if not target.parent.is_dir():
        raise DeepMatchingError(f"Cannot write '{path}': there is no folder '{target.parent}'; create it first.")
    # Renaming over a device would replace the device itself (/dev/null, when run as root).
    if target.exists() and not target.is_file():
        raise DeepMatchingError(f"Cannot write '{path}': it is not a regular file; give another name.")

    # Not `tempfile`: its files are private to the user (mode 600) and would stay so after the rename.
    temporary = target.with_name(f".{uuid.uuid4().hex}{target.suffix}")
    try:
        os.close(os.open(temporary, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o666))
    except OSError as error:
        raise _cannot_write(path, error) from error
    return temporary, target


def _replace(source: Path, target: Path) -> None:
    for pause in _PAUSES:
        try:
            return os.replace(source, target)
        except PermissionError:
            time.sleep(pause)
    os.replace(source, target)


def _cannot_write(path: str | os.PathLike[str], error: OSError) -> DeepMatchingError:
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return DeepMatchingError(f"Cannot write '{path}': no space is left; free some or write to another disk.")
    reason = error.strerror or str(error)
    return DeepMatchingError(
        f"Cannot write '{path}' ({reason}); check the permissions of its folder or choose another."
    )
