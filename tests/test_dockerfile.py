"""The Dockerfile names what exists. It is not built here."""

import json
import re
import tomllib
from pathlib import Path
from typing import Any

import typer

from deepmatching.cli import app

ROOT = Path(__file__).resolve().parents[1]
TEXT = (ROOT / "Dockerfile").read_text(encoding="utf-8").replace("\\\n", " ")
PROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]


def parsed(*words: str) -> Any:
    """Return the values of a command line; an unknown command or option raises."""
    group: Any = typer.main.get_command(app)
    return group.commands[words[0]].make_context(words[0], list(words[1:])).params


def copied() -> set[str]:
    """Return what .dockerignore lets through."""
    lines = (ROOT / ".dockerignore").read_text(encoding="utf-8").splitlines()
    return {line.removeprefix("!") for line in lines if line.startswith("!")}


def test_all_that_the_build_reads_is_copied() -> None:
    needed = {"src", "pyproject.toml", "setup.py", "README.md", *PROJECT["license-files"]}
    needed |= set(re.findall(r"--constraint (\S+)", TEXT))
    assert {name.split("/")[0] for name in needed} == copied()
    assert all((ROOT / name).exists() for name in needed)


def test_the_demo_compiles_the_kernels_where_the_container_looks_for_them() -> None:
    lines = TEXT.splitlines()
    (built,) = (line for line in lines if line.startswith("RUN deepmatching"))
    words = built.split("&&")[0].split()[2:]
    assert str(parsed(*words)["out"]) == built.split()[-1]  # what is removed again
    assert any(line.startswith("ENV NUMBA_CACHE_DIR=/") for line in lines[: lines.index(built)])


def test_the_container_runs_our_command_on_a_python_that_we_support() -> None:
    entry, command = (
        json.loads(re.findall(rf"^{word} (.*)$", TEXT, re.MULTILINE)[0]) for word in ("ENTRYPOINT", "CMD")
    )
    assert len(entry) == 1 and entry[0] in PROJECT["scripts"]
    parsed(*command)
    (python,) = re.findall(r"^FROM python:([\d.]+)-slim$", TEXT, re.MULTILINE)
    assert f"Programming Language :: Python :: {python}" in PROJECT["classifiers"]
