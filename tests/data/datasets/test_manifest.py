"""Lists of the user's own pairs."""

import json
from pathlib import Path

import numpy as np
import pytest

from deepmatching.data.datasets import Manifest
from deepmatching.data.datasets.pairs import read_points
from deepmatching.errors import DeepMatchingError
from helpers.fake_datasets import mask, write_image, write_manifest, write_pairs


def test_paths_are_relative_to_the_manifest_and_groups_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_pairs(tmp_path, 2, dataset="mine", scene="street", note="ignored")
    monkeypatch.chdir(tmp_path.parent)
    dataset = Manifest(Path(tmp_path.name) / "pairs.json")
    assert [entry.group for entry in dataset.entries] == ["mine", "mine"]
    assert [entry.name for entry in dataset.entries] == ["street/0_a-0_b", "street/1_a-1_b"]
    assert dataset[1].flow[0, 0].tolist() == [6.0, -4.0]


def test_names_are_those_of_the_files_and_distinct_within_a_group(tmp_path: Path) -> None:
    dataset = Manifest(write_pairs(tmp_path))
    assert [(entry.group, entry.name) for entry in dataset.entries] == [("pairs", "0_a-0_b"), ("pairs", "1_a-1_b")]
    entry = json.loads(write_pairs(tmp_path, 1).read_text())[0]
    path = write_manifest(tmp_path, [{**entry, "scene": "s"}, {**entry, "scene": "t"}, {**entry, "scene": "t"}])
    assert [e.name for e in Manifest(path).entries] == ["s", "t/0_a-0_b", "t/0_a-0_b (2)"]


