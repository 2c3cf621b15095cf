"""The notebooks in docs/notebooks, which are Python programs, run from start to end."""

import runpy
from pathlib import Path

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


@pytest.mark.slow
def test_the_quickstart_shows_matches_and_flow_as_pictures() -> None:
    names = runpy.run_path(str(FOLDER / "quickstart.nb.py"))
    plt.close("all")
    assert isinstance(names["matches"], Matches) and isinstance(names["result"], FlowResult)
    for shown in (names["matches"], names["result"]):
        assert picture_in(shown._repr_html_()).std() > 10
    assert 0 < len(names["good"]) < len(names["matches"])


@pytest.mark.slow
def test_inside_the_matcher_finds_a_path_and_learns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NOTEBOOK_SIDE", "96")
    monkeypatch.setenv("NOTEBOOK_STEPS", "6")
    names = runpy.run_path(str(FOLDER / "inside_the_matcher.nb.py"))
    plt.close("all")
    assert names["total"] == pytest.approx(names["best"].item(), abs=1e-3)
    assert names["curve"][-1] < names["curve"][0]
