"""The published layouts, and the errors about missing files and folders."""

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from deepmatching.data.datasets import KITTI2012, KITTI2015, FilePairs, FlyingChairs, Sintel, SintelMini
from deepmatching.data.datasets.published import MINI_TRAIN, MINI_VAL
from deepmatching.errors import DeepMatchingError
from helpers.fake_datasets import touch_sintel, write_chairs, write_kitti, write_sintel


def names(dataset: FilePairs) -> list[str]:
    return [entry.name for entry in dataset.entries]


def test_sintel_has_the_consecutive_frames_of_all_scenes(tmp_path: Path) -> None:
    write_sintel(tmp_path, {"cave_2": 2, "alley_1": 3})
    for root in (tmp_path, tmp_path / "training", str(tmp_path)):
        dataset = Sintel(root)
        assert names(dataset) == ["alley_1/frame_0001", "alley_1/frame_0002", "cave_2/frame_0001"]
        assert dataset.name == "sintel-clean"
    assert dataset.entries[1].image1.name == "frame_0003.png"
    pair = dataset[0]
    assert pair.occluded[:, :8].all() and not pair.occluded[:, 8:].any()
    assert pair.flow[-3:].isnan().all() and not pair.flow[:-3].isnan().any()


def test_sintels_passes_scenes_and_masks(tmp_path: Path) -> None:
    write_sintel(tmp_path, {"cave_2": 2, "alley_1": 3})
    final = Sintel(tmp_path, "final", scenes=["cave_2"])
    assert names(final) == ["cave_2/frame_0001"] and final.name == "sintel-final"
    assert final[0].image0.mean() < 0.6 * Sintel(tmp_path, scenes=["cave_2"])[0].image0.mean()
    plain = Sintel(tmp_path, masks=False)
    assert not plain[0].flow.isnan().any() and not plain.entries[0].knows_occlusion
    shutil.rmtree(tmp_path / "training" / "invalid")
    assert len(Sintel(tmp_path, masks=False)) == 3
    with pytest.raises(DeepMatchingError, match=r"invalid/alley_1/frame_0001.png' \(and 2 more\).*--no-masks"):
        Sintel(tmp_path)
    with pytest.raises(DeepMatchingError, match="must be 'clean' or 'final'"):
        Sintel(tmp_path, "dirty")


@pytest.mark.parametrize(
    "gone",
    ["clean/alley_1/frame_0002.png", "clean/alley_1/frame_0003.png", "flow/alley_1/frame_0002.flo"],
)
def test_a_missing_file_of_sintel_is_named(tmp_path: Path, gone: str) -> None:
    write_sintel(tmp_path, {"alley_1": 3})
    (tmp_path / "training" / gone).unlink()
    with pytest.raises(DeepMatchingError, match=gone) as raised:
        Sintel(tmp_path)
    assert "training/flow/SCENE/frame_NNNN.flo" in str(raised.value)


def test_sintel_mini_has_the_papers_313_and_25_pairs(tmp_path: Path) -> None:
    touch_sintel(tmp_path, {scene: 20 if scene == "ambush_6" else 50 for scene in MINI_TRAIN + MINI_VAL})
    train, val = SintelMini(tmp_path, "train"), SintelMini(tmp_path, "val")
    assert len(train) == 313 and len(val) == 25
    assert len(MINI_TRAIN) == 7 and len(MINI_VAL) == 5
    places = [{scene.split("_")[0] for scene in scenes} for scenes in (MINI_TRAIN, MINI_VAL)]
    assert not places[0] & places[1]  # no place of the film is in both sets
    assert names(val)[:5] == [f"bandage_1/frame_00{n:02d}" for n in (1, 11, 21, 31, 41)]
    with pytest.raises(DeepMatchingError, match="must be 'train' or 'val'"):
        SintelMini(tmp_path, "test")