def test_homographies_and_masks(tmp_path: Path) -> None:
    entry = json.loads(write_pairs(tmp_path, 1).read_text())[0]
    np.savetxt(tmp_path / "h.txt", np.array([[1, 0, 6], [0, 1, -4], [0, 0, 1.0]]))
    write_image(tmp_path / "occ.png", mask(slice(7)))
    write_image(tmp_path / "invalid.png", mask(slice(-2, None)) // 255)  # 1 means the same as 255
    with_flow = {**entry, "occ": "occ.png", "invalid": "invalid.png", "flow_noc": "0.flo"}
    del entry["flow"]
    path = write_manifest(tmp_path, [{**entry, "homography": "h.txt"}, with_flow])
    dataset = Manifest(path)
    assert dataset[0].flow[20, 20].tolist() == [6.0, -4.0]
    masked = dataset[1]
    assert masked.occluded[:7].all() and not masked.occluded[7:].any()
    assert masked.flow[-2:].isnan().all() and not masked.flow[:-2].isnan().any()
    assert [e.knows_occlusion for e in dataset.entries] == [False, True]
    plain = Manifest(path, masks=False)
    assert not plain[1].occluded.any() and not plain[1].flow.isnan().any()


def test_photographs_have_points_or_a_pose_and_no_known_motion(tmp_path: Path) -> None:
    entry = json.loads(write_pairs(tmp_path, 1).read_text())[0]
    images = {name: entry[name] for name in ("image0", "image1")}
    (tmp_path / "p.txt").write_text("1 2 3 4\n5 6 7 8\n")
    pose = {"K0": [[2, 0, 1], [0, 2, 1], [0, 0, 1]], "K1": np.eye(3).tolist(), "T_0to1": np.eye(4).tolist()}
    dataset = Manifest(write_manifest(tmp_path, [{**images, "points": "p.txt"}, {**images, "pose": pose}, entry]))
    assert dataset.with_motion().entries == dataset.entries[2:]
    marked, posed = dataset.entries[:2]
    assert marked.points is not None
    assert [ends.tolist() for ends in read_points(marked.points)] == [[[1, 2], [5, 6]], [[3, 4], [7, 8]]]
    assert posed.pose is not None and posed.pose.K0[0, 0] == 2 and posed.pose.T_0to1.shape == (4, 4)
    for photograph in (marked, posed):
        assert photograph.read().flow.isnan().all()
    with pytest.raises(DeepMatchingError, match="which training needs"):
        Manifest(write_manifest(tmp_path, [{**images, "pose": pose}])).with_motion()


def test_a_mask_of_visible_pixels_is_the_opposite_of_one_of_occluded_pixels(tmp_path: Path) -> None:
    entry = json.loads(write_pairs(tmp_path, 1).read_text())[0]
    write_image(tmp_path / "seen.png", mask(slice(7, None)))
    (pair,) = Manifest(write_manifest(tmp_path, [{**entry, "visible": "seen.png"}])).entries
    assert pair.knows_occlusion and not pair.without_masks().knows_occlusion
    assert pair.read().occluded[:7].all() and not pair.read().occluded[7:].any()


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("[{]", "is not JSON"),
        ('[{"image0": "' + "x" * 300 + '.png", "image1": "b.png", "flow": "c.flo"}]', "There is no file"),
        ('{"image0": "a.png"}', "is not a JSON list"),
        ("[]", "is empty"),
        ("[3]", "Entry 1 .* is not an object"),
        ('[{"image1": "0_b.png", "flow": "0.flo"}]', "Entry 1 .* has no 'image0'"),
        ('[{"image0": "0_a.png", "flow": "0.flo"}]', "Entry 1 .* has no 'image1'"),
        ('[{"image0": "0_a.png", "image1": "0_b.png"}]', "one of 'flow', 'homography'"),
        ('[{"image0": "0_a.png", "image1": "0_b.png", "flow": "0.flo", "homography": "h"}]', "one of 'flow'"),
        ('[{"image0": 7, "image1": "0_b.png", "flow": "0.flo"}]', "'image0' that is not a string"),
        ('[{"image0": "0_a.png", "image1": "0_b.png", "flow": "0.flo", "scene": 7}]', "'scene' that is not a string"),
        ('[{"image0": "0_a.png", "image1": "x.png", "flow": "0.flo"}]', "no file '.*x.png', the 'image1' of entry 1"),
        ('[{"image0": "0_a.png", "image1": "0_b.png", "points": "no.txt"}]', "the 'points' of entry 1"),
        ('[{"image0": "0_a.png", "image1": "0_b.png", "flow": "0.flo", "points": "h"}]', "one of 'flow'"),
        ('[{"image0": "0_a.png", "image1": "0_b.png", "pose": "p.txt"}]', "'pose' that is not K0"),
        ('[{"image0": "0_a.png", "image1": "0_b.png", "pose": {"K0": [[1]]}}]', "'pose' that is not K0"),
        ('[{"image0": "0_a.png", "image1": "0_b.png", "pose": {"K0": 1, "K1": 2, "T_0to1": 3}}]', "'pose' that is"),
        (
            '[{"image0": "0_a.png", "image1": "0_b.png", "flow": "0.flo", "occ": "o.png", "invalid": "i.png"}]',
            r"no file '.*o.png' \(and 1 more\), the 'occ' of entry 1",
        ),
    ],
)
def test_a_bad_manifest_is_one_sentence_with_its_name(tmp_path: Path, content: str, words: str) -> None:
    path = write_pairs(tmp_path, 1)
    path.write_text(content)
    with pytest.raises(DeepMatchingError, match=words) as raised:
        Manifest(path)
    assert str(path) in str(raised.value) and "\n" not in str(raised.value)


def test_null_is_as_good_as_nothing(tmp_path: Path) -> None:
    entry = json.loads(write_pairs(tmp_path, 1).read_text())[0]
    np.savetxt(tmp_path / "h.txt", np.eye(3))
    nothing = dict.fromkeys(("occ", "invalid", "flow_noc", "dataset", "scene"))
    path = write_manifest(tmp_path, [{**entry, "flow": None, "homography": "h.txt", **nothing}, entry])
    first, second = Manifest(path).entries
    assert (first.flow, first.homography, first.group) == (None, tmp_path / "h.txt", "pairs")
    assert second.flow is not None
    with pytest.raises(DeepMatchingError, match="must have one of 'flow'"):
        Manifest(write_manifest(tmp_path, [{**entry, "flow": None, "homography": None}]))
    with pytest.raises(DeepMatchingError, match="has no 'image0'"):
        Manifest(write_manifest(tmp_path, [{**entry, "image0": None}]))


def test_with_a_limit_only_the_files_of_the_chosen_pairs_must_exist(tmp_path: Path) -> None:
    path = write_pairs(tmp_path, 4)
    (tmp_path / "1_a.png").unlink()
    assert [entry.name for entry in Manifest(path, limit=2).entries] == ["0_a-0_b", "2_a-2_b"]
    for limit in (None, 3, 4, 5):
        with pytest.raises(DeepMatchingError, match="no file"):
            Manifest(path, limit=limit)
