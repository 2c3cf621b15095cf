"""What the decoders of images print by themselves.

libjpeg prints its warnings to the standard error of the process, past Python, and OpenCV cannot silence it. A command
calls :func:`catch_messages` once, and the warnings can then be reported with the name of the file. Without this call,
the library leaves the standard error of the process alone.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
import threading
from collections.abc import Iterator

_STDERR = 2
_LONGEST = 10_000
_are_caught = False
_lock = threading.Lock()


def catch_messages(caught: bool = True) -> None:
    """Catch from now on what is printed in a block of :func:`decoder_messages`, or let it pass again.

    Python must not print to this file descriptor itself: other threads would then be caught too.
    """
    global _are_caught
    _are_caught = caught


@contextlib.contextmanager
def decoder_messages() -> Iterator[list[str]]:
    """The list gets, at the end of the block, the lines that decoders printed in it; none unless they are caught."""
    messages: list[str] = []
    with contextlib.ExitStack() as stack:
        if _are_caught:
            with contextlib.suppress(OSError):  # closed, or no room for a temporary file: let them pass
                stack.enter_context(_caught(messages))
        yield messages


@contextlib.contextmanager
def _caught(messages: list[str]) -> Iterator[None]:
    with _lock, tempfile.TemporaryFile() as file:
        saved = os.dup(_STDERR)
        try:
            os.dup2(file.fileno(), _STDERR)
            try:
                yield
            finally:
                os.dup2(saved, _STDERR)
        finally:
            os.close(saved)
        file.seek(0)
        messages += file.read(_LONGEST).decode(errors="replace").splitlines()
