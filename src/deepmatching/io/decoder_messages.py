"""What the decoders of images print by themselves.

libjpeg prints its warnings to the standard error of the process, past Python, and OpenCV cannot silence it. A command
calls :func:`catch_messages` once, and the warnings can then be reported with the name of the file. Without this call,
the library leaves the standard error of the process alone.
"""

from __future__ import annotations

import os
import tempfile
import threading
from collections.abc import Callable
from typing import IO, TypeVar

Result = TypeVar("Result")

_STDERR = 2
_LONGEST = 10_000
_are_caught = False


def catch_messages(caught: bool = True) -> None:
    """Catch from now on what is printed in :func:`with_messages`, or let it pass again.

    Python must not print to this file descriptor itself: other threads would then be caught too.
    """
    global _are_caught
    _are_caught = caught


def with_messages(decode: Callable[[], Result]) -> tuple[Result, list[str]]:
    """Call a decoder; its result, and the lines that it printed, none unless they are caught.

    Threads decode at the same time. Those at work while something is printed decode again, one after the other.
    """
    if not _are_caught:
        return decode(), []
    try:
        begin = _redirected.enter()
    except OSError:  # closed, or no room for a temporary file: let them pass
        return decode(), []
    try:
        result = decode()
    finally:
        has_printed = _redirected.leave(begin)
    return _redirected.alone(decode) if has_printed else (result, [])


class _Redirected:
    """Standard error, which goes to a file while decoders are at work."""

    def __init__(self) -> None:
        self._entrance = threading.Lock()  # held by a thread that decodes alone
        self._changed = threading.Condition()
        self._at_work = 0
        self._file: IO[bytes]
        self._saved: int

    def enter(self) -> int:
        """Begin to decode; returns the length of the file."""
        with self._entrance:
            return self._begin()

    def _begin(self) -> int:
        with self._changed:
            if self._at_work == 0:
                self._redirect()
            self._at_work += 1
            return os.fstat(self._file.fileno()).st_size

    def leave(self, begin: int) -> bool:
        """End decoding; returns whether the file has grown since its length was ``begin``."""
        with self._changed:
            has_grown = os.fstat(self._file.fileno()).st_size > begin
            self._at_work -= 1
            if self._at_work == 0:
                os.dup2(self._saved, _STDERR)
                os.close(self._saved)
                self._file.close()
            self._changed.notify_all()
            return has_grown

    def alone(self, decode: Callable[[], Result]) -> tuple[Result, list[str]]:
        """Call a decoder while no other one is at work."""
        with self._entrance:
            with self._changed:
                self._changed.wait_for(lambda: self._at_work == 0)
            begin = self._begin()
            try:
                result = decode()
                self._file.seek(0)
                return result, self._file.read(_LONGEST).decode(errors="replace").splitlines()
            finally:
                self.leave(begin)

    def _redirect(self) -> None:
        file = tempfile.TemporaryFile()  # noqa: SIM115 - open until the last thread leaves
        try:
            saved = os.dup(_STDERR)
            os.dup2(file.fileno(), _STDERR)
        except OSError:
            file.close()
            raise
        self._file, self._saved = file, saved


_redirected = _Redirected()
