"""Names and numbers that no file and no picture has are reported in one line, in every command."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path

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


@pytest.mark.skipif(sys.platform != "linux", reason="other systems refuse such names")
@pytest.mark.usefixtures("pictures")
def test_a_name_that_is_not_text_can_be_read_and_complained_about(
    tmp_path: Path, is_refused: Callable[[str, str], None]
) -> None:
    os.rename(tmp_path / "a.png", os.fsencode(tmp_path) + b"/\xff.png")
    is_refused("match \udcff.png none.png", "none.png")
    is_refused("match \udcfe.png b.png", "image")
