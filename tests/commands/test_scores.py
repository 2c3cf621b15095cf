"""``deepmatching scores`` as a user runs it."""

from pathlib import Path

import cv2
import pytest

from helpers.processes import run


@pytest.mark.slow
def test_scores_writes_its_picture(pictures: tuple[Path, Path], tmp_path: Path) -> None:
    assert run("scores", *pictures, "--at", "40,30", "-o", tmp_path / "s.png", "--radius", "16").returncode == 0
    one = cv2.imread(str(tmp_path / "s.png"))
    several = ("--at", "40,30", "--at", "20,20", "--at", "9,50")
    assert run("scores", *pictures, *several, "-o", tmp_path / "s.png", "--radius", "16").returncode == 0
    three = cv2.imread(str(tmp_path / "s.png"))
    assert one is not None and three is not None and three.shape[0] > one.shape[0]
