"""Means, their file and their tables."""

import json
import math
from pathlib import Path

import numpy as np
import pytest

from deepmatching.errors import DeepMatchingError
from deepmatching.evaluation import Evaluation, PairResult, endpoint_metrics, flow_metrics
from deepmatching.evaluation.report import means_table, pairs_table


def match_result(index: int, group: str, acc: float, seconds: float = 1.0, **occ: float) -> PairResult:
    metrics = {"all": {"acc@2": acc, "acc@5": acc, "acc@10": acc, "epe": 1.0, "coverage": 99.0, "matches": 10.0}}
    if occ:
        metrics["occ"] = {**metrics["all"], **{"acc@2": occ["occ"]}}
    return PairResult(index, group, f"pair {index}", seconds, metrics)


@pytest.fixture
def evaluation() -> Evaluation:
    pairs = (
        match_result(0, "one", 50.0, 9.0, occ=20.0),
        match_result(1, "two", 10.0),
        match_result(2, "one", 70.0, 1.0, occ=math.nan),
        match_result(3, "one", 90.0, 2.0),
    )
    return Evaluation("matches", {"model": "hog"}, 5, pairs)


def flow_evaluation(seed: int = 0) -> tuple[Evaluation, list[tuple[np.ndarray, ...]]]:
    rng = np.random.default_rng(seed)
    fields = []
    for size in ((5, 6), (20, 30), (3, 3)):
        truth = rng.normal(0, 20, (*size, 2))
        truth[rng.random(size) < 0.3] = np.nan
        fields.append((truth + rng.normal(0, 4, truth.shape), truth, rng.random(size) < 0.5))
    pairs = tuple(
        PairResult(i, "g", str(i), 1.0, flow_metrics(np.nan_to_num(flow), truth, occluded))
        for i, (flow, truth, occluded) in enumerate(fields)
    )
    return Evaluation("flow", {}, 3, pairs), fields


def test_means_are_over_the_pairs_of_a_group_that_have_such_pixels(evaluation: Evaluation) -> None:
    assert evaluation.groups == ["one", "two"]
    means = evaluation.means("one")
    assert means["pairs"] == 3 and means["acc@2"] == 70.0 and means["seconds"] == 2.0  # the median
    assert evaluation.means("two")["acc@2"] == 10.0
    assert evaluation.pixel_sets("one") == ["all", "occ"] and evaluation.pixel_sets("two") == ["all"]
    assert evaluation.means("one", "occ") == {**evaluation.means("one", "occ"), "pairs": 1.0, "acc@2": 20.0}


@pytest.mark.parametrize("pixels", ["all", "noc", "occ"])
def test_pixel_means_are_the_means_of_all_pixels_joined(pixels: str) -> None:
    evaluation, fields = flow_evaluation()
    masks = {"all": lambda o: np.ones_like(o), "noc": lambda o: ~o, "occ": lambda o: o}
    flow, truth = (np.concatenate([f[n].reshape(1, -1, 2) for f in fields], axis=1) for n in (0, 1))
    mask = np.concatenate([masks[pixels](occluded).reshape(1, -1) for _, _, occluded in fields], axis=1)
    expected = endpoint_metrics(np.nan_to_num(flow), truth, mask)
    found = evaluation.pixel_means("g", pixels)
    for name in ("epe", "err@3", "fl", "s0-10", "s10-40", "s40+"):
        assert found[name] == pytest.approx(expected[name])
    assert found["epe"] != pytest.approx(evaluation.means("g", pixels)["epe"])


@pytest.mark.parametrize("kind", ["matches", "flow"])
def test_a_saved_evaluation_loads_unchanged(evaluation: Evaluation, tmp_path: Path, kind: str) -> None:
    original = evaluation if kind == "matches" else flow_evaluation()[0]
    original.save(tmp_path / "e.json")
    text = (tmp_path / "e.json").read_text()
    assert "NaN" not in text  # which is not JSON
    loaded = Evaluation.load(tmp_path / "e.json")
    assert loaded.kind == kind and loaded.total == original.total and dict(loaded.settings) == dict(original.settings)
    assert json.loads(text) == loaded.to_json()
    for group in original.groups:
        for pixels in original.pixel_sets(group):
            assert loaded.means(group, pixels) == pytest.approx(original.means(group, pixels), nan_ok=True)
    content = json.loads(text)
    assert content["means"][original.groups[0]]["all"]["pairs"] == 3
    assert ("pixel_means" in content) == (kind == "flow")


@pytest.mark.parametrize("content", ["", "[]", '{"format": "other"}', '{"format": "deepmatching evaluation 1"}', "[[["])
def test_a_file_that_is_not_an_evaluation_is_refused(tmp_path: Path, content: str) -> None:
    (tmp_path / "e.json").write_text(content)
    with pytest.raises(DeepMatchingError, match=r"e.json' is (not an evaluation|an empty file)"):
        Evaluation.load(tmp_path / "e.json")
    with pytest.raises(DeepMatchingError, match="no evaluation file"):
        Evaluation.load(tmp_path / "none.json")


def test_a_pair_that_lacks_metrics_is_refused_before_their_mean_is_asked_for() -> None:
    pairs = tuple(PairResult(n, "g", f"n{n}", 0.1, {"all": {"acc@2": 50.0, "epe": 1.0}}) for n in range(2))
    metrics = ({"epe": 1.0}, {"acc@2": 1.0}, [1, 2], {"acc@2": "much"})
    for change in (*({"all": wrong} for wrong in metrics), {"index": "first"}, {"seconds": None}):
        content = Evaluation("matches", {}, 2, pairs).to_json()
        content["pairs"][1] |= change
        with pytest.raises((ValueError, TypeError, AttributeError)):
            Evaluation.from_json(content)


def cells(table: object) -> list[list[str]]:
    columns = [list(column.cells) for column in table.columns]  # type: ignore[attr-defined]
    return [list(row) for row in zip(*columns, strict=True)]


def test_tables_hold_every_mean_and_every_pair(evaluation: Evaluation) -> None:
    rows = ["|".join(row[:4]) for row in cells(means_table(evaluation))]
    assert rows == ["one|all|3|70.00", "|occ|1|20.00", "two|all|1|10.00"]
    rows = ["|".join(row[:4]) for row in cells(pairs_table(evaluation))]
    assert rows[:3] == ["one|pair 0|all|50.00", "||occ|20.00", "two|pair 1|all|10.00"]
    assert rows[4] == "||occ|–"  # NaN
    rows = ["|".join(row[:4]) for row in cells(means_table(flow_evaluation()[0]))]
    assert rows[:2] == ["g|all|pairs|3", "||pixels|3"]
