from __future__ import annotations

import io
from typing import Any

import pytest
import rich.console
from rich.console import Console

from deepmatching.commands import progress
from deepmatching.commands.common import set_quiet
from deepmatching.commands.progress import progress_bar, working


def console(is_terminal: bool) -> Console:
    return Console(file=io.StringIO(), force_terminal=is_terminal, width=80)


def shown_by(where: Console) -> str:
    with working("matching [1]", where) as timer:
        timer.join()  # the patience has ended
    assert isinstance(where.file, io.StringIO)
    return where.file.getvalue()


def test_long_work_shows_a_spinner_with_the_time_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "PATIENCE", 0.0)
    text = shown_by(console(is_terminal=True))
    assert "matching [1]" in text and "0:00:0" in text
    assert shown_by(console(is_terminal=False)).strip() == ""
    set_quiet(True)
    try:
        assert shown_by(console(is_terminal=True)) == ""
    finally:
        set_quiet(False)


def test_short_work_shows_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "PATIENCE", 3600.0)
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
