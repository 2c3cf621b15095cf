import os
import sys
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

from deepmatching.commands.options import (
    PARSERS,
    command,
    is_same,
    parse_memory,
    parse_radius,
    parse_rotations,
    parse_size,
    refuse,
)
from deepmatching.errors import DeepMatchingError
from deepmatching.settings import Settings


def test_a_command_takes_the_options_of_settings_by_name() -> None:
    @command("radius", "half", "rotations", "levels", radius=80)
    def example(*, settings: dict[str, Any]) -> None:
        given.append(settings)

    given: list[dict[str, Any]] = []
    example()
    example(radius="full", rotations="0,90", levels=2)
    assert given[0] == {"radius": 80, "half": False, "rotations": None, "levels": None}
    assert given[1] == {"radius": "full", "half": False, "rotations": (0.0, 90.0), "levels": 2}


def test_every_setting_can_be_an_option_and_commands_have_its_default() -> None:
    @command(*(field.name for field in fields(Settings)))
    def example(*, settings: dict[str, Any]) -> None:
        assert Settings(**settings) == Settings()

    example()


@pytest.mark.parametrize(
    ("text", "size"), [("500MB", 5 * 10**8), ("2 GB", 2 * 10**9), ("1.5g", 15 * 10**8), ("7k", 7000), ("123", 123)]
)
def test_a_size_of_memory_is_read_with_or_without_a_unit(text: str, size: int) -> None:
    assert parse_memory(text) == size


def test_a_radius_is_a_number_or_the_word_for_no_limit_and_rotations_are_a_number_or_degrees() -> None:
    assert (parse_radius("80"), parse_radius("full")) == (80, "full")
    assert (parse_rotations("8"), parse_rotations("90,")) == (8, (90.0,))
    for name, texts in {"radius": ("0", "-8", "8.5", "Full", ""), "rotations": ("0", "many", "", "0,1000")}.items():
        for text in texts:
            with pytest.raises(DeepMatchingError, match=name):
                Settings(**{name: PARSERS[name](text)})


def test_a_size_is_a_width_and_a_height() -> None:
    assert parse_size("1024x436") == (436, 1024)
    for text in ("1024", "1024x", "1024 x 436", "-4x4", "4x4x4", "٣x٣"):
        with pytest.raises(DeepMatchingError, match="--size"):
            parse_size(text)


def test_an_option_that_is_given_is_refused_by_name() -> None:
    refuse({"a": None, "b": False}, "has no effect.")
    with pytest.raises(DeepMatchingError, match=r"^--b-c has no effect\.$"):
        refuse({"a": None, "b_c": 0}, "has no effect.")


@pytest.mark.skipif(sys.platform == "win32", reason="makes links")
def test_links_lead_to_the_same_file(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("a")
    (tmp_path / "soft").symlink_to(tmp_path / "a")
    os.link(tmp_path / "a", tmp_path / "hard")
    assert is_same(tmp_path / "soft", tmp_path / "a") and is_same(tmp_path / "hard", tmp_path / "a")
    assert not is_same(tmp_path / "b", tmp_path / "a")
