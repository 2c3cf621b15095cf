"""The matcher by ``torch.hub``."""

import ast
import re
import subprocess
import sys
import tomllib
from importlib.metadata import packages_distributions
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]

#: A program in another folder that matches an image with itself, and says where the package is and what it imported.
PROGRAM = """
import sys, numpy, torch
before = list(sys.path)
matcher = torch.hub.load({root!r}, "matcher", "hog", source="local", radius=8, device="cpu")
image = numpy.random.default_rng(0).random((48, 64, 3)).astype("float32")
matches = matcher.match(image, image)
assert len(matches) and torch.equal(matches.keypoints0, matches.keypoints1)
print(sys.modules["deepmatching"].__file__)
print(*sorted(name.partition(".")[0] for name in sys.modules))
"""


def stated_dependencies() -> set[str]:
    text = (ROOT / "hubconf.py").read_text(encoding="utf-8")
    return set(ast.literal_eval(re.findall(r"^dependencies = (\[.*\])$", text, re.MULTILINE)[0]))


def test_a_matcher_is_loaded_from_the_folder_and_needs_what_is_stated(tmp_path: Path) -> None:
    program = PROGRAM.format(root=str(ROOT))
    done = subprocess.run([sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, check=True)
    place, imported = done.stdout.splitlines()
    assert Path(place).is_relative_to(ROOT / "src")
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    names = {re.split(r"[>=]", requirement)[0] for requirement in project["dependencies"]}
    packages = packages_distributions()

    def needed(modules: set[str]) -> set[str]:
        return {package for module in modules for package in packages.get(module, ())} & names

    assert needed(set(imported.split())) <= needed(stated_dependencies())
    assert all(needed({module}) for module in stated_dependencies())
