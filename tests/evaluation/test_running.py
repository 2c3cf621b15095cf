"""Going through a data set, being interrupted, and going on."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from deepmatching import DeepMatcher
from deepmatching.datasets import KITTI2012, Manifest, Pair, open_dataset
from deepmatching.errors import DeepMatchingError, OutOfMemoryError
from deepmatching.evaluation import Evaluation, PairResult, Recorder, evaluate, evaluate_flow
from deepmatching.io.flow import write_flow
from deepmatching.matches import Matches
from helpers.fake_datasets import FLOW, SIZE, write_kitti, write_pairs


class Perfect:
    """Knows FLOW; counts its calls and can be interrupted at one of them."""

    def __init__(self, interrupt: int | None = None) -> None:
        self.calls, self.interrupt = 0, interrupt

    def match(self, image0: Tensor, image1: Tensor) -> Matches:
        if self.calls == self.interrupt:
            raise KeyboardInterrupt
        self.calls += 1
        points = np.stack(np.meshgrid(np.arange(4, SIZE[1], 8), np.arange(4, SIZE[0], 8)), axis=2).reshape(-1, 2)
        return Matches(points.astype(np.float32), (points + FLOW).astype(np.float32), np.ones(len(points)))

    def flow(self, image0: Tensor, image1: Tensor) -> np.ndarray:
        self.calls += 1
        return np.full((*SIZE, 2), (FLOW[0], FLOW[1] + 1), np.float32)


def blank(total: int, **settings: object) -> Evaluation:
    return Evaluation("matches", settings, total)


def test_every_pair_is_measured_once(tmp_path: Path) -> None:
    dataset, matcher = KITTI2012(write_kitti(tmp_path)), Perfect()
    seen: list[tuple[str, int]] = []

    def on_pair(pair: Pair, result: PairResult, shown: tuple[Matches, np.ndarray]) -> None:
        seen.append((pair.name, len(shown[0])))
        assert shown[1].shape == (*SIZE, 2)

    evaluation = evaluate(matcher, dataset, on_pair=on_pair)
    assert matcher.calls == 2 and [name for name, _ in seen] == ["000000", "000001"]
    assert evaluation.means("kitti2012")["acc@2"] == 100
    assert evaluation.pixel_sets("kitti2012") == ["all", "noc", "occ"]
    assert evaluation.means("kitti2012")["epe"] == 0


def test_a_flow_is_measured_the_same_way(tmp_path: Path) -> None:
    evaluation = evaluate_flow(Perfect().flow, KITTI2012(write_kitti(tmp_path)))
    assert evaluation.kind == "flow" and evaluation.means("kitti2012")["epe"] == pytest.approx(1.0)
    assert evaluation.pixel_means("kitti2012", "noc")["err@3"] == 0
    assert evaluation.pairs[0].figures["all"]["pixels"] == SIZE[1] * (SIZE[0] - 10)


def test_any_sequence_of_pairs_is_a_data_set() -> None:
    image = torch.zeros(3, *SIZE)
    pairs = [Pair(image, image, torch.tensor(FLOW).expand(*SIZE, 2), torch.zeros(SIZE, dtype=torch.bool), "p")]
    evaluation = evaluate(Perfect(), pairs)
    assert evaluation.means("data")["acc@2"] == 100 and evaluation.pixel_sets("data") == ["all"]
    with pytest.raises(DeepMatchingError, match="no pairs"):
        evaluate(Perfect(), [])


def test_an_interrupted_evaluation_goes_on_where_it_stopped(tmp_path: Path) -> None:
    dataset, path = Manifest(write_pairs(tmp_path, 5)), tmp_path / "e.json"
    with pytest.raises(KeyboardInterrupt), Recorder(blank(5), path) as recorder:
        evaluate(Perfect(interrupt=3), dataset, recorder)
    assert [pair.index for pair in Evaluation.load(path).pairs] == [0, 1, 2]
    matcher = Perfect()
    with Recorder(blank(5), path, resume=True) as recorder:
        evaluation = evaluate(matcher, dataset, recorder)
    assert matcher.calls == 2 and [pair.index for pair in evaluation.pairs] == [0, 1, 2, 3, 4]
    assert Evaluation.load(path).to_json() == evaluation.to_json()


def test_an_unfinished_evaluation_is_not_written_over(tmp_path: Path) -> None:
    dataset, path = Manifest(write_pairs(tmp_path, 2)), tmp_path / "e.json"
    with pytest.raises(KeyboardInterrupt), Recorder(blank(2), path) as recorder:
        evaluate(Perfect(interrupt=1), dataset, recorder)
    before = path.read_bytes()
    with pytest.raises(
        DeepMatchingError, match="holds 1 of the 2 pairs of this evaluation already; go on with --resume"
    ):
        Recorder(blank(2), path)
    with pytest.raises(DeepMatchingError, match="unfinished evaluation: its model is None, and now it is 'hog'"):
        Recorder(blank(2, model="hog"), path)
    assert path.read_bytes() == before


def test_a_finished_evaluation_is_made_anew(tmp_path: Path) -> None:
    dataset, path = Manifest(write_pairs(tmp_path, 2)), tmp_path / "e.json"
    for model in (None, None, "hog"):
        matcher = Perfect()
        with Recorder(blank(2, **({"model": model} if model else {})), path) as recorder:
            evaluate(matcher, dataset, recorder)
        assert matcher.calls == 2 and Evaluation.load(path).settings.get("model") == model


@pytest.mark.parametrize("resume", [False, True])
def test_a_file_that_is_no_evaluation_is_not_written_over(tmp_path: Path, resume: bool) -> None:
    path = tmp_path / "notes.txt"
    path.write_text("my notes")
    with pytest.raises(DeepMatchingError, match=r"notes.txt' is not an evaluation"):
        Recorder(blank(2), path, resume)
    assert path.read_text() == "my notes"


def test_a_file_that_holds_nothing_is_written_anew(tmp_path: Path) -> None:
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
    with Recorder(blank(3), path) as recorder:
        evaluation = evaluate(matcher, dataset, recorder)
    assert matcher.calls == 2 and [pair.index for pair in evaluation.pairs] == [0, 2]
    assert Evaluation.load(path).is_finished and Evaluation.load(path).unknown == 1
    Recorder(blank(3, model="other"), path)  # as it is finished, it may be replaced
    write_flow(tmp_path / "1.flo", np.full((*SIZE, 2), FLOW, np.float32))
    with Recorder(blank(3), path, resume=True) as recorder:
        assert len(evaluate(matcher, dataset, recorder).pairs) == matcher.calls == 3
    assert Evaluation.load(path).is_finished and Evaluation.load(path).unknown == 0


def test_a_data_set_without_known_truth_is_one_sentence_and_no_file(tmp_path: Path) -> None:
    dataset, path = Manifest(write_pairs(tmp_path, 2)), tmp_path / "e.json"
    for number in range(2):
        write_flow(tmp_path / f"{number}.flo", np.full((*SIZE, 2), np.nan, np.float32))
    with (
        pytest.raises(DeepMatchingError, match="No pair has a pixel with known ground truth"),
        Recorder(blank(2), path) as recorder,
    ):
        evaluate(Perfect(), dataset, recorder)
    assert not path.exists()


@pytest.mark.parametrize("kind", [DeepMatchingError, OutOfMemoryError])
def test_what_is_wrong_with_a_pair_is_said_with_its_name(tmp_path: Path, kind: type[DeepMatchingError]) -> None:
    dataset = Manifest(write_pairs(tmp_path, 3, dataset="walls"))

    def fails_at_the_second(image0: Tensor, image1: Tensor) -> np.ndarray:
        if torch.equal(image0, dataset[1].image0):
            raise kind("The images are odd; make them even.")
        return Perfect().flow(image0, image1)

    with pytest.raises(kind) as raised:
        evaluate_flow(fails_at_the_second, dataset)
    assert str(raised.value) == "Pair 2 of 3 ('1_a-1_b' of walls): The images are odd; make them even."
    with pytest.raises(kind, match=r"^Pair 2 of 3: The images are odd"):
        evaluate_flow(fails_at_the_second, [dataset[index] for index in range(3)])


def test_a_pair_that_cannot_be_read_keeps_those_before_it(tmp_path: Path) -> None:
    dataset, path = Manifest(write_pairs(tmp_path, 3)), tmp_path / "e.json"
    (tmp_path / "1.flo").write_bytes(b"PIEH")
    with pytest.raises(DeepMatchingError, match=r"^Pair 2 of 3 .*1\.flo"), Recorder(blank(3), path) as recorder:
        evaluate(Perfect(), dataset, recorder)
    assert len(Evaluation.load(path).pairs) == 1


@pytest.mark.parametrize(
    ("other", "words"),
    [
        (Evaluation("matches", {"model": "vgg", "radius": 80}, 3), "its model is 'hog', and now it is 'vgg'"),
        (Evaluation("matches", {"model": "hog"}, 3), "its radius is 80, and now it is None"),
        (Evaluation("flow", {"model": "hog", "radius": 80}, 3), "its kind is 'matches'"),
        (Evaluation("matches", {"model": "hog", "radius": 80}, 4), "its pairs is 3, and now it is 4"),
    ],
)
def test_another_evaluation_is_not_continued(tmp_path: Path, other: Evaluation, words: str) -> None:
    Evaluation("matches", {"model": "hog", "radius": 80}, 3).save(tmp_path / "e.json")
    Recorder(Evaluation("matches", {"model": "hog", "radius": 80}, 3), tmp_path / "e.json", resume=True)
    with pytest.raises(DeepMatchingError, match=f"e.json' cannot be resumed: {words}"):
        Recorder(other, tmp_path / "e.json", resume=True)
    assert Evaluation.load(tmp_path / "e.json").settings == {"model": "hog", "radius": 80}


def test_a_file_that_cannot_be_written_is_refused_before_the_work(tmp_path: Path) -> None:
    with pytest.raises(DeepMatchingError, match="no folder"):
        Recorder(blank(3), tmp_path / "none" / "e.json")


def test_the_published_figures_of_hog(shared: Path) -> None:
    """Without masks, as they were measured: every pixel of the .flo files counts."""
    dataset = open_dataset(shared / "flow" / "manifest.json", masks=False).only(["sintel_clean"])
    means = evaluate(DeepMatcher.from_pretrained("hog", radius=80, device="cpu"), dataset).means("sintel_clean")
    assert [round(means[name], 2) for name in ("acc@2", "acc@5", "acc@10")] == [81.59, 90.48, 92.68]
    assert round(means["epe"], 2) == 2.04
