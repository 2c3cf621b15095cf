"""The versions in pyproject.toml, in the files of constraints and in the instructions agree."""

import os
import re
import shutil
import subprocess
import sys
import tomllib
from itertools import chain
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.version import Version

from deepmatching import __version__

ROOT = Path(__file__).resolve().parents[1]


def floors() -> dict[str, Version]:
    """Return the oldest allowed version of each package, for users, for developers and for the build."""
    text = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    project = tomllib.loads(text)
    extras = project["project"]["optional-dependencies"].values()
    lines = [*project["build-system"]["requires"], *project["project"]["dependencies"], *chain(*extras)]
    found: dict[str, Version] = {}
    for requirement in map(Requirement, lines):
        if requirement.name == "deepmatching":  # other extras
            continue
        assert [specifier.operator for specifier in requirement.specifier] == [">="], str(requirement)
        floor = Version(next(iter(requirement.specifier)).version)
        assert found.setdefault(requirement.name, floor) == floor, f"two floors of {requirement.name}"
    return found


def pins(name: str) -> dict[str, Version]:
    """Return the versions in a file of constraints."""
    lines = [line for line in (ROOT / name).read_text(encoding="utf-8").splitlines() if not line.startswith("#")]
    found = {}
    for requirement in map(Requirement, lines):
        assert [specifier.operator for specifier in requirement.specifier] == ["=="], str(requirement)
        found[requirement.name] = Version(next(iter(requirement.specifier)).version)
    return found


def test_the_oldest_versions_that_are_tested_are_the_oldest_that_are_allowed() -> None:
    assert pins("constraints-oldest.txt") == floors()


def test_every_dependency_is_pinned_for_make_no_lower_than_its_floor() -> None:
    pinned = pins("constraints.txt")
    for name, floor in floors().items():
        if name != "setuptools":  # the build's own
            assert pinned[name] >= floor, name


def test_users_get_no_opencv_that_replaces_another() -> None:
    """Packages of OpenCV overwrite one another's files, so only the one that others can do with is a dependency."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    needed = {requirement.name for requirement in map(Requirement, project["dependencies"])}
    assert {name for name in needed if "opencv" in name} == {"opencv-python-headless"}


def test_the_workflow_tests_the_oldest_python_with_the_oldest_packages() -> None:
    text = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    oldest = tomllib.loads(text)["project"]["requires-python"].removeprefix(">=")
    workflow = (ROOT / ".github" / "workflows" / "tests.yml").read_text(encoding="utf-8")
    (line,) = re.findall(r"versions: oldest, .*", workflow)
    assert f'python: "{oldest}"' in line
    assert "constraints: constraints-oldest.txt" in line


def test_no_floor_has_a_known_hole_in_what_is_loaded() -> None:
    """The first versions without the holes that advisories list in the readers of images, weights and HDF5 files."""
    mended = {
        "torch": "2.6",  # torch.load(weights_only=True), here of one file with a known digest: CVE-2025-32434
        "opencv-python-headless": "4.12",  # WebP: CVE-2023-4863 (4.8.1.78); JPEG 2000: CVE-2025-53644 (4.12)
        "filelock": "3.20.3",  # CVE-2025-68146 (3.20.1), CVE-2026-22701 (3.20.3)
    }
    for name, version in mended.items():
        assert floors()[name] >= Version(version), name


def test_the_citation_and_the_changelog_name_the_version() -> None:
    assert re.findall(r"(?m)^version: (.*)$", (ROOT / "CITATION.cff").read_text(encoding="utf-8")) == [__version__]
    assert f"## {__version__} " in (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")


def test_the_actions_of_the_workflows_are_pinned_by_their_hash() -> None:
    for workflow in (ROOT / ".github" / "workflows").glob("*.yml"):
        used = re.findall(r"uses: (\S+)", workflow.read_text(encoding="utf-8"))
        assert used and all(re.fullmatch(r"[\w/-]+@[0-9a-f]{40}", action) for action in used), workflow.name


def test_a_release_is_published_after_the_tests_and_the_check_of_its_metadata() -> None:
    workflow = (ROOT / ".github" / "workflows" / "publish.yml").read_text(encoding="utf-8")
    build, package, release, site = re.split(r"^  \w+:$", workflow.partition("\njobs:")[2], flags=re.MULTILINE)[1:]
    steps = ["run: make test", "run: python -m build", "twine check --strict", "upload-artifact"]
    assert sorted(map(build.index, steps)) == [build.index(step) for step in steps]
    assert "needs: build" in package and "needs: package" in release and "needs: build" in site
    assert "pypi-publish" not in build + release + site


def test_every_python_that_is_supported_matches_with_the_wheel_alone() -> None:
    workflow = (ROOT / ".github" / "workflows" / "tests.yml").read_text(encoding="utf-8")
    classifiers = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["classifiers"]
    (line,) = re.findall(r"python: \[(.*)\]", workflow)
    versions = [name.rpartition(" ")[2] for name in classifiers if re.search(r":: 3\.\d+$", name)]
    assert line.replace('"', "").split(", ") == versions


@pytest.mark.skipif(shutil.which("sed") is None or sys.platform == "darwin", reason="the workflow runs on Linux")
def test_the_notes_of_a_release_are_its_part_of_the_changelog(tmp_path: Path) -> None:
    (tmp_path / "CHANGELOG.md").write_text(
        "# Changelog\n\n## 0.10.0 (x)\nten\n\n## 0.1.0 (y)\none\n\n## 0.0.9 (z)\nold\n"
    )
    workflow = (ROOT / ".github" / "workflows" / "publish.yml").read_text(encoding="utf-8")
    (command,) = re.findall(r"run: (sed .*)", workflow)
    for tag, notes in (("v0.10.0", "ten"), ("v0.1.0", "one"), ("v0.0.9", "old")):
        environment = {**os.environ, "GITHUB_REF_NAME": tag}
        subprocess.run(["bash", "-c", command], cwd=tmp_path, env=environment, check=True)
        assert (tmp_path / "notes.md").read_text().strip() == notes
