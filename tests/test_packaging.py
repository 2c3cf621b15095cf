"""Building the package."""

import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]


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
