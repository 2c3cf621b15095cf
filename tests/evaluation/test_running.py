"""Measuring every pair of a data set."""

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from deepmatching import DeepMatcher
from deepmatching.data.datasets import KITTI2012, Manifest, Pair, open_dataset
from deepmatching.errors import DeepMatchingError, OutOfMemoryError
from deepmatching.evaluation import Evaluation, PairResult, Recorder, evaluate, evaluate_flow
from deepmatching.flow import FlowResult
from deepmatching.matches import Matches
from helpers.fake_datasets import FLOW, SIZE, write_kitti, write_pairs
from helpers.fake_methods import Perfect


def test_every_pair_is_measured_once(tmp_path: Path) -> None:
    dataset, matcher = KITTI2012(write_kitti(tmp_path)), Perfect()
    seen: list[tuple[str, int]] = []

    def on_pair(pair: Pair, result: PairResult, shown: tuple[Matches, np.ndarray]) -> None:
        seen.append((pair.name, len(shown[0])))
        assert shown[1].shape == (*SIZE, 2)

    evaluation = evaluate(matcher, dataset, on_pair=on_pair)
    assert matcher.calls == 2 and [name for name, _ in seen] == ["000000", "000001"]
    assert evaluation.pixel_sets("kitti2012") == ["all", "noc", "occ"]
    assert evaluation.means("kitti2012")["acc@2"] == 100 and evaluation.means("kitti2012")["epe"] == 0
    evaluation = evaluate_flow(Perfect().flow, dataset)
    assert evaluation.kind == "flow" and evaluation.means("kitti2012")["epe"] == pytest.approx(1.0)
    assert evaluation.pixel_means("kitti2012", "noc")["err@3"] == 0
    assert evaluation.pairs[0].metrics["all"]["pixels"] == SIZE[1] * (SIZE[0] - 10)


def test_the_occlusion_that_a_flow_states_is_measured(tmp_path: Path) -> None:
    dataset = KITTI2012(write_kitti(tmp_path))

    def states_the_truth(image0: Tensor, image1: Tensor) -> FlowResult:
        index = next(n for n in range(len(dataset)) if torch.equal(dataset[n].image0, image0))
        ones = np.ones(SIZE, np.float32)
        return FlowResult(Perfect().flow(image0, image1), ones, occlusion=dataset[index].occluded.numpy() * ones)

    evaluation = evaluate_flow(states_the_truth, dataset)
    assert evaluation.means("kitti2012")["occlusion"] == 100
    assert "occlusion" not in evaluation.pixel_means("kitti2012")
    again = Evaluation.from_json(evaluation.to_json())
    assert again.means("kitti2012")["occlusion"] == 100


def test_warming_up_is_one_more_call_and_none_if_nothing_is_left(tmp_path: Path) -> None:
    dataset, matcher = Manifest(write_pairs(tmp_path, 2)), Perfect()
    recorder = Recorder(Evaluation("matches", total=2))
    assert len(evaluate(matcher, dataset, recorder, warm_up=True).pairs) == 2 and matcher.calls == 3
    evaluate(matcher, dataset, recorder, warm_up=True)
    assert matcher.calls == 3


def test_any_sequence_of_pairs_is_a_data_set() -> None:
    image = torch.zeros(3, *SIZE)
    pairs = [Pair(image, image, torch.tensor(FLOW).expand(*SIZE, 2), torch.zeros(SIZE, dtype=torch.bool), "p")]
    evaluation = evaluate(Perfect(), pairs)
    assert evaluation.means("data")["acc@2"] == 100 and evaluation.pixel_sets("data") == ["all"]
    with pytest.raises(DeepMatchingError, match="no pairs"):
        evaluate(Perfect(), [])


@pytest.mark.parametrize("kind", [DeepMatchingError, OutOfMemoryError])
def test_an_error_names_its_pair(tmp_path: Path, kind: type[DeepMatchingError]) -> None:
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
    empty = Evaluation("matches", total=3)
    with pytest.raises(DeepMatchingError, match=r"^Pair 2 of 3 .*1\.flo"), Recorder(empty, path) as recorder:
        evaluate(Perfect(), dataset, recorder)
    assert len(Evaluation.load(path).pairs) == 1


@pytest.mark.slow
def test_hog_reaches_its_published_accuracy(shared: Path) -> None:
    """Without masks, as they were measured: every pixel of the .flo files counts."""
    dataset = open_dataset(shared / "flow" / "manifest.json", masks=False).only(["sintel_clean"])
    means = evaluate(DeepMatcher.from_pretrained("hog", radius=80, device="cpu"), dataset).means("sintel_clean")
    assert [round(means[name], 2) for name in ("acc@2", "acc@5", "acc@10")] == [81.59, 90.48, 92.68]
    assert round(means["epe"], 2) == 2.04
