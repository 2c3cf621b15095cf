"""What the tests draw depends neither on their order nor on what they have imported."""

import importlib.util
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st


def test_examples_do_not_depend_on_the_modules_that_are_imported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not settings.default.derandomize:
        pytest.skip("new examples are asked for")
    drawn: list[tuple[int, float]] = []

    @given(st.integers(0, 10**6), st.floats(0, 10**6))
    def draw(number: int, real: float) -> None:
        drawn.append((number, real))

    draw()
    before = drawn.copy()
    drawn.clear()
    path = tmp_path / "many_numbers.py"
    path.write_text(f"NUMBERS = {[*range(1000, 1500), *(n + 0.5 for n in range(500))]}")
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, path.stem, module)
    spec.loader.exec_module(module)
    draw()
    assert drawn == before
