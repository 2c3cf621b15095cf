"""A progress bar on standard error; without a terminal, a line from time to time."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING, Protocol

from deepmatching.commands.common import is_quiet, say

#: Seconds between lines if there is no terminal for a bar.
LINES_EVERY = 30.0

#: Seconds after which work without countable items shows that it goes on.
PATIENCE = 3.0

if TYPE_CHECKING:
    from rich.console import Console


class Advance(Protocol):
    """Counts one more item as done and shows ``text`` behind the bar."""

    def __call__(self, text: str = "") -> None: ...


@contextmanager
def progress_bar(title: str, total: int, done: int = 0) -> Iterator[Advance]:
    """Show how many of ``total`` items are done; the block gets the function that counts them."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    console = Console(stderr=True)
    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        TextColumn("{task.fields[text]}", markup=False),
    )
    is_shown = console.is_terminal and not is_quiet()
    progress = Progress(*columns, console=console, transient=True, disable=not is_shown)
    with progress if is_shown else nullcontext():  # else older versions of rich print a newline
        task = progress.add_task(title, total=total, completed=done, text="")
        start = last_line = time.monotonic()
        before = done

        def advance(text: str = "") -> None:
            nonlocal done, last_line
            done += 1
            progress.update(task, completed=done, text=text)
            if not console.is_terminal and done < total and time.monotonic() - last_line > LINES_EVERY:
                last_line = time.monotonic()
                left = duration((total - done) * (last_line - start) / max(1, done - before))
                say(", ".join(filter(None, (f"{title}: {done} of {total}", text, f"{left} left"))))

        yield advance


@contextmanager
def working(title: str, console: Console | None = None) -> Iterator[threading.Timer]:
    """Show a spinner and the time while the block runs, if that takes more than :data:`PATIENCE` seconds.

    Only on a terminal. The block gets the timer that starts the spinner.
    """
    from rich.console import Console
    from rich.markup import escape
    from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    shown = console or Console(stderr=True)
    columns = (SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn())
    disabled = is_quiet() or not shown.is_terminal
    progress = Progress(*columns, console=shown, transient=True, disable=disabled, refresh_per_second=4)
    progress.add_task(escape(title), total=None)
    timer = threading.Timer(PATIENCE, progress.start)
    timer.daemon = True
    timer.start()
    try:
        yield timer
    finally:
        timer.cancel()
        timer.join()  # or it might start the spinner after the end
        if not disabled:  # older versions of rich end even a disabled spinner with a newline
            progress.stop()


def duration(seconds: float) -> str:
    """'2 h 05 min', '3 min 20 s' or '12 s'."""
    whole = round(seconds)
    if whole >= 3600:
        return f"{whole // 3600} h {whole % 3600 // 60:02d} min"
    return f"{whole // 60} min {whole % 60:02d} s" if whole >= 60 else f"{whole} s"
