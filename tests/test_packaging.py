"""Building the package."""

import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]


@pytest.mark.slow
def test_a_build_leaves_nothing_in_the_tree_and_misses_nothing_of_it(tmp_path: Path) -> None:
    pytest.importorskip("setuptools", minversion="77.0.3")
    tree, out = tmp_path / "tree", tmp_path / "out"
    out.mkdir()
    no_leftovers = shutil.ignore_patterns("__pycache__", "*.egg-info")
    shutil.copytree(ROOT / "src", tree / "src", ignore=no_leftovers)
    for name in ("pyproject.toml", "setup.py", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, tree)
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
    assert len(list(out.glob("*.tar.gz"))) == 1
