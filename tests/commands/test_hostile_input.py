"""Names and numbers that no file and no picture has are reported in one line, in every command."""

import os
import sys
from collections.abc import Callable
from pathlib import Path

import cv2
import numpy as np
import pytest

LONG = "x" * 300
DIGITS = "9" * 400


@pytest.mark.usefixtures("pictures")
@pytest.mark.parametrize("name", [f"{LONG}.png", "loop.png", "loop.png/a.png", "a.png/b.png"])
@pytest.mark.parametrize(
    ("arguments", "suffix"),
    [
        ("match {} b.png", ".png"),
        ("match a.png {}", ".png"),
        ("match a.png b.png --model {}", ".safetensors"),
        ("match a.png b.png -o {}", ".txt"),
        ("match a.png b.png --draw {}", ".png"),
        ("flow {} b.png", ".png"),
        ("flow a.png b.png --edges {}", ".npy"),
        ("flow a.png b.png --matches {} -o x.flo", ".npz"),
        ("flow a.png b.png --matches {} -o x.flo", ".h5"),
        ("flow a.png b.png --matches {} -o x.flo", ".txt"),
        ("flow a.png b.png --structured-forest {} -o x.flo", ".yml"),
        ("flow {} --out flows", ""),
        ("evaluate {}", ".json"),
        ("train {}", ".toml"),
        ("train quickstart data.train={}", ".json"),
        ("train quickstart data.train=x.json out={}", ""),
        ("train quickstart data.train=x.json model.init={}", ".safetensors"),
        ("synthesize {} pairs", ""),
    ],
)
def test_a_name_that_no_file_has_is_reported(
    tmp_path: Path, is_refused: Callable[[str, str], None], arguments: str, suffix: str, name: str
) -> None:
    (tmp_path / "loop.png").symlink_to("other.png")
    (tmp_path / "other.png").symlink_to("loop.png")
    name = name.replace(".png", suffix, 1) if name.startswith(LONG) else name
    is_refused(arguments.format(name), "")


@pytest.mark.usefixtures("pictures")
@pytest.mark.parametrize(
    ("option", "words"),
    [
        (f"--radius {DIGITS}", "1000000"),
        (f"--radius {'9' * 5000}", "radius"),
        ("--radius 1e999", "radius"),
        (f"--levels {DIGITS}", "level"),
        (f"--downscale {DIGITS}", "downscale"),
        (f"--memory {DIGITS}GB", "--memory"),
        (f"--memory {DIGITS}", "9223372036854775807"),
        (f"--memory {'9' * 5000}", "--memory"),
    ],
)
def test_numbers_of_many_digits_are_reported(is_refused: Callable[[str, str], None], option: str, words: str) -> None:
    is_refused(f"match a.png b.png -o x.txt {option}", words)


@pytest.mark.usefixtures("pictures")
@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ("demo --out EMPTY", "empty"),
        ("demo --out=EMPTY", "empty"),
        ("match a.png b.png --memory ٣", "٣"),
        ("match a.png b.png --bit-depth -1 -o m.txt", "bit_depth"),
        ("flow a.png b.png --matches m.txt --bit-depth -1 -o f.flo", "bit_depth"),
        ("synthesize http://pairs --photos .", "http://"),
        ("demo --out s3://bucket/demo", "s3://"),
        ("demo --out new/folder --device toaster", "toaster"),
        ("train quickstart data.train=none.json out=new/run", "none.json"),
        ("synthesize new/pairs --photos . --count 0", "pairs"),
        ("match no\\nsuch.png b.png", "no\\nsuch.png"),
    ],
)
def test_what_makes_no_sense_is_refused_and_leaves_no_folder(
    is_refused: Callable[[str, str], None], arguments: str, words: str
) -> None:
    is_refused(arguments, words)


@pytest.mark.usefixtures("pictures")
@pytest.mark.parametrize(
    "arguments",
    [
        *("match a.png b.png -o notes.txt", "match a.png b.png --draw photo.png", "flow a.png b.png --draw photo.jpg"),
        *("match a.png b.png --geometry homography -o notes.json", "scores a.png b.png --at 4,4 -o photo.png"),
        *("flow a.png b.png -o photo.png", "flow a.png b.png -o notes.flo", "bench --json notes.json"),
        *("flow a.png b.png --confidence photo.png -o f.flo", "explore a.png b.png --export notes.html"),
        *("export-onnx notes.onnx --descriptor", "demo --out mine"),
    ],
)
def test_files_of_others_are_not_replaced(
    tmp_path: Path, is_refused: Callable[[str, str], None], arguments: str
) -> None:
    for suffix in ("txt", "json", "flo", "html", "onnx"):
        (tmp_path / f"notes.{suffix}").write_text('{"mine": "do not lose this"}')
    (tmp_path / "mine").mkdir()
    for name in ("photo.png", "photo.jpg", "mine/flow.png"):
        cv2.imwrite(str(tmp_path / name), np.zeros((8, 8, 3), np.uint8))
    is_refused(arguments, "exists and is not from deepmatching")


def test_our_own_files_are_replaced(pictures: tuple[Path, Path], tmp_path: Path, command: Callable[..., str]) -> None:
    for options in (
        *("match -o m.txt --draw d.png", "match -o m.npz --draw d.jpg", "match --geometry homography -o g.json"),
        *("flow -o f.png --confidence c.png --draw d.webp", "flow -o f.pfm --confidence c.npy", "match -o m.h5"),
    ):
        name, *words = options.split()
        outputs = [tmp_path / word if "." in word else word for word in words]
        for _ in range(2):
            command(name, *pictures, *outputs, "--model", "hog", "--radius", 16, "--quiet")


@pytest.mark.skipif(sys.platform != "linux", reason="other systems refuse such names")
@pytest.mark.usefixtures("pictures")
def test_a_name_that_is_not_text_can_be_read_and_complained_about(
    tmp_path: Path, is_refused: Callable[[str, str], None]
) -> None:
    os.rename(tmp_path / "a.png", os.fsencode(tmp_path) + b"/\xff.png")
    is_refused("match \udcff.png none.png", "none.png")
    is_refused("match \udcfe.png b.png", "image")