def test_chairs_follow_the_split_file(tmp_path: Path) -> None:
    write_chairs(tmp_path, "1 2 1 2 1")
    for root in (tmp_path, tmp_path / "data"):
        assert names(FlyingChairs(root, "train")) == ["00001", "00003", "00005"]
        assert names(FlyingChairs(root, "val")) == ["00002", "00004"]
        assert len(FlyingChairs(root, "all")) == 5
    assert FlyingChairs(tmp_path, "val").name == "chairs-val"
    assert FlyingChairs(tmp_path, "val")[0].flow[0, 0].tolist() == [6.0, -4.0]


def test_the_split_file_may_lie_elsewhere_or_be_missing(tmp_path: Path) -> None:
    write_chairs(tmp_path / "chairs", "1 2")
    (tmp_path / "chairs" / "FlyingChairs_train_val.txt").rename(tmp_path / "split.txt")
    assert names(FlyingChairs(tmp_path / "chairs", "val", tmp_path / "split.txt")) == ["00002"]
    assert len(FlyingChairs(tmp_path / "chairs", "all")) == 2
    with pytest.raises(DeepMatchingError, match=r"chairs/FlyingChairs_train_val.txt'.*--split all"):
        FlyingChairs(tmp_path / "chairs", "train")
    with pytest.raises(DeepMatchingError, match=r"none\.txt"):
        FlyingChairs(tmp_path / "chairs", "train", tmp_path / "none.txt")


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("1\n3\n", "Line 2 of the split file .* is '3'"),
        ("1\n", "has 1 lines, none for pair 00002"),
        ("1\n1\n", "no pairs for 'val'; use --split train or all"),
        ("1\n2\n2\n", "00003_img1.ppm"),  # a pair that the file has and the folder lacks
    ],
)
def test_a_bad_split_file_is_one_sentence(tmp_path: Path, content: str, words: str) -> None:
    write_chairs(tmp_path, "1 2")
    (tmp_path / "FlyingChairs_train_val.txt").write_text(content)
    with pytest.raises(DeepMatchingError, match=words):
        FlyingChairs(tmp_path, "val")


def test_chairs_may_have_masks_and_then_all_must(tmp_path: Path) -> None:
    write_chairs(tmp_path, "2 2", masks=True)
    pair = FlyingChairs(tmp_path)[0]
    assert pair.occluded[:5].all() and not pair.occluded[5:].any()
    (tmp_path / "data" / "00002_occ.png").unlink()
    assert len(FlyingChairs(tmp_path, masks=False)) == 2
    with pytest.raises(DeepMatchingError, match=r"00002_occ.png.*--no-masks"):
        FlyingChairs(tmp_path)


def test_kitti_2012_is_grey_or_coloured(tmp_path: Path) -> None:
    write_kitti(tmp_path)
    for root in (tmp_path, tmp_path / "training"):
        assert names(KITTI2012(root)) == ["000000", "000001"]
    pair = KITTI2012(tmp_path)[0]
    assert pair.image0.shape[0] == 3 and (pair.image0[0] == pair.image0[1]).all()
    assert pair.flow[:10].isnan().all() and not pair.flow[10:].isnan().any()
    assert pair.occluded[10:15].all() and not pair.occluded[:10].any() and not pair.occluded[15:].any()
    with pytest.raises(DeepMatchingError, match=r"no folder '.*colored_0'"):
        KITTI2012(tmp_path, color=True)
    write_kitti(tmp_path, "colored_0")
    assert KITTI2012(tmp_path).entries[0].image0.parent.name == "image_0"
    assert KITTI2012(tmp_path, color=True).entries[0].image0.parent.name == "colored_0"
    shutil.rmtree(tmp_path / "training" / "image_0")
    assert KITTI2012(tmp_path).entries[0].image0.parent.name == "colored_0"


