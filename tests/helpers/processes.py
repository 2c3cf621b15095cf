"""The command in a process of its own."""

import contextlib
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any


def run(*arguments: object, cwd: Path | None = None, stdout: Any = subprocess.PIPE) -> subprocess.CompletedProcess[str]:
    """Run ``deepmatching`` with these arguments to its end."""
    command = [sys.executable, "-m", "deepmatching", *map(str, arguments)]
    return subprocess.run(command, stdout=stdout, stderr=subprocess.PIPE, text=True, cwd=cwd, check=False)


#: Lines that one run prints and another does not: that kernels are compiled, and how far slow work is.
_BY_CHANCE = re.compile(r"compiling the kernels for this machine|, (\d+ h \d\d min|\d+ min \d\d s|\d+ s)( left)?$")


def errors_of(result: subprocess.CompletedProcess[str]) -> list[str]:
    """Return the lines on standard error that do not depend on what ran before, or on how slow the machine is."""
    return [line for line in result.stderr.splitlines() if not _BY_CHANCE.search(line)]


#: A shell that starts the tests in the background makes them, and the processes they start, ignore the interrupt key.
_HEEDING_INTERRUPTS = (
    "import signal; signal.signal(signal.SIGINT, signal.default_int_handler); from deepmatching.cli import main; main()"
)


@contextlib.contextmanager
def started(*arguments: object) -> Iterator[subprocess.Popen[str]]:
    """Run ``deepmatching`` with these arguments; it is killed if it has not ended after the block."""
    command = [sys.executable, "-c", _HEEDING_INTERRUPTS, *map(str, arguments)]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    try:
        yield process
    finally:
        process.kill()
        process.communicate()
