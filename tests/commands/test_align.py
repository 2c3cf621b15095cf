"""``deepmatching align``, called as a function."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest

from deepmatching.alignment import AlignedFolder
from deepmatching.commands.align import align
from deepmatching.errors import DeepMatchingError
from deepmatching.matcher import DeepMatcher
from helpers.fake_datasets import moved, texture, write_image


@pytest.fixture
def pictures(tmp_path: Path) -> list[Path]:
    paths = [tmp_path / f"{number}.png" for number in range(3)]
    for number, path in enumerate(paths):
        write_image(path, moved(texture(), number))
    return paths


def run(pictures: list[Path], out: Path, **options: Any) -> None:
    align(pictures, **{"out": out, "model": "hog", "radius": "16", "device": "cpu", **options})


def read(path: Path) -> np.ndarray:
    picture = cv2.imread(str(path), cv2.IMREAD_UNCHANGED)
    assert picture is not None
    return picture


def test_a_burst_is_aligned_and_stacked(
    pictures: list[Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run(pictures, tmp_path / "out", stack="median")
    names = {path.name for path in (tmp_path / "out").iterdir()} - {".deepmatching.lock"}
    assert {"0.png", "1.png", "2.png", "median.png", "align.json"} <= names
    first = read(pictures[0])
    for name in ("1.png", "2.png", "median.png"):
        found = read(tmp_path / "out" / name)
        assert found.shape == (*first.shape[:2], 3 if name == "median.png" else 4)
        assert np.abs(found[20:-20, 20:-20, :3].astype(int) - first[20:-20, 20:-20]).mean() < 8
    said = capsys.readouterr().err
    assert "aligned 3 of 3 pictures" in said and "median.png" in said


def test_an_interrupted_run_continues_where_it_was(
    pictures: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    whole, flow, calls = tmp_path / "whole", DeepMatcher.flow, list[int]()
    run(pictures, whole)

    def interrupted(*arguments: Any, **options: Any) -> Any:
        calls.append(1)
        if len(calls) == 2:
            raise KeyboardInterrupt
        return flow(*arguments, **options)

    monkeypatch.setattr(DeepMatcher, "flow", interrupted)
    with pytest.raises(KeyboardInterrupt):
        run(pictures, tmp_path / "out")
    assert sorted(path.name for path in (tmp_path / "out").glob("*.png")) == ["0.png", "1.png"]
    assert "2 of 3 pictures are finished" in capsys.readouterr().err
    run(pictures, tmp_path / "out")
    assert len(calls) == 3 and "aligned 1 of 3 pictures" in capsys.readouterr().err
    for path in pictures:
        assert (tmp_path / "out" / path.name).read_bytes() == (whole / path.name).read_bytes()
    run(pictures, tmp_path / "out")
    assert len(calls) == 3  # all are finished
    with pytest.raises(DeepMatchingError, match="radius"):
        run(pictures, tmp_path / "out", radius="24")


def test_an_error_names_the_picture_and_what_is_done(pictures: list[Path], tmp_path: Path) -> None:
    write_image(pictures[1], texture()[:5, :5])
    words = r"1\.png' cannot.* 5x5 .* 1 of 3 .*: repair .*, then run the same command to continue\.$"
    with pytest.raises(DeepMatchingError, match=words):
        run(pictures, tmp_path / "out")
    run([pictures[0], pictures[2]], tmp_path / "out")
    assert (tmp_path / "out" / "2.png").exists()


def test_a_full_disk_is_not_the_fault_of_a_picture(
    pictures: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(self: AlignedFolder, name: str, result: np.ndarray) -> None:
        raise DeepMatchingError(f"Cannot write '{self.file(name)}': no space is left.")

    monkeypatch.setattr(AlignedFolder, "write", full)
    words = r"^Cannot write '.*0\.png': no space is left\. 0 of 3 .*: fix that, then run the same command"
    with pytest.raises(DeepMatchingError, match=words):
        run(pictures, tmp_path / "out")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ("align 0.png --out out", "at least two"),
        ("align 0.png 1.png --out .", "is an input"),
        ("align 0.png missing.png --out out", "no image 'missing.png'"),
        ("align 0.png sub/0.png --out out", "same file"),
        ("align 0.png 1.png --out 2.png", "2.png"),
        ("align 0.png 1.png --out out --stack mean", "mean"),
    ],
)
def test_mistakes_are_refused(
    arguments: str, words: str, pictures: list[Path], tmp_path: Path, is_refused: Callable[[str, str], None]
) -> None:
    write_image(tmp_path / "sub" / "0.png", texture())
    is_refused(arguments, words)
