"""The file of an evaluation: interrupted, resumed, never overwritten by accident."""

from pathlib import Path

import numpy as np
import pytest

from deepmatching.data.datasets import Manifest
from deepmatching.errors import DeepMatchingError
from deepmatching.evaluation import Evaluation, Recorder, evaluate
from deepmatching.io.flow import write_flow
from helpers.fake_datasets import FLOW, SIZE, write_pairs
from helpers.fake_methods import Perfect


def blank(total: int, **settings: object) -> Evaluation:
    return Evaluation("matches", settings, total)


def test_an_interrupted_evaluation_goes_on_where_it_stopped(tmp_path: Path) -> None:
    dataset, path = Manifest(write_pairs(tmp_path, 5)), tmp_path / "e.json"
    lines: list[str] = []
    with pytest.raises(KeyboardInterrupt), Recorder(blank(5), path, report=lines.append) as recorder:
        evaluate(Perfect(interrupt=3), dataset, recorder)
    assert lines == [f"3 of 5 pairs are kept in {path}: go on with --resume"]
    assert [pair.index for pair in Evaluation.load(path).pairs] == [0, 1, 2]
    matcher = Perfect()
    with Recorder(blank(5), path, resume=True) as recorder:
        evaluation = evaluate(matcher, dataset, recorder)
    assert matcher.calls == 2 and [pair.index for pair in evaluation.pairs] == [0, 1, 2, 3, 4]
    assert Evaluation.load(path).to_json() == evaluation.to_json()


def test_an_unfinished_evaluation_is_not_overwritten(tmp_path: Path) -> None:
    dataset, path = Manifest(write_pairs(tmp_path, 2)), tmp_path / "e.json"
    with pytest.raises(KeyboardInterrupt), Recorder(blank(2), path) as recorder:
        evaluate(Perfect(interrupt=1), dataset, recorder)
    before = path.read_bytes()
    for other, words in ((blank(2), "holds 1 of the 2 pairs .* --resume"), (blank(2, model="hog"), 'now it is "hog"')):
        with pytest.raises(DeepMatchingError, match=words):
            Recorder(other, path)
    assert path.read_bytes() == before


def test_the_same_model_by_another_path_goes_on(tmp_path: Path) -> None:
    dataset, path = Manifest(write_pairs(tmp_path, 2)), tmp_path / "e.json"
    with pytest.raises(KeyboardInterrupt), Recorder(blank(2, model="a/m.safetensors", sha256="5e"), path) as recorder:
        evaluate(Perfect(interrupt=1), dataset, recorder)
    with Recorder(blank(2, model="/b/m.safetensors", sha256="5e"), path, resume=True) as recorder:
        assert len(recorder.done) == 1
    with pytest.raises(DeepMatchingError, match="a/m"):
        Recorder(blank(2, model="/b/m.safetensors", sha256="6f"), path, resume=True)


def test_a_finished_evaluation_is_replaced(tmp_path: Path) -> None:
    dataset, path = Manifest(write_pairs(tmp_path, 2)), tmp_path / "e.json"
    for model in (None, None, "hog"):
        matcher = Perfect()
        with Recorder(blank(2, **({"model": model} if model else {})), path) as recorder:
            evaluate(matcher, dataset, recorder)
        assert matcher.calls == 2 and Evaluation.load(path).settings.get("model") == model


@pytest.mark.parametrize("resume", [False, True])
def test_a_file_that_is_not_an_evaluation_is_not_overwritten(tmp_path: Path, resume: bool) -> None:
    path = tmp_path / "notes.txt"
    path.write_text("my notes")
    with pytest.raises(DeepMatchingError, match=r"notes.txt' is not an evaluation"):
        Recorder(blank(2), path, resume)
    assert path.read_text() == "my notes"


def test_a_file_without_results_is_replaced(tmp_path: Path) -> None:
    dataset = Manifest(write_pairs(tmp_path, 1))
    (tmp_path / "nothing.json").touch()
    blank(7, model="other").save(tmp_path / "blank.json")
    for name in ("nothing.json", "blank.json"):
        with Recorder(blank(1), tmp_path / name) as recorder:
            evaluate(Perfect(), dataset, recorder)
        assert len(Evaluation.load(tmp_path / name).pairs) == 1


def test_pairs_without_known_truth_are_left_out_until_it_is_known(tmp_path: Path) -> None:
    dataset, path = Manifest(write_pairs(tmp_path, 3)), tmp_path / "e.json"
    write_flow(tmp_path / "1.flo", np.full((*SIZE, 2), np.nan, np.float32))
    matcher = Perfect()
    lines: list[str] = []
    with Recorder(blank(3), path, report=lines.append) as recorder:
        evaluation = evaluate(matcher, dataset, recorder)
    assert lines == ["left out 1 of 3 pairs, whose ground truth is unknown: 1_a-1_b"]
    assert matcher.calls == 2 and [pair.index for pair in evaluation.pairs] == [0, 2]
    assert Evaluation.load(path).is_finished and Evaluation.load(path).unknown == 1
    Recorder(blank(3, model="other"), path)  # a finished one may be replaced
    write_flow(tmp_path / "1.flo", np.full((*SIZE, 2), FLOW, np.float32))
    with Recorder(blank(3), path, resume=True) as recorder:
        assert len(evaluate(matcher, dataset, recorder).pairs) == matcher.calls == 3
    assert Evaluation.load(path).is_finished and Evaluation.load(path).unknown == 0


def test_a_data_set_without_known_truth_is_an_error_and_leaves_no_file(tmp_path: Path) -> None:
    dataset, path = Manifest(write_pairs(tmp_path, 2)), tmp_path / "e.json"
    for number in range(2):
        write_flow(tmp_path / f"{number}.flo", np.full((*SIZE, 2), np.nan, np.float32))
    with pytest.raises(DeepMatchingError, match="No pair has a pixel"), Recorder(blank(2), path) as recorder:
        evaluate(Perfect(), dataset, recorder)
    assert not path.exists()
    with pytest.raises(DeepMatchingError, match="no folder"):  # before the work
        Recorder(blank(3), tmp_path / "none" / "e.json")


@pytest.mark.parametrize(
    ("other", "words"),
    [
        (blank(3, model="vgg", radius=80), 'model "hog", and now it is "vgg"'),
        (blank(3, model="hog"), "radius 80, and now it is not set"),
        (Evaluation("flow", {"model": "hog", "radius": 80}, 3), 'kind "matches"'),
        (blank(4, model="hog", radius=80), "pairs 3, and now it is 4"),
    ],
)
def test_an_evaluation_with_other_settings_is_not_resumed(tmp_path: Path, other: Evaluation, words: str) -> None:
    blank(3, model="hog", radius=80).save(tmp_path / "e.json")
    Recorder(blank(3, model="hog", radius=80), tmp_path / "e.json", resume=True)
    with pytest.raises(DeepMatchingError, match=words):
        Recorder(other, tmp_path / "e.json", resume=True)
    assert Evaluation.load(tmp_path / "e.json").settings == {"model": "hog", "radius": 80}
