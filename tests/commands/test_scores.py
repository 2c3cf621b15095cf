"""``deepmatching scores`` as a user runs it."""

from collections.abc import Callable
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


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ("--at 4,4 -o b.png", "would be overwritten"),
        ("--at here -o s.png", "--at"),
        ("--at 4,4 --at 4 -o s.png", "--at needs two numbers such as 320,240, not '4'"),
        ("--at 4000,4 -o s.png", "not in the first image"),
    ],
)
def test_bad_input_is_refused(
    pictures: tuple[Path, Path], is_refused: Callable[[str, str], None], arguments: str, words: str
) -> None:
    is_refused(f"scores a.png b.png {arguments}", words)
