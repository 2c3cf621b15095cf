"""Building the package."""

import email
import email.message
import os
import re
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]


def metadata(out: Path, **variables: str) -> email.message.Message:
    """Return what the package says about itself when it is built with these variables."""
    pytest.importorskip("setuptools", minversion="77.0.3")
    code = (
        "import sys; from setuptools import build_meta; print(build_meta.prepare_metadata_for_build_wheel(sys.argv[1]))"
    )
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("GITHUB_")}
    command = [sys.executable, "-c", code, str(out)]
    result = subprocess.run(command, cwd=ROOT, env=inherited | variables, capture_output=True, text=True, check=True)
    text = (out / result.stdout.splitlines()[-1] / "METADATA").read_text(encoding="utf-8")
    return email.message_from_string(text)


@pytest.mark.slow
def test_the_readme_of_a_release_has_no_links_that_break_outside_the_repository(tmp_path: Path) -> None:
    github = {"SERVER_URL": "https://host", "REPOSITORY": "some/where", "REF_NAME": "v1"}
    found = metadata(tmp_path, **{f"GITHUB_{name}": value for name, value in github.items()})
    assert found["Description-Content-Type"] == "text/markdown"
    targets = re.findall(r"\]\(([^)]+)\)", found.get_payload())
    prefixes = "https://host/some/where/raw/v1/", "https://host/some/where/blob/v1/"
    ours = [target for target in targets if target.startswith(prefixes)]
    assert all(target.startswith("https://") for target in targets)
    pictures = {target for target in ours if target.startswith(prefixes[0])}
    shown = ("castle.jpg", "demo_matches.jpg", "demo_scores.jpg")
    assert pictures == {f"{prefixes[0]}docs/images/{name}" for name in shown}
    named = {target.removeprefix(prefixes[0]).removeprefix(prefixes[1]).partition("#")[0] for target in ours}
    assert len(named) > 10 and all((ROOT / name).exists() for name in named)
    assert "Source, https://host/some/where" in found.get_all("Project-URL", [])


@pytest.mark.slow
def test_elsewhere_the_readme_is_as_it_stands(tmp_path: Path) -> None:
    found = metadata(tmp_path)
    assert found.get_payload().strip() == (ROOT / "README.md").read_text(encoding="utf-8").strip()
    assert found.get_all("Project-URL") is None


@pytest.mark.slow
def test_a_build_leaves_nothing_in_the_tree_and_misses_nothing_of_it(tmp_path: Path) -> None:
    pytest.importorskip("setuptools", minversion="77.0.3")
    tree, out = tmp_path / "tree", tmp_path / "out"
    out.mkdir()
    for name in ("src", "tests"):
        shutil.copytree(ROOT / name, tree / name, ignore=shutil.ignore_patterns("__pycache__", "*.egg-info"))
    for path in (path for path in ROOT.iterdir() if path.is_file() and not path.name.startswith(".")):
        shutil.copy(path, tree)
    before = sorted(tree.rglob("*"))
    for hook in ("build_wheel", "build_sdist"):
        code = f"import sys; from setuptools import build_meta; build_meta.{hook}(sys.argv[1])"
        command = [sys.executable, "-c", code, str(out)]
        result = subprocess.run(command, cwd=tree, capture_output=True, text=True, check=False)
        assert result.returncode == 0, result.stderr
    assert sorted(tree.rglob("*")) == before
    (wheel,) = out.glob("*.whl")
    packed = {name for name in zipfile.ZipFile(wheel).namelist() if name.startswith("deepmatching/")}
    assert packed == {str(path.relative_to(tree / "src")) for path in before if path.is_file() and "src" in path.parts}
    (sdist,) = out.glob("*.tar.gz")
    with tarfile.open(sdist) as archive:
        sources = {name.split("/", 1)[-1] for name in archive.getnames()}
    assert {path.relative_to(tree).as_posix() for path in before if path.is_file()} <= sources
