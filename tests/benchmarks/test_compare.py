import math
import sys
from collections.abc import Callable
from pathlib import Path
from unittest.mock import create_autospec

import cv2
import numpy as np
import pytest
from matplotlib.axes import Axes

from deepmatching.evaluation import Evaluation, PairResult
from helpers.benchmarks import imported

Compare = Callable[..., list[list[str]]]


@pytest.fixture
def compare(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Compare:
    """Compare two evaluations, and return the words of each line."""
    main = imported("compare").main

    def run(first: Evaluation, second: Evaluation, *options: str) -> list[list[str]]:
        for name, evaluation in (("a.json", first), ("b.json", second)):
            evaluation.save(tmp_path / name)
        monkeypatch.setattr(sys, "argv", ["compare", str(tmp_path / "a.json"), str(tmp_path / "b.json"), *options])
        main()
        return [line.split() for line in capsys.readouterr().out.splitlines()]

    return run


def flow(errors: dict[str, list[float]]) -> Evaluation:
    rows = [(group, str(number), epe) for group, values in errors.items() for number, epe in enumerate(values)]
    pairs = tuple(
        PairResult(n, group, name, 1.0, {"all": {"epe": epe, "pixels": 9.0}, "noc": {"epe": 0.0, "pixels": 9.0}})
        for n, (group, name, epe) in enumerate(rows)
    )
    return Evaluation("flow", {}, len(pairs), pairs)


def test_differences_are_of_the_same_pairs(compare: Compare) -> None:
    generator = np.random.default_rng(0)
    before = {"easy": list(np.linspace(1, 2, 20)), "hard": list(np.linspace(1, 50, 20))}
    after = {"easy": [epe - 0.1 for epe in before["easy"]], "hard": [e + generator.normal() for e in before["hard"]]}
    after["hard"][-1] = 1000.0  # one gross error
    rows = {line[0]: line for line in compare(flow(before), flow(after)) if line}
    easy = rows["easy"]
    assert easy[1:13] == ["20", "1.50", "1.40", "1.50", "1.40", "-0.10", "-0.10", "…", "-0.10", "*", "20", "0"]
    ratio = np.exp(np.mean([math.log(1 - 0.1 / epe) for epe in before["easy"]]))
    assert easy[13] == f"{ratio:.3f}" and float(easy[14]) < ratio < float(easy[16]) < 1 and easy[17] == "*"
    assert rows["hard"][1] == "20" and float(rows["hard"][3]) > 70 and float(rows["hard"][5]) < 30  # trimmed
    assert "*" not in rows["hard"] and "*" not in rows["all"] and rows["all"][1] == "40"
    assert int(rows["hard"][11]) + int(rows["hard"][10]) == 20


def test_pairs_without_the_metric_are_left_out_and_counted(compare: Compare) -> None:
    first, second = flow({"g": [1.0, 2.0, 3.0]}), flow({"g": [1.0, 2.0]})
    lines = compare(first, second, "--pixels", "noc")
    assert ["g", "2"] in [line[:2] for line in lines] and lines[0][-2:] == ["1", "pairs."]
    for other, options in ((flow({"h": [1.0]}), ()), (first, ("--metric", "acc@2")), (Evaluation("matches"), ())):
        with pytest.raises(SystemExit, match="give"):
            compare(first, other, *options)


def test_the_geometry_of_photographs_is_compared_by_auc(compare: Compare) -> None:
    def photographs(*values: float) -> Evaluation:
        metrics = [{f"auc@{limit}": value for limit in (5, 10, 20)} | {"error": 1.0} for value in values]
        pairs = tuple(PairResult(n, "g", str(n), 1.0, {"two_view": row}) for n, row in enumerate(metrics))
        return Evaluation("matches", {}, len(pairs), pairs)

    lines = compare(photographs(10.0, 50.0, 60.0), photographs(30.0, 50.0, 50.0))
    assert "auc@10" in lines[0][0] and ["g", "3", "40.00", "43.33"] in [line[:4] for line in lines]
    assert [line[-2:] for line in lines if line[:1] == ["all"]] == [["1", "1"]]  # more is better; one is a draw


def test_the_plot_has_the_means_of_every_data_set(
    compare: Compare, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(Axes, "barh", bars := create_autospec(Axes.barh, side_effect=Axes.barh))
    before, after = flow({"one": [1.0, 3.0], "two": [5.0]}), flow({"one": [1.0, 1.0], "two": [4.0]})
    compare(before, after, "--plot", str(tmp_path / "p.png"))
    assert [call.args[2] for call in bars.call_args_list] == [[2.0, 5.0, 3.0], [1.0, 4.0, 2.0]]
    assert cv2.imread(str(tmp_path / "p.png")) is not None
