"""Rules for the source as a whole: layers, sizes, imports."""

import ast
import re
from pathlib import Path

from deepmatching.io.structured import read_toml

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "src" / "deepmatching"
SOURCES = sorted(path for folder in ("src", "tools", "benchmarks", "tests") for path in (ROOT / folder).rglob("*.py"))


def layers_of_the_contract() -> list[list[str]]:
    """Return the layers in pyproject.toml, top first."""
    text = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    pattern = r'containers = \["deepmatching"\]\nexhaustive = true\nlayers = \[\n(.*?)^\]'
    block = re.search(pattern, text, re.MULTILINE | re.DOTALL)
    assert block, "pyproject.toml has no contract of layers"
    return [sorted(re.findall(r"\w+", line)) for line in block[1].splitlines()]


def layers_of_the_page() -> list[list[str]]:
    """Return the fenced block of docs/architecture.md with one layer a line, from the command line to the errors."""
    page = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    (block,) = (b for b in re.findall(r"^```text\n(.*?)^```", page, re.MULTILINE | re.DOTALL) if "__main__" in b)
    return [sorted(re.findall(r"\w+", line.partition("—")[0])) for line in block.splitlines()]


def test_the_architecture_page_shows_the_layers_that_are_checked() -> None:
    assert layers_of_the_page() == layers_of_the_contract()
    assert len(layers_of_the_contract()) <= 9


def test_every_module_stands_on_a_layer() -> None:
    modules = {path.stem for path in PACKAGE.glob("*.py")} | {
        path.parent.name for path in PACKAGE.glob("*/__init__.py")
    }
    assert sorted(name for layer in layers_of_the_contract() for name in layer) == sorted(modules - {"__init__"})


def test_no_module_has_more_than_400_lines() -> None:
    lengths = {str(path.relative_to(ROOT)): len(path.read_text(encoding="utf-8").splitlines()) for path in SOURCES}
    assert not {path: lines for path, lines in lengths.items() if lines > 400}


def test_only_names_of_users_are_imported_by_computed_names() -> None:
    """The checker of imports cannot see such an import; those of ``deepmatching`` name what the user may import."""
    found = []
    for path in PACKAGE.rglob("*.py"):
        nodes = ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        calls = (node for node in nodes if isinstance(node, ast.Call))
        computed = (call for call in calls if not (call.args and isinstance(call.args[0], ast.Constant)))
        names = [getattr(call.func, "id", getattr(call.func, "attr", "")) for call in computed]
        if not {"import_module", "__import__"}.isdisjoint(names):
            found.append(str(path.relative_to(PACKAGE)))
    assert sorted(found) == ["__init__.py", "extensions.py"]


def test_nothing_is_unpickled_but_the_cache_of_compiled_kernels() -> None:
    """Reading a pickle may run code."""
    found = []
    for path in PACKAGE.rglob("*.py"):
        named = (node for node in ast.walk(ast.parse(path.read_text("utf-8"))) if isinstance(node, ast.Attribute))
        if {"torch.load", "pickle.load", "pickle.loads", "pickle.Unpickler"} & set(map(ast.unparse, named)):
            found.append(path.relative_to(PACKAGE).as_posix())
    assert found == ["kernels/cpu/compilation.py"]


def modules_without_a_twin() -> set[str]:
    modules = (path.relative_to(PACKAGE).with_suffix("") for path in PACKAGE.rglob("*.py") if path.stem != "__init__")
    tests = ROOT / "tests"
    return {".".join(m.parts) for m in modules if not (tests / m.parent / f"test_{m.name}.py").is_file()}


def test_every_module_has_a_twin_among_the_tests_or_a_line_that_says_which_test_covers_it() -> None:
    lines = read_toml(ROOT / "tests" / "twins.toml", "list of tests")
    assert set(lines) == modules_without_a_twin()
    assert [test for test in lines.values() if not (ROOT / "tests" / test).is_file()] == []
