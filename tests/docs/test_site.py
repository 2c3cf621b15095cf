"""The documentation site builds without a warning, and has every public name."""

import importlib
import os
import re
import subprocess
import sys
import zlib
from pathlib import Path

import pytest
import typer

from deepmatching.cli import app

ROOT = Path(__file__).parents[2]

#: Parts of the package that the reference leaves out: the command line, and what programs do not call.
INTERNAL = {"commands", "cli", "data", "explorer", "geometry", "io", "kernels", "network", "reconstruction", "plugins"}


def documented_modules() -> list[str]:
    page = (ROOT / "docs" / "api.md").read_text(encoding="utf-8")
    return re.findall(r"^\.\. automodule:: (\S+)", page, re.MULTILINE)


def test_every_package_with_public_names_is_in_the_reference() -> None:
    packages = [path.parent.name for path in (ROOT / "src" / "deepmatching").glob("*/__init__.py")]
    assert {f"deepmatching.{name}" for name in packages if name not in INTERNAL} <= set(documented_modules())


@pytest.mark.parametrize(
    "page", ["README.md", "CONTRIBUTING.md", *sorted(f"docs/{p.name}" for p in (ROOT / "docs").glob("*.md"))]
)
def test_every_path_that_a_page_names_exists(page: str) -> None:
    places = [ROOT, ROOT / "src" / "deepmatching"]
    rooms = {path.name for place in places for path in place.iterdir() if path.is_dir()}
    named = re.findall(
        r"(?<![\w/.…])(?:[\w-]+/)+(?:[\w-]+\.(?:py|toml|md))?(?![\w/*.…-])", (ROOT / page).read_text("utf-8")
    )
    ours = [path for path in named if path.split("/")[0] in rooms and "NAME" not in path]
    assert not [path for path in ours if not any((place / path).exists() for place in [*places, ROOT / "docs"])]


@pytest.mark.slow
def test_the_site_builds_without_a_warning_and_has_every_public_name(tmp_path: Path) -> None:
    for needed in ("sphinx", "furo", "myst_nb"):
        pytest.importorskip(needed)
    command = [sys.executable, "-m", "sphinx", "-q", "-W", "--keep-going", "-b", "html", "docs", str(tmp_path)]
    github = {"GITHUB_REPOSITORY": "some/where", "GITHUB_REF_NAME": "v1"}
    done = subprocess.run(command, cwd=ROOT, env=os.environ | github, capture_output=True, text=True, encoding="utf-8")
    assert done.returncode == 0, done.stderr
    help_page = (tmp_path / "commands.html").read_text(encoding="utf-8")
    usages = set(re.findall(r"Usage: deepmatching ([\w-]+) ", help_page))
    assert usages == set(typer.main.get_command(app).commands)  # type: ignore[attr-defined]
    names = names_in(tmp_path / "objects.inv")
    missing = [
        f"{module}.{name}"
        for module in documented_modules()
        if not module.startswith("deepmatching.plugins.")  # their libraries need not be installed
        for name in getattr(importlib.import_module(module), "__all__", ())
        if f"{module}.{name}" not in names
    ]
    assert not missing
    for notebook in (ROOT / "docs" / "notebooks").glob("*.ipynb"):
        page = (tmp_path / "notebooks" / f"{notebook.stem}.html").read_text(encoding="utf-8")
        colab = f"https://colab.research.google.com/github/some/where/blob/v1/docs/notebooks/{notebook.name}"
        assert f'href="{colab}"' in page and "subprocess" not in page
    assert {"deepmatching.DeepMatcher.match", "deepmatching.Matches.filter", "deepmatching.Geometry.links"} <= names


def names_in(inventory: Path) -> set[str]:
    """Return the names in Sphinx's list of what a site documents: four lines of text, then compressed lines."""
    compressed = inventory.read_bytes().split(b"\n", 4)[4]
    return {line.split(" ")[0] for line in zlib.decompress(compressed).decode().splitlines()}
