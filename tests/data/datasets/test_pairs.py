"""Pairs in files: their contents, and one sentence for each broken file."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import DataLoader

from deepmatching.data.datasets import Entry, FilePairs
from deepmatching.data.datasets.pairs import homography_flow
from deepmatching.errors import DeepMatchingError
from helpers.fake_datasets import SIZE, constant_flow, mask, moved, texture, write_field, write_image


@pytest.fixture
def entry(tmp_path: Path) -> Entry:
    write_image(tmp_path / "a.png", texture())
    write_image(tmp_path / "b.png", moved(texture()))
    write_field(tmp_path / "f.flo", constant_flow())
    return Entry("mine", "a-b", tmp_path / "a.png", tmp_path / "b.png", flow=tmp_path / "f.flo")


def test_images_are_rgb_in_0_to_1_and_the_flow_is_as_written(entry: Entry) -> None:
    pair = entry.read()
    np.testing.assert_allclose(pair.image0.numpy(), texture().transpose(2, 0, 1) / 255, atol=1e-6)
    np.testing.assert_array_equal(pair.flow.numpy(), constant_flow())
    assert pair.occluded.dtype == torch.bool and not pair.occluded.any()
    assert pair.name == "a-b" and not entry.knows_occlusion


def test_a_homography_is_a_flow_and_image_sizes_may_differ(entry: Entry, tmp_path: Path) -> None:
    write_image(entry.image1, texture((50, 90)))
    matrix = np.array([[1.1, 0.02, 3.0], [-0.01, 0.9, 2.0], [1e-4, 0.0, 1.0]])
    np.savetxt(tmp_path / "h.txt", matrix)
    pair = replace(entry, flow=None, homography=tmp_path / "h.txt").read()
    np.testing.assert_array_equal(pair.flow.numpy(), homography_flow(matrix, *SIZE, 50, 90))
    assert pair.image1.shape == (3, 50, 90)


@pytest.mark.parametrize("factor", [1e-150, -1.0, 1e150])
def test_a_homography_may_have_any_scale_and_numbers_of_any_size(entry: Entry, tmp_path: Path, factor: float) -> None:
    matrix = np.array([[1.0, 0.0, -4e4], [0.0, 1.0, 3e4], [1e-7, 0.0, 1.0]])
    np.savetxt(tmp_path / "h.txt", factor * matrix)
    replace(entry, flow=None, homography=tmp_path / "h.txt").read()  # not taken for a singular one


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-100])


@pytest.mark.parametrize(
    ("field", "spoil", "words"),
    [
        ("flow", cut, "bytes of data"),
        ("flow", lambda path: path.write_bytes(b"nonsense"), "not a Middlebury"),
        ("flow", lambda path: write_field(path, constant_flow((9, 9))), "9 x 9 pixels, but its image"),
        ("image0", cut, "damaged or cut short"),
        ("image1", lambda path: path.write_text("no picture"), "cannot be decoded"),
        ("occluded", cut, "mask"),
        ("occluded", lambda path: write_image(path, mask(size=(4, 5))), "5 x 4 pixels, but its image"),
        ("invalid", lambda path: write_image(path, mask(size=(4, 5))), "5 x 4 pixels, but its image"),
        ("flow_noc", lambda path: write_field(path, constant_flow((9, 9))), "9 x 9 pixels, but its image"),
        ("flow", lambda path: path.unlink(), "no flow file"),
        *(
            ("homography", lambda path, data=data: path.write_bytes(data), "three lines of three numbers")
            for data in (b"1 2 3\n4 5", b"one two", b"1 2\n3 4", b"\x1f\x8b\xff", b"# a remark\n", b"\xff\xfe")
        ),
        ("homography", lambda path: path.write_text("1e999 0 0\n0 1 0\n0 0 1"), "not finite"),
        ("homography", lambda path: path.write_text("nan 0 0\n0 1 0\n0 0 1"), "not finite"),
        ("homography", lambda path: path.write_text("1 2 3\n4 5 6\n7 8 9"), "is singular"),
        ("homography", lambda path: path.unlink(), "no homography"),
    ],
)
@pytest.mark.filterwarnings("error")
def test_a_bad_file_is_one_sentence_with_its_name(entry: Entry, tmp_path: Path, field: str, spoil, words: str) -> None:
    for name in ("occ.png", "invalid.png"):
        write_image(tmp_path / name, mask())
    write_field(tmp_path / "noc.flo", constant_flow())
    np.savetxt(tmp_path / "h.txt", np.eye(3))
    truth = {"flow": None, "homography": tmp_path / "h.txt"} if field == "homography" else {}
    masks = {"occluded": "occ.png", "invalid": "invalid.png", "flow_noc": "noc.flo"}
    whole = replace(entry, **{name: tmp_path / file for name, file in masks.items()}, **truth)
    whole.read()
    path = getattr(whole, field)
    spoil(path)
    with pytest.raises(DeepMatchingError, match=words) as raised:
        whole.read()
    assert str(path) in str(raised.value) and "\n" not in str(raised.value)


@pytest.mark.slow
def test_workers_of_a_loader_read_the_same_pairs(entry: Entry) -> None:
    dataset = FilePairs("mine", [entry, replace(entry, image0=entry.image1, name="b-b")])
    loaded = list(DataLoader(dataset, batch_size=None, num_workers=1, multiprocessing_context="spawn"))
    assert [pair.name for pair in loaded] == ["a-b", "b-b"]
    for pair, own in zip(loaded, (dataset[0], dataset[1]), strict=True):
        assert (pair.image0 == own.image0).all() and (pair.flow == own.flow).all()
    batch = next(iter(DataLoader(dataset, batch_size=2)))
    assert batch.image0.shape == (2, 3, *SIZE) and batch.flow.shape == (2, *SIZE, 2)


def test_a_data_set_may_be_thinned_evenly_and_to_its_groups() -> None:
    entries = [Entry("odd" if i % 2 else "even", str(i), Path("a"), Path("b"), flow=Path("f")) for i in range(10)]
    dataset = FilePairs("ten", entries)
    assert [entry.name for entry in dataset.thinned(3).entries] == ["0", "3", "6"]
    assert [entry.name for entry in dataset.thinned(1).entries] == ["0"]
    assert [entry.name for entry in dataset.only(["odd"]).entries] == ["1", "3", "5", "7", "9"]
    assert len(dataset.thinned(99)) == len(dataset.only(["odd", "even"])) == 10
    with pytest.raises(DeepMatchingError, match="whole number of at least 1"):
        dataset.thinned(0)
    with pytest.raises(DeepMatchingError, match="no pairs of 'prime' in ten: choose from even, odd"):
        dataset.only(["prime"])


@given(
    matrix=st.lists(st.floats(-0.3, 0.3), min_size=9, max_size=9),
    sign=st.sampled_from([-1.0, 1.0, 7.0]),
)
@settings(max_examples=30, deadline=None)
def test_homography_flow_is_its_definition(matrix: list[float], sign: float) -> None:
    homography = np.eye(3) + np.array(matrix).reshape(3, 3) * [[1, 1, 20], [1, 1, 20], [0.01, 0.01, 0.1]]
    flow = homography_flow(sign * homography, 9, 12, 11, 8)
    assert flow.shape == (9, 12, 2)
    for i in range(9):
        for j in range(12):
            x, y, w = homography @ (j, i, 1.0)
            x, y = x / w, y / w
            if w > 0 and -0.499 < x < 7.499 and -0.499 < y < 10.499:
                np.testing.assert_allclose(flow[i, j], (x - j, y - i), atol=1e-4)
            elif w <= 0 or not (-0.501 <= x <= 7.501 and -0.501 <= y <= 10.501):
                assert np.isnan(flow[i, j]).all()


def test_the_horizon_is_not_crossed() -> None:
    # w = 1 − x/4: beyond x = 4 the points would reappear mirrored inside a large target.
    flow = homography_flow(np.array([[1.0, 0, 0], [0, 1, 0], [-0.25, 0, 1]]), 3, 8, 10**6, 10**6)
    assert np.isfinite(flow[:, :4]).all()
    assert np.isnan(flow[:, 4:]).all()
