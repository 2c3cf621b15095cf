"""The validation pairs of a config, and the warning about pairs that are also trained on."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from deepmatching.errors import DeepMatchingError
from deepmatching.evaluation import match_metrics
from deepmatching.matches import Matches
from deepmatching.settings import RECIPROCAL_IN_PAPER
from deepmatching.training import read_config, train
from deepmatching.training import validation as validation_module
from deepmatching.training.config import Config
from deepmatching.training.data import TrainingData
from deepmatching.training.model import build_model
from deepmatching.training.processes import World
from deepmatching.training.validation import Validation
from helpers.fake_datasets import write_chairs, write_kitti, write_pairs, write_sintel

Configs = Callable[..., Config]


def validation_of(data: dict[str, object], validation: dict[str, object]) -> Validation:
    config = Config(**{"data": {"workers": 0, **data}, "validation": validation})
    return Validation(config, TrainingData(config.data, config.seed, World()), World())


def test_validation_pairs_that_are_trained_on_are_counted(tmp_path: Path) -> None:
    sintel = write_sintel(tmp_path / "S", {"bandage_1": 12, "cave_4": 2, "bandage_2": 2, "shaman_3": 2, "temple_2": 2})
    trained = {"train": "sintel-clean", "root": str(sintel)}
    mini = {"data": "sintelmini", "root": f"{sintel}/../S/training"}
    assert validation_of(trained, mini).warning.startswith("6 of the 6 validation pairs are also training pairs")
    assert validation_of(trained, {**mini, "limit": 2}).warning.startswith("2 of the 2 ")
    assert validation_of({**trained, "train": "sintel-final"}, mini).warning == ""
    train = write_kitti(tmp_path / "K")
    same = validation_of({"train": "kitti2012", "root": str(train)}, {"data": "kitti2012"})
    assert same.warning.startswith("2 of the 2 ")
    first, second = write_pairs(tmp_path, 3), write_pairs(tmp_path / "b", 2)
    (tmp_path / "other.json").write_text(json.dumps(json.loads(first.read_text())[2:]))
    several = validation_of({"train": str(tmp_path / "other.json")}, {"data": [str(second), str(first)]})
    assert several.warning.startswith("1 of the 5 ")
    for data, validation in (({"overfit": 1}, {"data": str(first)}), ({}, {"data": "train"})):  # as it was asked
        assert validation_of({"train": str(first), **data}, validation).warning == ""


def test_matches_are_verified_and_ranked_as_asked(config_of: Configs, monkeypatch: pytest.MonkeyPatch) -> None:
    used = []

    def measure(matches: Matches, truth: object, *, rank: str) -> Any:
        used.append((len(matches), rank))
        return match_metrics(matches, truth, rank=rank)  # type: ignore[arg-type]

    monkeypatch.setattr(validation_module, "match_metrics", measure)
    for changes in (("validation.reciprocal=none", "validation.rank=score"), ("validation.reciprocal=exact",)):
        config = config_of(*changes, "validation.limit=1")
        pairs = Validation(config, TrainingData(config.data, 0, World()), World())
        pairs(build_model(config.model, config.loss).network)
    assert [rank for _, rank in used] == ["score", "confidence"]
    assert used[0][0] > used[1][0]
    in_paper = read_config("paper", ["data.root=x"]).validation
    assert (in_paper.reciprocal, in_paper.rank) == (RECIPROCAL_IN_PAPER, "score")  # as in Table 1


def test_without_a_root_it_is_that_of_the_same_training_data(tmp_path: Path) -> None:
    chairs, kitti = write_chairs(tmp_path / "C", "1 2 1"), write_kitti(tmp_path / "K", count=3)
    pairs = write_pairs(tmp_path, 2)
    data = {"train": ["chairs", "kitti2012"], "root": [str(chairs), str(kitti)]}
    assert len(validation_of(data, {"data": ["kitti2012", str(pairs), "chairs"]}).pairs) == 3 + 2 + 1
    with pytest.raises(DeepMatchingError, match=r"folder of 'kitti2015'.*chairs, kitti2012\): set validation\.root"):
        validation_of(data, {"data": "kitti2015"})


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        (("data.train=chairs",), r"data\.train=chairs: it needs the folder .*; set data\.root=DIR"),
        (("data.train=chairs", "data.root=no"), r"data\.train=chairs: there is no folder 'no'; set data\.root"),
        (
            ("validation.data=sintelmini",),
            r"validation\.data=sintelmini: it needs the folder .*; set validation\.root=DIR",
        ),
        (("validation.data=sintel-final", "validation.root=no"), r"no folder 'no'; set validation\.root"),
    ],
)
def test_a_missing_folder_is_named_with_its_setting_before_anything_is_written(
    config_of: Configs, tmp_path: Path, changes: tuple[str, ...], says: str
) -> None:
    """Even before weights are downloaded."""
    config = config_of(*changes, "model.descriptor=vgg", "model.settings={}", "model.init=download")
    with pytest.raises(DeepMatchingError, match=says):
        train(config, torch.device("cpu"))
    assert not (tmp_path / "run").exists()


def test_validation_data_outside_the_training_folder_needs_a_root(config_of: Configs, tmp_path: Path) -> None:
    """As in ``train paper data.train=chairs data.root=FlyingChairs``, which validates on SintelMini."""
    chairs = write_chairs(tmp_path / "chairs")
    config = config_of("data.train=chairs", f"data.root={chairs}", "validation.data=sintelmini")
    with pytest.raises(DeepMatchingError, match=r"no folder .*sintelmini, looked for in data\.root: set "):
        train(config, torch.device("cpu"))
    config = config_of("data.train=chairs", f"data.root={chairs}", "validation.data=", f"out={tmp_path / 'other'}")
    assert train(config, torch.device("cpu")).progress.step == 6
