"""Data sets by name."""

from pathlib import Path
from typing import Any

import pytest

from deepmatching.data.datasets import open_dataset
from deepmatching.data.datasets.published import MINI_VAL
from deepmatching.errors import DeepMatchingError
from helpers.fake_datasets import write_chairs, write_kitti, write_pairs, write_sintel


def test_every_name_opens(tmp_path: Path) -> None:
    sintel = write_sintel(tmp_path / "sintel", dict.fromkeys(MINI_VAL, 2))
    chairs, kitti12 = write_chairs(tmp_path / "chairs", "1 2 1"), write_kitti(tmp_path / "k12")
    kitti15 = write_kitti(tmp_path / "k15", "image_2")
    manifest = write_pairs(tmp_path)
    for arguments, settings, name, count in (
        (("sintel-clean", sintel), {}, "sintel-clean", 5),
        (("sintel-final", sintel), {}, "sintel-final", 5),
        (("sintel", sintel), {"passes": "final"}, "sintel-final", 5),
        (("sintel", sintel), {}, "sintel-clean", 5),
        (("Sintel-Clean", sintel), {"passes": "clean"}, "sintel-clean", 5),
        (("sintelmini", sintel), {}, "sintelmini-val", 5),
        (("chairs", chairs), {}, "chairs-val", 1),
        (("chairs", chairs, "train"), {}, "chairs-train", 2),
        (("kitti2012", kitti12), {}, "kitti2012", 2),
        (("kitti2012-grey", kitti12), {}, "kitti2012-grey", 2),
        (("kitti2015", kitti15), {}, "kitti2015", 2),
        ((manifest,), {}, "pairs", 2),
        ((str(manifest),), {"masks": False}, "pairs", 2),
    ):
        dataset = open_dataset(*arguments, **settings)
        assert (dataset.name, len(dataset)) == (name, count)
        assert dataset[0].flow.shape[2] == 2


def test_kitti_2012_is_grey_or_in_colour_as_its_name_says(tmp_path: Path) -> None:
    for images in ("image_0", "colored_0"):
        write_kitti(tmp_path, images)
    for name, is_grey in (("kitti2012", True), ("kitti2012-grey", True), ("kitti2012-color", False)):
        dataset = open_dataset(name, tmp_path)
        red, _, blue = dataset[0].image0
        assert red.equal(blue) == is_grey, name
        assert {dataset.name, *(entry.group for entry in dataset.entries)} == {name}  # results do not mix


@pytest.mark.parametrize(
    ("arguments", "settings", "words"),
    [
        (("imagenet",), {}, "Unknown data set 'imagenet': use sintel-clean, .* or a .json manifest"),
        (("sintel-clean",), {}, "'sintel-clean' needs its folder: give --root"),
        (("chairs",), {}, "'chairs' needs its folder"),
        (("sintel-foggy", "here"), {}, "Unknown data set 'sintel-foggy'"),
        (("sintel-clean", "here"), {"passes": "final"}, "contradict"),
        (("sintel-clean", "here", "train"), {}, "'sintel-clean' has no splits: leave 'train' out"),
        (("kitti2012", "here"), {"passes": "final"}, "'kitti2012' has no passes"),
        (("kitti2012-colour", "here"), {}, "'kitti2012-colour': use .*kitti2012-grey, kitti2012-color"),
        (("sintelmini", "here"), {"split_file": "s.txt"}, "no split file"),
        (("pairs.json", "here"), {}, "needs no root"),
        (("pairs.json", None, "val"), {}, "The manifest 'pairs.json' has no splits"),
        (("pairs.json",), {}, "no manifest 'pairs.json'"),
    ],
)
def test_a_wrong_combination_is_one_sentence(arguments: Any, settings: Any, words: str) -> None:
    with pytest.raises(DeepMatchingError, match=words):
        open_dataset(*arguments, **settings)


def test_the_development_pairs_open(shared: Path) -> None:
    dataset = open_dataset(shared / "flow" / "manifest.json")
    assert len(dataset) == 51
    assert len({(entry.group, entry.name) for entry in dataset.entries}) == 51
    grey = dataset.only(["kitti2012"])[0]
    assert grey.occluded.any() and grey.flow.isnan().any() and not grey.flow[grey.occluded].isnan().any()
