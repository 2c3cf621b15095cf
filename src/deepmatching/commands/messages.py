"""What commands print to standard error: lines, progress, and summaries of results."""

from __future__ import annotations

import logging
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING

from deepmatching.errors import counted
from deepmatching.io.addresses import shown
from deepmatching.progress import listening
from deepmatching.settings import MIN_AGREEMENT

if TYPE_CHECKING:
    from rich.progress import Progress, ProgressColumn
    from torch import Tensor

    from deepmatching.data.datasets import FilePairs
    from deepmatching.flow.result import FlowResult
    from deepmatching.matcher import DeepMatcher
    from deepmatching.matches import Matches

LINES_EVERY = 30.0  #: Seconds between lines of progress if there is no terminal for a bar.
WORK_LINES_EVERY = 10.0  #: The same for work without countable items.
PATIENCE = 3.0  #: Seconds after which work without countable items shows that it goes on.
GRACE = 1.0  #: Seconds after which the interrupt key ends a computation that does not heed it.
INTERRUPTED = 130  #: The exit code of a command that the interrupt key has ended.

#: Characters of names of files that would move the cursor or begin a line, and what is printed for them.
ESCAPES = {number: repr(chr(number))[1:-1] for number in (*range(32), *range(127, 160), 0x2028, 0x2029)}

_is_quiet = _is_verbose = False


class _Printer(logging.Handler):
    """Print what the library logs. Other programs get no such handler from us."""

    def emit(self, record: logging.LogRecord) -> None:
        say(record.getMessage())


_PRINTER = _Printer()


def set_verbosity(quiet: bool = False, verbose: bool = False) -> None:
    """Choose what this process prints; every command begins with it."""
    global _is_quiet, _is_verbose
    _is_quiet, _is_verbose = quiet, verbose and not quiet
    log = logging.getLogger("deepmatching")
    log.setLevel(logging.ERROR if quiet else logging.INFO)
    log.addHandler(_PRINTER)


def say(text: str) -> None:
    """Print one line to standard error, unless the command is quiet."""
    if not _is_quiet:
        print(text.translate(ESCAPES), file=sys.stderr)


def say_if_verbose(text: str) -> None:
    """Print one line to standard error, if the command is verbose."""
    if _is_verbose:
        say(text)


def complain(text: str) -> None:
    """Print an error, one line, to standard error."""
    print(f"deepmatching: {text.translate(ESCAPES)}", file=sys.stderr)


def say_written(*paths: Path | None) -> None:
    """Print the name of each file that was written."""
    for path in paths:
        if path is not None:
            say(f"wrote {shown(path)}")


def say_incomplete(dataset: FilePairs) -> None:
    """Print how many pairs of a data set are left out because they lack files."""
    if dataset.incomplete:
        say(f"note: left out {counted(dataset.incomplete, 'pair')} of {dataset.name} for lack of files")


def unfinished(done: int, total: int, kind: str, folder: Path, repair: str = "") -> str:
    """Return how much of a run in a folder is finished, and how to continue it, after a ``repair`` if one is given."""
    first = f"{repair}, then " if repair else ""
    return f"{done} of {total} {kind} are finished in {shown(folder)}: {first}run the same command to continue"


def print_rows(rows: Iterable[tuple[str, str]], *, to_output: bool = False) -> None:
    """Print a table of names and values to standard error, unless the command is quiet; or to standard output."""
    from rich.console import Console
    from rich.table import Table

    table = Table("", "value", show_header=False)
    for row in rows:
        table.add_row(*row)
    Console(stderr=not to_output, quiet=_is_quiet and not to_output).print(table)


def first_names(names: Sequence[str], count: int) -> str:
    """Return the first names of a list as text, with "…" if there are more."""
    return ", ".join(names[:count]) + (", …" if len(names) > count else "")


def progress_display(*columns: ProgressColumn | str, transient: bool = True) -> Progress:
    """Return a progress display on standard error, disabled unless that is a terminal and the command is not quiet."""
    from rich.console import Console
    from rich.progress import Progress, TextColumn

    console = Console(stderr=True, quiet=_is_quiet)
    shown = (TextColumn(column, markup=False) if isinstance(column, str) else column for column in columns)
    is_shown = console.is_terminal and not _is_quiet
    return Progress(*shown, console=console, transient=transient, disable=not is_shown, refresh_per_second=4)


