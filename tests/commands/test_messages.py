import io
import logging
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from types import SimpleNamespace

import numpy as np
import pytest
import rich.console

from deepmatching.commands import messages
from deepmatching.commands.messages import complain, flow_summary, progress_bar, say, set_verbosity, working
from deepmatching.flow.result import FlowResult
from deepmatching.progress import tell
from helpers.processes import errors_of


@pytest.fixture(autouse=True)
def _as_loud_as_before() -> Iterator[None]:
    yield
    set_verbosity()


@pytest.fixture
def terminal(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> io.StringIO:
    """Collect what is printed to a terminal, or to a file with the parameter False."""
    printed, original = io.StringIO(), rich.console.Console
    is_terminal = getattr(request, "param", True)
    options = {"file": printed, "force_terminal": is_terminal, "width": 200, "color_system": None}
    monkeypatch.setattr(rich.console, "Console", lambda **_: original(**options))
    return printed


@pytest.mark.parametrize("terminal", [True, False], indirect=True)
@pytest.mark.parametrize("quiet", [False, True])
def test_long_work_shows_a_spinner_with_the_time_on_a_terminal(
    terminal: io.StringIO, quiet: bool, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(messages, "PATIENCE", 0.0)
    set_verbosity(quiet)
    with working("matching [1]") as timer:
        timer.join()  # the patience has ended
    text = terminal.getvalue()
    if request.node.callspec.params["terminal"] and not quiet:
        assert "matching [1]" in text and re.search(r"\b0:\d\d:\d\d\b", text)
    else:
        assert text.strip() == ""


@pytest.mark.parametrize("terminal", [True, False], indirect=True)
def test_long_work_says_how_far_it_is(
    terminal: io.StringIO, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    is_terminal = request.node.callspec.params["terminal"]
    printed, said = threading.Event(), list[str]()
    monkeypatch.setattr(messages, "time", SimpleNamespace(monotonic=lambda: 7.0))  # however long the threads take
    monkeypatch.setattr(messages, "PATIENCE", 0.0)
    monkeypatch.setattr(messages, "WORK_LINES_EVERY", 3600.0 if is_terminal else 0.001)
    monkeypatch.setattr(messages, "say", lambda text: (said.append(text), "strip" in text and printed.set()))
    with working("matching") as timer:
        timer.join()
        tell("strip", 3, 7)
        assert is_terminal or printed.wait(60)
    if is_terminal:
        assert "matching: strip 3 of 7" in terminal.getvalue()
    else:
        assert said[-1].startswith("matching: strip 3 of 7, 0 s")


def test_short_work_shows_nothing(terminal: io.StringIO, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(messages, "PATIENCE", 3600.0)
    with working("matching"):
        pass
    assert terminal.getvalue() == ""


@pytest.mark.parametrize("name", ["sintel [final]", "[/red]", ":tree:", "{x}"])
def test_titles_and_texts_are_shown_as_they_are(terminal: io.StringIO, name: str) -> None:
    with progress_bar(f"title {name}", 2) as advance:
        advance(f"text {name}")
    assert f"title {name}" in terminal.getvalue() and f"text {name}" in terminal.getvalue()


def test_a_quiet_command_prints_errors_only(capsys: pytest.CaptureFixture[str]) -> None:
    set_verbosity(quiet=True, verbose=True)
    say("a summary")
    complain("an error.")
    logging.getLogger("deepmatching").warning("a warning")
    assert capsys.readouterr().err == "deepmatching: an error.\n"
    set_verbosity()
    say("a summary")
    assert capsys.readouterr().err == "a summary\n"


def test_the_command_prints_each_message_of_the_library_once(capsys: pytest.CaptureFixture[str]) -> None:
    set_verbosity()
    set_verbosity()
    logging.getLogger("deepmatching").info("a %s", "remark")
    assert capsys.readouterr().err == "a remark\n"


def test_in_another_program_the_library_prints_nothing() -> None:
    code = "import logging, deepmatching; logging.getLogger('deepmatching').warning('a warning')"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == done.stderr == ""


def test_names_with_line_breaks_stay_on_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    say("a\nb \x1b[31m\u2028é")
    assert capsys.readouterr().err == "a\\nb \\x1b[31m\\u2028é\n"


INTERRUPTED = """
import os, signal, threading, time
import numpy as np
from numba import njit
from deepmatching.commands import messages

del os.set_blocking  # as on Windows before Python 3.12

@njit(nogil=True)
def endless(state):
    state[0] += 1
    while state[0]:
        state[1] = (state[1] + 1) % 1000

def interrupt():
    while not state[0]:
        time.sleep(0.01)
    signal.raise_signal(signal.SIGINT)

endless(np.array([-1, 0]))  # compiles it, and returns
state = np.zeros(2, np.int64)
messages.GRACE = 0.1
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell starts background jobs without it
with messages.computing("matching"):
    threading.Thread(target=interrupt, daemon=True).start()
    endless(state)
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="signals are POSIX")
def test_the_interrupt_key_ends_a_kernel_that_does_not_return() -> None:
    code = [sys.executable, "-c", INTERRUPTED]
    result = subprocess.run(code, capture_output=True, text=True, timeout=600, check=False)
    assert (result.returncode, result.stdout, errors_of(result)) == (130, "", ["deepmatching: interrupted"])


def test_the_stages_of_a_flow_add_up_to_its_total() -> None:
    result = FlowResult(np.zeros((4, 5, 2)), np.ones((4, 5)), 7, {"matching": 1.25, "edges": 0.5, "refinement": 0.25})
    summary = flow_summary(result, 3.5)
    total, *stages = map(float, re.findall(r"([0-9.]+) s", summary))
    assert total == 3.5 == sum(stages)
    assert "reading 1.50 s, matching 1.25 s" in summary
