"""``deepmatching network`` as a user runs it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import cv2
import pytest

from helpers.processes import run


@pytest.mark.slow
def test_network_writes_its_picture(pictures: tuple[Path, Path], tmp_path: Path) -> None:
    result = run("network", *pictures, "-o", tmp_path / "u.png", "--radius", "16")
    assert result.returncode == 0 and "wrote" in result.stderr
    assert cv2.imread(str(tmp_path / "u.png")) is not None


@pytest.mark.parametrize(
    ("arguments", "words"),
    [("-o b.png", "would be overwritten"), ("-o u.txt", "u.txt"), ("-o u.png --levels 30", "levels=30")],
)
def test_bad_input_is_refused(
    pictures: tuple[Path, Path], is_refused: Callable[[str, str], None], arguments: str, words: str
) -> None:
    is_refused(f"network a.png b.png {arguments}", words)
