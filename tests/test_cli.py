"""The command line as a whole: help, version and usage errors."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
import typer

from deepmatching.cli import app
from helpers.processes import run

COMMANDS = [str(command.callback.__name__) for command in app.registered_commands if command.callback]


def test_help_and_version() -> None:
    listed = run("--help").stdout
    assert all(re.search(rf"^  {name} +[A-Z]", listed, re.MULTILINE) for name in COMMANDS)
    assert run("--version").stdout.startswith("deepmatching ")


@pytest.mark.parametrize("name", COMMANDS)
def test_the_help_of_a_command_shows_no_type_names(name: str) -> None:
    text = run(name, "--help").stdout
    assert f"deepmatching {name} [OPTIONS]" in text
    assert not re.search("<(bool|int|str|path|float)|[{]", text), text


@pytest.mark.parametrize("name", COMMANDS)
def test_every_option_has_a_description(name: str) -> None:
    for param in typer.main.get_command(app).commands[name].params:  # type: ignore[attr-defined]
        assert getattr(param, "help", None), f"{name} {param.name}"


def test_help_needs_none_of_the_slow_libraries() -> None:
    code = (
        "import sys, deepmatching.cli as cli\n"
        "try: cli.app(['flow', '--help'], standalone_mode=False)\n"
        "finally: print(sorted({'torch', 'numba', 'numpy', 'cv2', 'h5py', 'matplotlib'} & set(sys.modules)))"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.endswith("[]\n"), result.stdout


def test_without_arguments_the_help_is_shown_and_the_command_fails() -> None:
    result = run()
    assert (result.returncode, result.stdout) == (2, "")
    assert result.stderr == run("--help").stdout


@pytest.mark.parametrize(("arguments", "help_"), [("match a.png", "match --help"), ("sing", "--help")])
def test_a_usage_error_points_to_the_help_of_its_command(tmp_path: Path, arguments: str, help_: str) -> None:
    assert f"See 'deepmatching {help_}'." in run(*arguments.split(), cwd=tmp_path).stderr


@pytest.mark.parametrize(("words", "offered"), [("deepmatching ma", "match"), ("deepmatching match --rad", "--radius")])
def test_the_shell_completes_commands_and_options(monkeypatch: pytest.MonkeyPatch, words: str, offered: str) -> None:
    monkeypatch.setenv("_DEEPMATCHING_COMPLETE", "complete_bash")
    monkeypatch.setenv("COMP_WORDS", words)
    monkeypatch.setenv("COMP_CWORD", str(words.count(" ")))
    assert run().stdout.split() == [offered]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [("sing", "sing"), ("match a.png", "B"), ("match a.png b.png --colour red", "--colour"), ("match -v", "A")],
)
def test_a_usage_error_is_one_line_and_exit_code_2(tmp_path: Path, arguments: str, words: str) -> None:
    result = run(*arguments.split(), cwd=tmp_path)
    assert (result.returncode, result.stdout) == (2, "")
    assert result.stderr.count("\n") == 1 and words in result.stderr
    assert list(tmp_path.iterdir()) == []
