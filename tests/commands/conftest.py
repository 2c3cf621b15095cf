"""A pair of images on disk, and the command line as a user meets it."""

import sys
from collections.abc import Callable
from pathlib import Path

import cv2
import numpy as np
import pytest

from deepmatching.cli import main
from deepmatching.commands import messages


@pytest.fixture
def pictures(pair: tuple[np.ndarray, np.ndarray], tmp_path: Path) -> tuple[Path, Path]:
    """Write the files a.png and b.png of a pair of images."""
    paths = (tmp_path / "a.png", tmp_path / "b.png")
    for path, image in zip(paths, pair, strict=True):
        cv2.imwrite(str(path), image[:, :, ::-1])
    return paths


@pytest.fixture
def command(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Callable[..., str]:
    """Run a command to its end, check its exit code and that standard output is empty; return standard error."""

    def run(*arguments: object, code: int = 0) -> str:
        monkeypatch.setattr(sys, "argv", ["deepmatching", *map(str, arguments)])
        with pytest.raises(SystemExit) as exit_:
            main()
        output, errors = capfd.readouterr()
        assert ((exit_.value.code or 0), output) == (code, ""), errors
        return errors

    return run


@pytest.fixture
def is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: Callable[..., str]
) -> Callable[[str, str], None]:
    """Check that a command line, run in the temporary folder, ends with one line and code 2 and writes nothing.

    ``EMPTY`` stands for an empty text, and ``\\n`` for the end of a line.
    """

    def content() -> dict[Path, bytes | None]:
        return {path: path.read_bytes() if path.is_file() else None for path in tmp_path.rglob("*")}

    def check(arguments: str, words: str) -> None:
        monkeypatch.chdir(tmp_path)
        monkeypatch.setattr(messages, "WORK_LINES_EVERY", 3600.0)  # a slow machine works ten seconds before it refuses
        before = content()
        errors = command(*(word.replace("EMPTY", "").replace("\\n", "\n") for word in arguments.split()), code=2)
        assert words in errors and errors.startswith("deepmatching: ")
        assert len(errors.strip().splitlines()) == 1
        assert content() == before

    return check
