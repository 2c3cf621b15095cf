"""``deepmatching demo`` as a user runs it."""

from pathlib import Path

import cv2
import pytest

from deepmatching.io.flow import read_flow
from deepmatching.matches import Matches
from helpers.processes import run


@pytest.mark.slow
def test_demo_writes_its_files(tmp_path: Path) -> None:
    result = run("demo", "--out", tmp_path / "demo", "--device", "cpu", "--quiet")
    assert (result.returncode, result.stderr) == (0, "")
    assert len(Matches.load(tmp_path / "demo" / "matches.txt")) > 3000
    for name in ("matches.png", "displacement.png", "scores.png", "flow.png"):
        assert cv2.imread(str(tmp_path / "demo" / name)) is not None
    assert read_flow(tmp_path / "demo" / "flow.flo").shape[2] == 2
