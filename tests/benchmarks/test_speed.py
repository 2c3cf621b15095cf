from __future__ import annotations

import json
from pathlib import Path

import cv2
import pytest

from helpers.benchmarks import output_of


@pytest.mark.slow
def test_a_small_case_of_each_kind_is_timed_recorded_and_plotted(tmp_path: Path) -> None:
    files = ["--json", tmp_path / "speed.json", "--plot", tmp_path / "cost.png"]
    printed = output_of("speed", "--quick", "--device", "cpu", *files)
    assert printed.count("64x48") == 3
    content = json.loads((tmp_path / "speed.json").read_text())
    assert content["command"] > 0
    for name in ("reference", "by_radius", "by_size"):
        (timing,) = content[name]
        assert timing["time"] > 0 and timing["floor"] > 0
    assert cv2.imread(str(tmp_path / "cost.png")) is not None
