"""The notebooks in docs/notebooks run from start to end."""

import json
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import pytest

from deepmatching import Matches
from deepmatching.flow import FlowResult
from helpers.html import picture_in

FOLDER = Path(__file__).parents[2] / "docs" / "notebooks"


@pytest.fixture(autouse=True)
def _without_windows(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    plt.switch_backend("Agg")
    monkeypatch.chdir(tmp_path)


def cells(path: Path) -> list[dict[str, Any]]:
    return json.loads(path.read_text(encoding="utf-8"))["cells"]


def run(name: str) -> dict[str, Any]:
    """Run all code of a notebook; return its variables."""
    path = FOLDER / f"{name}.ipynb"
    code = "\n".join("".join(cell["source"]) for cell in cells(path) if cell["cell_type"] == "code")
    names: dict[str, Any] = {}
    exec(compile(code, str(path), "exec"), names)
    return names


@pytest.mark.parametrize("path", sorted(FOLDER.glob("*.ipynb")), ids=lambda path: path.stem)
def test_a_notebook_is_kept_without_results_and_installs_the_package_where_it_is_missing(path: Path) -> None:
    code = [cell for cell in cells(path) if cell["cell_type"] == "code"]
    assert all(cell["outputs"] == [] and cell["execution_count"] is None for cell in code)
    assert '"pip", "install", "--quiet", "deepmatching"' in code[0]["source"][-1]


@pytest.mark.slow
def test_the_quickstart_shows_matches_and_flow_as_pictures() -> None:
    names = run("quickstart")
    plt.close("all")
    assert isinstance(names["matches"], Matches) and isinstance(names["result"], FlowResult)
    for shown in (names["matches"], names["result"]):
        assert picture_in(shown._repr_html_()).std() > 10
    assert 0 < len(names["good"]) < len(names["matches"])


@pytest.mark.slow
def test_inside_the_matcher_finds_a_path_and_learns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NOTEBOOK_SIDE", "96")
    monkeypatch.setenv("NOTEBOOK_STEPS", "6")
    names = run("inside_the_matcher")
    plt.close("all")
    assert names["total"] == pytest.approx(names["best"].item(), abs=1e-3)
    assert names["curve"][-1] < names["curve"][0]
