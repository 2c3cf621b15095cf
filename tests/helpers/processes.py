"""The command in a process of its own."""

from __future__ import annotations

import contextlib
import subprocess
import sys
from collections.abc import Iterator

#: A shell that starts the tests in the background makes them, and what they start, ignore the interrupt key.
_HEEDING_INTERRUPTS = (
    "import signal; signal.signal(signal.SIGINT, signal.default_int_handler); from deepmatching.cli import main; main()"
)


@contextlib.contextmanager
def started(*arguments: object) -> Iterator[subprocess.Popen[str]]:
    """``deepmatching`` with these arguments, its standard error to be read; killed if it is still there in the end."""
    command = [sys.executable, "-c", _HEEDING_INTERRUPTS, *map(str, arguments)]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    try:
        yield process
    finally:
        process.kill()
        process.communicate()