@contextmanager
def progress_bar(title: str, total: int, done: int = 0) -> Iterator[Callable[..., None]]:
    """Show how many of ``total`` items are done.

    The block gets a function ``advance(text="", count=1)`` that counts more as done and shows text behind the bar.
    """
    from rich.progress import BarColumn, MofNCompleteColumn, TimeRemainingColumn

    columns = BarColumn(), MofNCompleteColumn(), TimeRemainingColumn()
    progress = progress_display("{task.description}", *columns, "{task.fields[text]}")
    with nullcontext() if progress.disable else progress:  # else older versions of rich print a newline
        task = progress.add_task(title, total=total, completed=done, text="")
        start = last_line = time.monotonic()
        before = done

        def advance(text: str = "", count: int = 1) -> None:
            nonlocal done, last_line
            done += count
            progress.update(task, completed=done, text=text)
            if not progress.console.is_terminal and done < total and time.monotonic() - last_line > LINES_EVERY:
                last_line = time.monotonic()
                left = duration((total - done) * (last_line - start) / max(1, done - before))
                say(", ".join(filter(None, (f"{title}: {done} of {total}", text, f"{left} left"))))

        yield advance


@contextmanager
def working(title: str) -> Iterator[threading.Timer]:
    """Show how far the block is, and the time, if it takes more than :data:`PATIENCE` seconds.

    That is a bar on a terminal, else a line every :data:`WORK_LINES_EVERY` seconds. The block gets the timer that
    starts the bar.
    """
    from rich.progress import BarColumn, SpinnerColumn, TimeElapsedColumn

    progress = progress_display(SpinnerColumn(), "{task.description}", BarColumn(), TimeElapsedColumn())
    task, text, start, is_done = progress.add_task(title, total=None), title, time.monotonic(), threading.Event()

    def show(thing: str, number: int, total: int) -> None:
        nonlocal text
        text = f"{title}: {thing} {number} of {total}"
        progress.update(task, description=text, completed=number - 1, total=total)

    def print_lines() -> None:
        while not is_done.wait(WORK_LINES_EVERY):
            say(f"{text}, {duration(time.monotonic() - start)}")

    timer, thread = threading.Timer(PATIENCE, progress.start), threading.Thread(target=print_lines, daemon=True)
    timer.daemon = True
    timer.start()
    if progress.disable and not _is_quiet:
        thread.start()
    try:
        with listening(show):
            yield timer
    finally:
        is_done.set()
        timer.cancel()
        timer.join()  # or it might start the bar after the end
        if thread.is_alive():
            thread.join()
        if not progress.disable:  # older versions of rich end even a disabled bar with a newline
            progress.stop()


@contextmanager
def computing(title: str) -> Iterator[None]:
    """Show that the block is :func:`working`, and let the interrupt key end the process soon.

    Python heeds a signal only between its own instructions, and one call of a kernel can take half a minute. The block
    must not write files, as they would stay half written.
    """
    from rich.console import Console

    reading, writing = socket.socketpair()  # on Windows, a pipe cannot be told not to block before Python 3.12
    writing.setblocking(False)
    is_done = threading.Event()

    def end_if_interrupted() -> None:
        if reading.recv(1) == bytes([signal.SIGINT]) and not is_done.wait(GRACE):
            Console(stderr=True).show_cursor()
            complain("interrupted")
            os._exit(INTERRUPTED)

    thread = threading.Thread(target=end_if_interrupted, daemon=True)
    thread.start()
    before = signal.set_wakeup_fd(writing.fileno())
    try:
        with working(title):
            yield
    finally:
        signal.set_wakeup_fd(before)
        is_done.set()
        writing.close()
        thread.join()
        reading.close()


def duration(seconds: float) -> str:
    """Return a time such as '2 h 05 min', '3 min 20 s' or '12 s'."""
    whole = round(seconds)
    if whole >= 3600:
        return f"{whole // 3600} h {whole % 3600 // 60:02d} min"
    return f"{whole // 60} min {whole % 60:02d} s" if whole >= 60 else f"{whole} s"


