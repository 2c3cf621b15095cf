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


class OutputError(Exception):
    """Standard output cannot be written; the cause is the system's error."""


@contextlib.contextmanager
def guarded_output() -> Iterator[None]:
    """Raise ``DeepMatchingError`` if what the block prints to standard output cannot be written.

    If the reader stops early, as ``head`` does, the program ends without a word, with code 1 as typer does.
    """
    original, sys.stdout = sys.stdout, _guarded(sys.stdout, is_told=True)
    try:
        try:
            yield
        finally:
            if sys.stdout is not None:
                sys.stdout.flush()
    except OutputError as error:
        if isinstance(error.__cause__, BrokenPipeError):
            sys.exit(1)
        raise DeepMatchingError(f"Cannot write to standard output ({error}): free some space on the disk.") from error
    finally:
        sys.stdout = original


@contextlib.contextmanager
def guarded_errors() -> Iterator[None]:
    """Go on if standard error cannot be written: there is no other place for what the block prints to it."""
    original, sys.stderr = sys.stderr, _guarded(sys.stderr, is_told=False)
    try:
        yield
    finally:
        sys.stderr.flush()
        sys.stderr = original


def _guarded(stream: Any, is_told: bool) -> Any:
    """Return the stream as one that fails in our way; itself if it is no file, as in a test or in a notebook."""
    buffer = getattr(stream, "buffer", None)
    file = getattr(buffer, "raw", buffer)  # python -u has no buffer
    if not isinstance(file, io.FileIO):
        return stream
    writer = io.BufferedWriter(_Forgetting(file, is_told))
    return io.TextIOWrapper(writer, stream.encoding, stream.errors, line_buffering=stream.line_buffering or not is_told)


class _Forgetting(io.FileIO):
    """A file that forgets what it cannot write, and raises :class:`OutputError` the first time if that is asked for."""

    def __init__(self, file: io.FileIO, is_told: bool) -> None:
        super().__init__(file.fileno(), "w", closefd=False)
        self._is_told = is_told

    def write(self, data: Any) -> int:
        try:
            if (written := super().write(data)) is None:
                raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN))
            return written
        except OSError as error:
            if self._is_told:
                self._is_told = False
                raise OutputError(error.strerror) from error
            return len(data)


def silence_libraries() -> None:
    """Do not show users the warnings that NumPy and others address to programmers, unless they ask for them (-W)."""
    if not sys.warnoptions:
        warnings.simplefilter("ignore")
