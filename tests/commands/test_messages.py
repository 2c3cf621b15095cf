from __future__ import annotations

import io
import logging
import re
from typing import Any

import numpy as np
import pytest
import rich.console
from rich.console import Console

from deepmatching.commands import messages
from deepmatching.commands.messages import complain, flow_summary, progress_bar, say, set_quiet, working
from deepmatching.flow.result import FlowResult


def console(is_terminal: bool) -> Console:
    return Console(file=io.StringIO(), force_terminal=is_terminal, width=80)


def shown_by(where: Console) -> str:
    with working("matching [1]", where) as timer:
        timer.join()  # the patience has ended
    assert isinstance(where.file, io.StringIO)
    return where.file.getvalue()


def test_long_work_shows_a_spinner_with_the_time_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(messages, "PATIENCE", 0.0)
    text = shown_by(console(is_terminal=True))
    assert "matching [1]" in text and "0:00:0" in text
    assert shown_by(console(is_terminal=False)).strip() == ""
    set_quiet(True)
    try:
        assert shown_by(console(is_terminal=True)) == ""
    finally:
        set_quiet(False)


def test_short_work_shows_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(messages, "PATIENCE", 3600.0)
    where = console(is_terminal=True)
    with working("matching", where):
        pass
    assert isinstance(where.file, io.StringIO) and where.file.getvalue() == ""


@pytest.mark.parametrize("name", ["sintel [final]", "[/red]", ":tree:", "{x}"])
def test_titles_and_texts_are_shown_as_they_are(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    terminal, original = io.StringIO(), rich.console.Console

    def console(**options: Any) -> rich.console.Console:
        return original(file=terminal, force_terminal=True, width=200, color_system=None)

    monkeypatch.setattr(rich.console, "Console", console)
    with progress_bar(f"title {name}", 2) as advance:
        advance(f"text {name}")
    assert f"title {name}" in terminal.getvalue() and f"text {name}" in terminal.getvalue()


def test_a_quiet_command_prints_errors_only(capsys: pytest.CaptureFixture[str]) -> None:
    set_quiet(True)
    try:
        say("a summary")
        complain("an error.")
        logging.getLogger("deepmatching").warning("a warning")
        assert capsys.readouterr().err == "deepmatching: an error.\n"
    finally:
        set_quiet(False)
    say("a summary")
    assert capsys.readouterr().err == "a summary\n"


def test_the_stages_of_a_flow_add_up_to_its_total() -> None:
    result = FlowResult(np.zeros((4, 5, 2)), np.ones((4, 5)), 7, {"matching": 1.25, "edges": 0.5, "refinement": 0.25})
    summary = flow_summary(result, 3.5)
    total, *stages = map(float, re.findall(r"([0-9.]+) s", summary))
    assert total == 3.5 == sum(stages)
    assert "reading 1.50 s, matching 1.25 s" in summary
