"""Rules for the source as a whole: floors, sizes, imports."""

from __future__ import annotations

import ast
import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
SOURCES = sorted(path for folder in ("src", "tools", "benchmarks", "tests") for path in (ROOT / folder).rglob("*.py"))

Floors = dict[str, list[str]]


def floors_of_the_contract() -> Floors:
    """The layers in pyproject.toml, by the comment above them."""
    text = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    block = re.search(r'^type = "layers".*?^layers = \[\n(.*?)^\]', text, re.MULTILINE | re.DOTALL)
    assert block, "pyproject.toml has no contract of layers"
    floors: Floors = {}
    for line in block[1].splitlines():
        if comment := re.match(r"\s*# (.+)", line):
            floors[comment[1]] = modules = []
        else:
            modules += re.findall(r"\w+", line)
    return floors


def floors_of_the_page() -> Floors:
    """The fenced block of docs/architecture.md whose lines are "floor: module, module, …"."""
    page = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    blocks = re.findall(r"^```(?:text)?\n(.*?)^```", page, re.MULTILINE | re.DOTALL)
    found = [block for block in blocks if re.search(r"^under all:", block, re.MULTILINE)]
    assert len(found) == 1, "docs/architecture.md must have one block of floors"
    lines = [line.partition(":") for line in found[0].splitlines() if line.strip()]
    return {name.strip(): re.findall(r"\w+", modules) for name, _, modules in lines}


def test_the_architecture_page_shows_the_floors_that_are_checked() -> None:
    contract = floors_of_the_contract()
    page = floors_of_the_page()
    assert list(page) == list(contract) == ["user surface", "method", "files and pictures", "arithmetic", "under all"]
    assert page == contract


def test_every_module_stands_on_a_floor() -> None:
    package = ROOT / "src" / "deepmatching"
    modules = {path.stem for path in package.glob("*.py")} | {
        path.parent.name for path in package.glob("*/__init__.py")
    }
    assert {module for modules in floors_of_the_contract().values() for module in modules} == modules - {"__init__"}


def test_no_module_has_more_than_400_lines() -> None:
    lengths = {str(path.relative_to(ROOT)): len(path.read_text(encoding="utf-8").splitlines()) for path in SOURCES}
    assert not {path: lines for path, lines in lengths.items() if lines > 400}


def test_only_the_package_itself_imports_modules_by_computed_names() -> None:
    """The checker of imports cannot see such an import; those of ``deepmatching`` name what the user may import."""
    found = []
    for path in (ROOT / "src").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call):
                name = getattr(node.func, "id", getattr(node.func, "attr", ""))
                if name in ("import_module", "__import__") and not (
                    node.args and isinstance(node.args[0], ast.Constant)
                ):
                    found.append(str(path.relative_to(ROOT / "src" / "deepmatching")))
    assert found == ["__init__.py"]
