"""Standard output and standard error that may be full or closed, and the remarks of libraries."""

import contextlib
import errno
import io
import os
import sys
import warnings
from collections.abc import Iterator
from typing import Any

from deepmatching.errors import DeepMatchingError


@contextlib.contextmanager
def guarded_output() -> Iterator[None]:
    """Raise ``DeepMatchingError`` if what the block prints to standard output cannot be written.

    If the reader stops early, as ``head`` does, the program ends without a word, with code 1 as typer does.
    """
    try:
        try:
            yield
        except SystemExit:
            _flush()
            raise
        _flush()
    except OSError as error:
        if not _is_broken(error):
            raise
        discard_output()
        if isinstance(error, BrokenPipeError):
            sys.exit(1)
        raise DeepMatchingError(
            f"Cannot write to standard output ({error.strerror}): free some space or write elsewhere."
        ) from error


def discard_output() -> None:
    """Send what is still to be printed to nowhere; Python would try to write it again at exit."""
    with contextlib.suppress(OSError, ValueError):
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, sys.stdout.fileno())
        os.close(null)


@contextlib.contextmanager
def guarded_errors() -> Iterator[None]:
    """Go on if standard error cannot be written: there is no other place for what the block prints to it."""
    original = sys.stderr
    buffer: Any = getattr(original, "buffer", None)
    file = getattr(buffer, "raw", buffer)  # python -u has no buffer
    if not isinstance(file, io.RawIOBase):  # not a file, as in a test or in a notebook
        yield
        return
    sys.stderr = io.TextIOWrapper(
        io.BufferedWriter(_Lossy(file)), original.encoding, original.errors, line_buffering=True, write_through=True
    )
    try:
        yield
    finally:
        sys.stderr.flush()
        sys.stderr = original


class _Lossy(io.RawIOBase):
    """A file that forgets what it cannot write."""

    def __init__(self, file: io.RawIOBase) -> None:
        self._file = file

    def write(self, data: Any) -> int:
        try:
            written = self._file.write(data)
        except OSError:
            written = None
        return len(data) if written is None else written

    def writable(self) -> bool:
        return True

    def isatty(self) -> bool:
        return self._file.isatty()

    def fileno(self) -> int:
        return self._file.fileno()


def silence_libraries() -> None:
    """Do not show users the warnings that NumPy and others address to programmers, unless they ask for them (-W)."""
    if not sys.warnoptions:
        warnings.simplefilter("ignore")


def _flush() -> None:
    if sys.stdout is not None:
        sys.stdout.flush()


def _is_broken(error: OSError) -> bool:
    """Tell whether standard output, and nothing else, has failed: it still holds what it could not write."""
    if error.filename is not None:  # some other file
        return False
    try:
        _flush()
        if sys.stdout is not None and error.errno == errno.ENOSPC:  # text beyond its buffer is lost: try an empty line
            sys.stdout.write("\n")
            _flush()
    except OSError:
        return True
    return bool(getattr(sys.stdout, "write_through", False))  # keeps nothing
