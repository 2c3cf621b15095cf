"""Lists of the user's own pairs."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from deepmatching.data.datasets import Manifest
from deepmatching.errors import DeepMatchingError
from helpers.fake_datasets import mask, write_image, write_manifest, write_pairs


def test_paths_are_relative_to_the_manifest_and_groups_are_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_pairs(tmp_path, 2, dataset="mine", scene="street", note="ignored")
    monkeypatch.chdir(tmp_path.parent)
    dataset = Manifest(Path(tmp_path.name) / "pairs.json")
    assert [entry.group for entry in dataset.entries] == ["mine", "mine"]
    assert [entry.name for entry in dataset.entries] == ["street/0_a-0_b", "street/1_a-1_b"]
    assert dataset[1].flow[0, 0].tolist() == [6.0, -4.0]


def test_a_file_may_begin_with_a_byte_order_mark(tmp_path: Path) -> None:
    path = write_pairs(tmp_path)
    path.write_text(path.read_text(encoding="utf-8"), encoding="utf-8-sig")
    assert len(Manifest(path)) == 2


def test_the_names_of_the_files_are_the_default_names(tmp_path: Path) -> None:
    dataset = Manifest(write_pairs(tmp_path))
    assert [(entry.group, entry.name) for entry in dataset.entries] == [("pairs", "0_a-0_b"), ("pairs", "1_a-1_b")]


def test_names_are_distinct_within_a_group(tmp_path: Path) -> None:
    entry = json.loads(write_pairs(tmp_path, 1).read_text())[0]
    path = write_manifest(tmp_path, [{**entry, "scene": "s"}, {**entry, "scene": "t"}, {**entry, "scene": "t"}])
    assert [e.name for e in Manifest(path).entries] == ["s", "t/0_a-0_b", "t/0_a-0_b (2)"]


def test_homographies_and_masks(tmp_path: Path) -> None:
    entry = json.loads(write_pairs(tmp_path, 1).read_text())[0]
    np.savetxt(tmp_path / "h.txt", np.array([[1, 0, 6], [0, 1, -4], [0, 0, 1.0]]))
    write_image(tmp_path / "occ.png", mask(slice(7)))
    with_flow = {**entry, "occ": "occ.png", "invalid": "occ.png", "flow_noc": "0.flo"}
    del entry["flow"]
    path = write_manifest(tmp_path, [{**entry, "homography": "h.txt"}, with_flow])
    dataset = Manifest(path)
    assert dataset[0].flow[20, 20].tolist() == [6.0, -4.0]
    assert dataset[1].occluded[:7].all() and dataset[1].flow[:7].isnan().all()
    assert [e.knows_occlusion for e in dataset.entries] == [False, True]
    plain = Manifest(path, masks=False)
    assert not plain[1].occluded.any() and not plain[1].flow.isnan().any()


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("", "is an empty file"),
        ("[{]", "is not JSON"),
        ("[" * 100_000, "is not JSON"),
        ('[{"image0": "\\ud800.png", "image1": "b.png", "flow": "c.flo"}]', "surrogate"),
        ('[{"image0": "' + "x" * 300 + '.png", "image1": "b.png", "flow": "c.flo"}]', "There is no file"),
        ("[1e999]", "is not JSON"),
        ('{"image0": "a.png"}', "is not a JSON list"),
        ("[]", "is empty"),
        ("[3]", "Entry 1 .* is not an object"),
        ('[{"image1": "0_b.png", "flow": "0.flo"}]', "Entry 1 .* has no 'image0'"),
        ('[{"image0": "0_a.png", "flow": "0.flo"}]', "Entry 1 .* has no 'image1'"),
        ('[{"image0": "0_a.png", "image1": "0_b.png"}]', "either 'flow' or 'homography'"),
        ('[{"image0": "0_a.png", "image1": "0_b.png", "flow": "0.flo", "homography": "h"}]', "either 'flow' or"),
        ('[{"image0": 7, "image1": "0_b.png", "flow": "0.flo"}]', "'image0' that is not a string"),
        ('[{"image0": "0_a.png", "image1": "0_b.png", "flow": "0.flo", "scene": 7}]', "'scene' that is not a string"),
        ('[{"image0": "0_a.png", "image1": "x.png", "flow": "0.flo"}]', "no file '.*x.png', the 'image1' of entry 1"),
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


def test_a_manifest_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(DeepMatchingError, match=r"no manifest '.*none.json'"):
        Manifest(tmp_path / "none.json")
    (tmp_path / "folder.json").mkdir()
    with pytest.raises(DeepMatchingError, match=r"folder.json' is a folder"):
        Manifest(tmp_path / "folder.json")
    (tmp_path / "latin.json").write_bytes(b'["\xe4"]')
    with pytest.raises(DeepMatchingError, match=r"latin.json' is not JSON"):
        Manifest(tmp_path / "latin.json")


def test_null_is_as_good_as_nothing(tmp_path: Path) -> None:
    entry = json.loads(write_pairs(tmp_path, 1).read_text())[0]
    np.savetxt(tmp_path / "h.txt", np.eye(3))
    nothing = dict.fromkeys(("occ", "invalid", "flow_noc", "dataset", "scene"))
    path = write_manifest(tmp_path, [{**entry, "flow": None, "homography": "h.txt", **nothing}, entry])
    first, second = Manifest(path).entries
    assert (first.flow, first.homography, first.group) == (None, tmp_path / "h.txt", "pairs")
    assert second.flow is not None
    with pytest.raises(DeepMatchingError, match="must have either 'flow' or 'homography'"):
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