def say_work(matcher: DeepMatcher, image0: Tensor, image1: Tensor) -> None:
    """Print the reference points, levels and memory of matching two images, if the command is verbose."""
    from deepmatching.io.images import size_of
    from deepmatching.network.memory import amount

    if not _is_verbose:
        return
    sizes = size_of(image0), size_of(image1)
    geometry, plan = matcher.geometry(*sizes), matcher.plan(*sizes)
    rows, columns = geometry.grid(0)
    tiling = f", in {plan.tiling.strips} strips" if plan.tiling.strips > 1 else ""
    say(
        f"{counted(rows * columns, 'reference point')}, {counted(geometry.L, 'level')} above, "
        f"about {amount(plan.needed)} of memory on {matcher.device}{tiling}"
    )


def match_summary(matches: Matches, elapsed: float, matcher: DeepMatcher) -> str:
    """Return one line: number of matches, time and displacements."""
    found = f"{counted(len(matches), 'match')} of {matches.reference_points} reference points"
    text = f"{found}, {elapsed:.2f} s on {matcher.device}"
    if len(matches):
        length = matches.displacements.norm(dim=1)
        text += f"; displacement {length.median():.1f} px (median), {length.max():.1f} px (largest)"
    if matches.cycle_error is not None and len(matches):
        text += f"; cycle error {matches.cycle_error.median():.2f} px (median)"
    return text


def search_summary(matches: Matches) -> str:
    """Return one line: the rotation and zoom of each transformation, and its number of matches."""
    from deepmatching.geometry.homographies import rotation_and_zoom

    assert matches.transformation is not None
    parts = []
    for number in matches.transformation.unique().tolist():
        derivatives = matches.derivatives[matches.transformation == number]
        rotation, zoom = rotation_and_zoom(derivatives.cpu().double().mean(dim=0).numpy())
        parts.append(f"{counted(len(derivatives), 'match')} turned by {rotation:.0f} degrees, zoomed by {zoom:.2f}")
    return "; ".join(parts) or "no transformation gives matches"


def flow_summary(result: FlowResult, elapsed: float) -> str:
    """Return one line: number of matches, time of each stage, which add up to ``elapsed``, and displacements."""
    import numpy as np

    reading = elapsed - sum(result.seconds.values())  # all that is not a stage
    stages = ", ".join(f"{name} {seconds:.2f} s" for name, seconds in {"reading": reading, **result.seconds}.items())
    length = np.hypot(result.flow[..., 0], result.flow[..., 1])
    return (
        f"{counted(result.matches, 'match')} used, {elapsed:.2f} s ({stages}); "
        f"motion {np.median(length):.1f} px (median), {length.max():.1f} px (largest)"
    )


def warn_if_wrong(matches: Matches, matcher: DeepMatcher) -> None:
    """Print a warning if the matches are probably wrong, or a note if masks leave nothing to be matched."""
    from deepmatching.search import doubt, has_failed

    if matches.reference_points == 0:
        say("note: no point may be matched: check the masks")
    if reason := doubt(matches):
        _warn(reason, matcher, has_failed(matcher.settings, matches.expected_fraction))


def say_if_searched(matcher: DeepMatcher, is_searched: bool) -> None:
    """Say that matches come from a search that nobody asked for; see ``Settings.auto``."""
    if is_searched and not matcher.settings.searches:
        few = f"few matches were right within {matcher.network.radius} px"
        say(f"{few}, so this is a search at a reduced size; --no-auto forbids it")


def say_of_flow(result: FlowResult, matcher: DeepMatcher) -> None:
    """Say that the flow is that of a search, if nobody asked for it; warn if it is probably wrong.

    It is if few matches agree with their neighbours.
    """
    from deepmatching.search import has_failed

    say_if_searched(matcher.for_flow(), result.is_searched)
    if (agreement := result.agreement) < MIN_AGREEMENT:
        reason = f"only {agreement:.0%} of the reference points have a match that agrees with its neighbours"
        is_tried = result.is_searched or has_failed(matcher.settings, result.expected_fraction)
        _warn(reason, matcher.for_flow(), is_tried)


def _warn(reason: str, matcher: DeepMatcher, is_tried: bool = False) -> None:
    """Print a warning, with advice unless a wide search was tried already."""
    larger = "" if is_tried or matcher.network.radius is None else "try a larger --radius; "
    is_searched = is_tried or matcher.settings.searches
    turned = "unrelated" if is_searched else "--search finds large rotations and changes of scale; unrelated"
    say(f"warning: this is probably wrong, since {reason}: {larger}{turned} pictures cannot be matched")
