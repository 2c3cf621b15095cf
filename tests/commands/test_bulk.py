"""The command ``deepmatching bulk``."""

import os
import socket
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from deepmatching.bulk_matching import RunFolder
from helpers.processes import run
from helpers.synthetic_pictures import draw_photo


@pytest.fixture
def photos(pair: tuple[np.ndarray, np.ndarray], tmp_path: Path) -> Path:
    folder = tmp_path / "photos"
    folder.mkdir()
    for name, image in zip(("a.png", "b.png", "c.png"), (*pair, pair[0]), strict=True):
        Image.fromarray(image).save(folder / name)
    return folder


COMMON = ("--model", "hog", "--radius", 16, "--device", "cpu")


def test_a_folder_is_matched_and_the_same_command_has_nothing_left_to_do(
    photos: Path, tmp_path: Path, command: Callable[..., str]
) -> None:
    arguments = ("bulk", "--exhaustive", photos, "--out", tmp_path / "run", *COMMON)
    printed = command(*arguments)
    assert "3 instead of 6" in printed
    assert len(RunFolder(tmp_path / "run")) == 3
    again = command(*arguments, "--resume")
    assert "instead of" not in again and "pairs" in again
    assert command(*arguments, "--quiet") == ""


def test_a_file_of_pairs_with_a_missing_image_ends_well_and_names_the_failure(
    photos: Path, tmp_path: Path, command: Callable[..., str]
) -> None:
    (tmp_path / "pairs.txt").write_text("a.png b.png\na.png lost.png\n")
    printed = command("bulk", tmp_path / "pairs.txt", "--images", photos, "--out", tmp_path / "run", *COMMON)
    assert "1 failed" in printed and "failed: a.png and lost.png: There is no image" in printed
    assert (tmp_path / "run" / "failures.txt").read_text().startswith("a.png\tlost.png\tThere is no image")
    Image.open(photos / "b.png").save(photos / "lost.png")
    command("bulk", tmp_path / "pairs.txt", "--images", photos, "--out", tmp_path / "run", *COMMON)
    assert not (tmp_path / "run" / "failures.txt").exists()


@pytest.mark.skipif(sys.platform != "linux", reason="other systems refuse such names")
def test_names_that_are_not_text_can_fail_too(photos: Path, tmp_path: Path, command: Callable[..., str]) -> None:
    for name in (b"\xff.png", b"new\nline.png"):
        Path(os.fsdecode(os.fsencode(photos) + b"/" + name)).write_text("no picture")
    assert "7 failed" in command("bulk", photos, "--exhaustive", "--out", tmp_path / "run", *COMMON)
    lines = (tmp_path / "run" / "failures.txt").read_bytes().splitlines()
    assert len(lines) == 7 and any(b"\xff.png\t" in line for line in lines)
    assert any(b"new\\nline.png\t" in line for line in lines)


def test_unrelated_photographs_are_not_verified_and_the_summary_says_so(
    tmp_path: Path, command: Callable[..., str]
) -> None:
    folder = tmp_path / "places"
    folder.mkdir()
    for number in range(3):
        Image.fromarray(draw_photo(number, 160, 200)).save(folder / f"{number}.png")
    arguments = ("bulk", folder, "--exhaustive", "--out", tmp_path / "run", "--radius", 80, "--device", "cpu")
    printed = command(*arguments, "--graph", tmp_path / "graph.png")
    assert "3 of 3 pairs" in printed and "warning: most pairs are probably wrong" in printed and "--search" in printed
    assert "0 of 3 pairs have at least 15 matches that fit one geometry" in printed


def test_the_status_of_a_run_is_printed(photos: Path, tmp_path: Path, command: Callable[..., str]) -> None:
    command("bulk", "--exhaustive", photos, "--out", tmp_path / "run", *COMMON)
    printed = run("bulk", "--status", tmp_path / "run")
    assert printed.returncode == 0 and "3 of 3 finished (0 failed)" in printed.stdout and "pairs/s" in printed.stdout
    assert f"{socket.gethostname()}:" in printed.stdout
