from __future__ import annotations

import json
import sys
from functools import cache
from pathlib import Path

import cv2
import pytest

from helpers.benchmarks import imported


@pytest.mark.slow
def test_a_small_case_of_each_kind_is_timed_recorded_and_plotted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    module = imported("speed")
    monkeypatch.setattr(module, "measure", cache(module.measure))  # the small cases are equal, and one takes seconds
    files = ["--json", str(tmp_path / "speed.json"), "--plot", str(tmp_path / "cost.png")]
    monkeypatch.setattr(sys, "argv", ["speed.py", "--quick", "--device", "cpu", "--original", "cat", *files])
    module.main()
    assert capsys.readouterr().out.count("64x48") == 4
    content = json.loads((tmp_path / "speed.json").read_text())
    programs = content["whole_programs"]
    assert len(programs) == 3 and programs["cat"]["time"] < programs["deepmatching match --model hog"]["time"]
    for name in ("reference", "by_radius", "by_size"):
        (timing,) = content[name]
        assert timing["time"] > 0 and timing["floor"] > 0
    assert cv2.imread(str(tmp_path / "cost.png")) is not None
