"""HDF5: only what lies in the file itself is read, and only as much as it can hold."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

from deepmatching.errors import DeepMatchingError
from deepmatching.io.matches import read_matches

POINTS = np.arange(8, dtype=np.float32).reshape(4, 2)


def write(path: Path, **arrays: Any) -> None:
    with h5py.File(path, "w") as file:
        for name, array in arrays.items():
            file[name] = array


def test_a_small_file_that_declares_terabytes_is_refused(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "m.h5", "w") as file:
        for name in ("keypoints0", "keypoints1"):
            file.create_dataset(name, (10**11, 2), "f8", chunks=(1000, 2), compression="gzip")
    assert (tmp_path / "m.h5").stat().st_size < 10_000
    with pytest.raises(
        DeepMatchingError, match=r"declares 1600000000000 bytes for 'keypoints0', more than it can hold"
    ):
        read_matches(tmp_path / "m.h5")


def test_a_chunk_larger_than_the_file_can_hold_is_refused(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "m.h5", "w") as file:
        file.create_dataset("keypoints0", (4, 2), "f4", maxshape=(None, 2), chunks=(2**28, 2), compression="gzip")
        file["keypoints1"] = POINTS
    with pytest.raises(DeepMatchingError, match="more than it can hold"):
        read_matches(tmp_path / "m.h5")


def test_arrays_larger_than_any_pair_has_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path / "m.h5", keypoints0=POINTS, keypoints1=POINTS)
    monkeypatch.setattr("deepmatching.io.arrays.LARGEST_CONTENT", 50)  # the two together take 64 bytes
    with pytest.raises(DeepMatchingError, match="too many for a pair of images"):
        read_matches(tmp_path / "m.h5")


@pytest.mark.parametrize("group", ["", "pair"])
@pytest.mark.parametrize("link", [h5py.ExternalLink("other.h5", "secret"), h5py.SoftLink("/elsewhere")])
def test_links_are_not_followed(tmp_path: Path, link: h5py.ExternalLink | h5py.SoftLink, group: str) -> None:
    write(tmp_path / "other.h5", secret=POINTS)
    with h5py.File(tmp_path / "m.h5", "w") as file:
        file["elsewhere"] = POINTS
        place = file.require_group(group) if group else file
        place["keypoints0"] = link
        place["keypoints1"] = POINTS
    with pytest.raises(DeepMatchingError, match="has a link to another place instead of the array 'keypoints0'"):
        read_matches(tmp_path / "m.h5")


def test_links_that_nobody_asks_for_do_no_harm(tmp_path: Path) -> None:
    write(tmp_path / "m.h5", keypoints0=POINTS, keypoints1=POINTS)
    with h5py.File(tmp_path / "m.h5", "a") as file:
        file["notes"] = h5py.ExternalLink("none.h5", "notes")
        file["again"] = h5py.SoftLink("/nowhere")
    np.testing.assert_array_equal(read_matches(tmp_path / "m.h5").keypoints0, POINTS)


def test_arrays_in_other_files_are_refused(tmp_path: Path) -> None:
    (tmp_path / "raw").write_bytes(POINTS.tobytes())
    with h5py.File(tmp_path / "m.h5", "w") as file:
        file.create_dataset("keypoints0", POINTS.shape, "f4", external=[(str(tmp_path / "raw"), 0, POINTS.nbytes)])
        file["keypoints1"] = POINTS
    with pytest.raises(DeepMatchingError, match="keeps 'keypoints0' in another file"):
        read_matches(tmp_path / "m.h5")
    write(tmp_path / "source.h5", points=POINTS)
    layout = h5py.VirtualLayout(POINTS.shape, "f4")
    layout[:] = h5py.VirtualSource(str(tmp_path / "source.h5"), "points", POINTS.shape)
    with h5py.File(tmp_path / "v.h5", "w") as file:
        file.create_virtual_dataset("keypoints0", layout)
        file["keypoints1"] = POINTS
    with pytest.raises(DeepMatchingError, match="keeps 'keypoints0' in another file"):
        read_matches(tmp_path / "v.h5")


def test_a_group_that_contains_itself_is_visited_once(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "m.h5", "w") as file:
        group = file.create_group("a")
        group["b"] = group
        group["keypoints0"], group["keypoints1"] = POINTS, POINTS
    np.testing.assert_array_equal(read_matches(tmp_path / "m.h5").keypoints1, POINTS)


@pytest.mark.parametrize("value", ["text", h5py.Empty("f4")])
def test_what_is_not_an_array_of_numbers_is_refused(tmp_path: Path, value: Any) -> None:
    write(tmp_path / "m.h5", keypoints0=value, keypoints1=POINTS)
    with pytest.raises(DeepMatchingError, match="keypoints0 are not an array of numbers"):
        read_matches(tmp_path / "m.h5")


@pytest.mark.parametrize("size", [3.5, [1, 2, 3], [-1, 5], np.array([2**40, 3]), [0.5, 1.5]])
def test_sizes_that_are_not_two_whole_numbers_are_refused(tmp_path: Path, size: Any) -> None:
    write(tmp_path / "m.h5", keypoints0=POINTS, keypoints1=POINTS, size0=size)
    with pytest.raises(DeepMatchingError, match="size0 is not two whole numbers"):
        read_matches(tmp_path / "m.h5")