def test_kitti_2015(tmp_path: Path) -> None:
    write_kitti(tmp_path, "image_2")
    dataset = KITTI2015(tmp_path)
    assert dataset.name == "kitti2015" and len(dataset) == 2 and dataset.entries[0].knows_occlusion
    (tmp_path / "training" / "image_2" / "000001_11.png").unlink()
    with pytest.raises(DeepMatchingError, match=r"KITTI 2015 is incomplete.*000001_11.png"):
        KITTI2015(tmp_path)


@pytest.mark.parametrize("opener", [Sintel, SintelMini, FlyingChairs, KITTI2012, KITTI2015])
def test_a_root_that_is_missing_or_empty_is_one_sentence(tmp_path: Path, opener: Callable[[Path], FilePairs]) -> None:
    with pytest.raises(DeepMatchingError, match=r"no folder '.*nowhere'; expected below its root"):
        opener(tmp_path / "nowhere")
    with pytest.raises(DeepMatchingError, match=f"no folder '{tmp_path}/(training|data)'"):
        opener(tmp_path)


def test_folders_without_pairs_are_one_sentence(tmp_path: Path) -> None:
    for folder in ("training/clean", "training/image_0", "training/flow_occ", "data"):
        (tmp_path / folder).mkdir(parents=True)
    with pytest.raises(DeepMatchingError, match=r"no pairs of frames in '.*clean'"):
        Sintel(tmp_path)
    with pytest.raises(DeepMatchingError, match=r"no folder '.*clean/bandage_1'"):
        SintelMini(tmp_path)
    with pytest.raises(DeepMatchingError, match=r"no pairs in '.*data'"):
        FlyingChairs(tmp_path)
    with pytest.raises(DeepMatchingError, match=r"no files NNNNNN_10.png in '.*flow_occ'"):
        KITTI2012(tmp_path)


def test_with_a_limit_part_of_sintel_is_enough(tmp_path: Path) -> None:
    write_sintel(tmp_path, {MINI_VAL[1]: 12, MINI_VAL[2]: 3})
    training = tmp_path / "training"
    (training / "clean" / MINI_VAL[0]).mkdir()  # without its flow
    (training / "clean" / MINI_VAL[2] / "frame_0001.png").unlink()
    for split in (SintelMini, Sintel):
        with pytest.raises(DeepMatchingError, match="MPI Sintel is incomplete"):
            split(tmp_path)
    one = SintelMini(tmp_path, limit=1)
    assert names(one) == [f"{MINI_VAL[1]}/frame_0001"] and one.incomplete == 1
    assert one[0].flow.shape == (64, 80, 2)
    assert names(SintelMini(tmp_path, limit=9)) == [f"{MINI_VAL[1]}/frame_00{n}" for n in ("01", "11")]
    shutil.rmtree(training / "occlusions")  # no pair is complete
    with pytest.raises(DeepMatchingError, match=r"occlusions/.*--no-masks"):
        Sintel(tmp_path, limit=1)
    assert len(Sintel(tmp_path, masks=False, limit=2)) == 2


def test_with_a_limit_part_of_kitti_and_of_chairs_is_enough(tmp_path: Path) -> None:
    kitti, chairs = write_kitti(tmp_path / "kitti"), write_chairs(tmp_path / "chairs")
    complete = names(KITTI2012(kitti)), names(FlyingChairs(chairs, "all"))
    next((kitti / "training").glob("*/*_11.png")).unlink()
    next(chairs.rglob("*_img2.ppm")).unlink()
    partial = KITTI2012(kitti, limit=99), FlyingChairs(chairs, "all", limit=99)
    for found, everything in zip(partial, complete, strict=True):
        assert found.incomplete == 1 and set(names(found)) < set(everything)
        assert len(found) == len(everything) - 1


def test_without_missing_files_a_limit_takes_the_same_pairs_as_thinning(tmp_path: Path) -> None:
    write_sintel(tmp_path, {"alley_1": 8})
    for limit in (1, 2, 3, 7, 8):
        assert names(Sintel(tmp_path, limit=limit)) == names(Sintel(tmp_path).thinned(limit))
