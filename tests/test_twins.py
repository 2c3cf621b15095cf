"""Every module has a twin among the tests, or a line in twins.toml that says which test covers it."""

from pathlib import Path

from deepmatching.io.structured import read_toml

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "src" / "deepmatching"


def modules_without_a_twin() -> set[str]:
    found = set()
    for path in PACKAGE.rglob("*.py"):
        module = path.relative_to(PACKAGE).with_suffix("")
        twin = ROOT / "tests" / module.parent / f"test_{module.name}.py"
        if module.name != "__init__" and not twin.is_file():
            found.add(".".join(module.parts))
    return found


def test_every_module_has_a_twin_or_a_line_that_says_which_test_covers_it() -> None:
    lines = read_toml(ROOT / "tests" / "twins.toml", "list of tests")
    assert set(lines) == modules_without_a_twin()
    assert [test for test in lines.values() if not (ROOT / "tests" / test).is_file()] == []
