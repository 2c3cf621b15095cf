from __future__ import annotations

import io

import pytest
from rich.console import Console

from deepmatching.commands import progress
from deepmatching.commands.common import set_quiet
from deepmatching.commands.progress import working


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
