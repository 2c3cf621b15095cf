from __future__ import annotations

import logging
import os
import re
import sys
from pathlib import Path

import numpy as np
import pytest

from deepmatching.commands.common import (
    check_outputs,
    complain,
    flow_summary,
    is_same,
    parse_memory,
    parse_radius,
    parse_size,
    refuse,
    say,
    set_quiet,
)
from deepmatching.errors import DeepMatchingError
from deepmatching.flow.result import FlowResult


@pytest.mark.parametrize(
    ("text", "size"), [("500MB", 5 * 10**8), ("2 GB", 2 * 10**9), ("1.5g", 15 * 10**8), ("7k", 7000), ("123", 123)]
)
def test_a_size_of_memory_is_read_with_or_without_a_unit(text: str, size: int) -> None:
    assert parse_memory(text) == size


def test_a_radius_is_a_number_or_the_word_for_no_limit() -> None:
    assert (parse_radius("80"), parse_radius("full")) == (80, "full")
    for text in ("0", "-8", "8.5", "Full", ""):
        with pytest.raises(DeepMatchingError, match="--radius must be a positive number of pixels or 'full'"):
            parse_radius(text)


def test_a_size_is_a_width_and_a_height() -> None:
    assert parse_size("1024x436") == (1024, 436)
    for text in ("1024", "1024x", "1024 x 436", "-4x4", "4x4x4"):
        with pytest.raises(DeepMatchingError, match="--size needs a width and a height"):
            parse_size(text)


def test_an_option_that_is_given_is_refused_by_name() -> None:
    refuse({"--a": None, "--b": False}, "has no effect.")
    with pytest.raises(DeepMatchingError, match=r"^--b has no effect\.$"):
        refuse({"--a": None, "--b": 0}, "has no effect.")


def test_outputs_may_not_be_each_other_or_an_input(tmp_path: Path) -> None:
    def anything(path: Path) -> None: ...

    check_outputs([(tmp_path / "a", anything), (None, anything)], [tmp_path / "b", None])
    with pytest.raises(DeepMatchingError, match="same file"):
        check_outputs([(tmp_path / "a", anything), (tmp_path / "." / "a", anything)], [])
    with pytest.raises(DeepMatchingError, match="is an input and would be overwritten"):
        check_outputs([(tmp_path / "a", anything)], [tmp_path / "a"])
    assert list(tmp_path.iterdir()) == []


@pytest.mark.skipif(sys.platform == "win32", reason="makes links")
def test_links_lead_to_the_same_file(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("a")
    (tmp_path / "soft").symlink_to(tmp_path / "a")
    os.link(tmp_path / "a", tmp_path / "hard")
    assert is_same(tmp_path / "soft", tmp_path / "a") and is_same(tmp_path / "hard", tmp_path / "a")
    assert not is_same(tmp_path / "b", tmp_path / "a")


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
