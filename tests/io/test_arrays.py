"""Arrays of NumPy's formats and HDF5: nothing is allocated because a file says so."""

import io
import struct
import zipfile
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

from deepmatching.errors import DeepMatchingError
from deepmatching.io.arrays import LARGEST_COMPRESSION, open_npz, read_npy
from deepmatching.io.matches import read_matches

POINTS = np.arange(8, dtype=np.float32).reshape(4, 2)


@pytest.mark.parametrize(
    "array",
    [
        *(np.arange(24, dtype=np.float32).reshape(2, 3, 4), np.asfortranarray(np.arange(6.0).reshape(2, 3))),
        *(np.array(2.5), np.zeros((0, 2), np.int16), np.arange(5, dtype=">f8"), np.array([True, False])),
        np.zeros(70_000)[None],
    ],
)
@pytest.mark.parametrize("version", [(1, 0), (2, 0), (3, 0)])
def test_arrays_are_read_as_numpy_reads_them(tmp_path: Path, array: np.ndarray, version: tuple[int, int]) -> None:
    with (tmp_path / "a.npy").open("wb") as file:
        np.lib.format.write_array(file, array, version)
    read = read_npy(tmp_path / "a.npy", "flow file")
    assert read.dtype == array.dtype and read.shape == array.shape and read.flags.writeable
    np.testing.assert_array_equal(read, array)


def npy(header: str, data: bytes = b"") -> bytes:
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header.encode() + data


HEADER = "{'descr': '<f4', 'fortran_order': False, 'shape': (2,)}"


@pytest.mark.parametrize(
    "header",
    [
        *(HEADER.replace("(2,)", it) for it in ("(100000000000, 2)", f"({'9' * 400},)", "(-1,)", "(" * 200)),
        *(HEADER.replace("<f4", dtype) for dtype in ("|O", "<f3")),
        HEADER.replace("'<f4'", "[('x', '<f4')]"),
        HEADER.replace("}", ", 'x': open('made', 'w')}"),  # it is not evaluated
        HEADER[:-4],
        "",
    ],
)
def test_headers_that_are_wrong_are_refused(tmp_path: Path, header: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a.npy").write_bytes(npy(header, bytes(8)))
    with pytest.raises(DeepMatchingError) as raised:
        read_npy(tmp_path / "a.npy", "edge map")
    assert str(raised.value).startswith("The edge map '") and not (tmp_path / "made").exists()


def test_an_archive_larger_than_any_pair_is_refused_unread(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    np.savez_compressed(tmp_path / "m.npz", keypoints0=np.zeros((2**22, 2), np.float32))
    (info,) = zipfile.ZipFile(tmp_path / "m.npz").infolist()
    assert info.file_size / info.compress_size <= LARGEST_COMPRESSION
    assert open_npz(tmp_path / "m.npz", "matches file")["keypoints0"].shape == (2**22, 2)
    monkeypatch.setattr("deepmatching.io.arrays.LARGEST_CONTENT", 2**24)
    monkeypatch.setattr(zipfile.ZipFile, "read", None)
    with pytest.raises(DeepMatchingError, match="too many for a pair of images"):
        open_npz(tmp_path / "m.npz", "matches file")["keypoints0"]


@pytest.mark.parametrize("suffix", ["npz", "h5"])
def test_the_arrays_of_a_file_share_one_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, suffix: str) -> None:
    np.savez(tmp_path / "m.npz", keypoints0=POINTS, keypoints1=POINTS)
    write(tmp_path / "m.h5", keypoints0=POINTS, keypoints1=POINTS)
    monkeypatch.setattr("deepmatching.io.arrays.LARGEST_CONTENT", 250 if suffix == "npz" else 50)  # with headers
    with pytest.raises(DeepMatchingError, match=r"its array 'keypoints1' .*too many for a pair of images"):
        read_matches(tmp_path / f"m.{suffix}")


def test_an_archive_cannot_declare_more_than_its_bytes_can_hold(tmp_path: Path) -> None:
    stream = io.BytesIO()
    np.savez_compressed(stream, keypoints0=np.zeros((50, 2), np.float32))
    data = bytearray(stream.getvalue())
    directory = data.rindex(b"PK\x01\x02")
    data[directory + 24 : directory + 28] = struct.pack("<I", 2**31)  # the size after decompression
    (tmp_path / "m.npz").write_bytes(data)
    with pytest.raises(DeepMatchingError, match="more than the file can hold"):
        open_npz(tmp_path / "m.npz", "matches file")["keypoints0"]


def test_other_compressions_are_refused(tmp_path: Path) -> None:
    for method in (zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA):
        with zipfile.ZipFile(tmp_path / "m.npz", "w", method) as archive:
            archive.writestr("keypoints0.npy", bytes(100))
        with pytest.raises(DeepMatchingError, match=r"'keypoints0'.*compression"):
            open_npz(tmp_path / "m.npz", "matches file")["keypoints0"]


def write(path: Path, **arrays: Any) -> None:
    with h5py.File(path, "w") as file:
        for name, array in arrays.items():
            file[name] = array


@pytest.mark.parametrize(("rows", "chunk"), [(10**11, 1000), (4, 2**28)])
def test_a_small_file_that_declares_terabytes_or_a_big_chunk_is_refused(tmp_path: Path, rows: int, chunk: int) -> None:
    with h5py.File(tmp_path / "m.h5", "w") as file:
        file.create_dataset("keypoints0", (rows, 2), "f4", maxshape=(None, 2), chunks=(chunk, 2), compression="gzip")
        file["keypoints1"] = POINTS
    assert (tmp_path / "m.h5").stat().st_size < 10_000
    with pytest.raises(DeepMatchingError, match=r"its array 'keypoints0' declares \d{10,} bytes"):
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
    with pytest.raises(DeepMatchingError, match="its array 'keypoints0' is a link to another place"):
        read_matches(tmp_path / "m.h5")


@pytest.mark.parametrize("is_virtual", [False, True])
def test_arrays_in_other_files_are_refused(tmp_path: Path, is_virtual: bool) -> None:
    (tmp_path / "raw").write_bytes(POINTS.tobytes())
    write(tmp_path / "source.h5", points=POINTS)
    layout = h5py.VirtualLayout(POINTS.shape, "f4")
    layout[:] = h5py.VirtualSource(str(tmp_path / "source.h5"), "points", POINTS.shape)
    with h5py.File(tmp_path / "m.h5", "w") as file:
        if is_virtual:
            file.create_virtual_dataset("keypoints0", layout)
        else:
            file.create_dataset("keypoints0", POINTS.shape, "f4", external=[(str(tmp_path / "raw"), 0, POINTS.nbytes)])
        file["keypoints1"] = POINTS
    with pytest.raises(DeepMatchingError, match="its array 'keypoints0' is kept in another file"):
        read_matches(tmp_path / "m.h5")


def test_links_that_nobody_asks_for_and_a_group_that_contains_itself_do_no_harm(tmp_path: Path) -> None:
    links = {"notes": h5py.ExternalLink("none.h5", "notes"), "again": h5py.SoftLink("/nowhere")}
    write(tmp_path / "m.h5", **{f"a/{name}": value for name, value in links.items()})
    with h5py.File(tmp_path / "m.h5", "a") as file:
        group = file["a"]
        group["b"] = group
        group["keypoints0"], group["keypoints1"] = POINTS, POINTS
    np.testing.assert_array_equal(read_matches(tmp_path / "m.h5").keypoints1, POINTS)


def test_groups_in_groups_without_end_are_refused(tmp_path: Path) -> None:
    write(tmp_path / "m.h5", **{"a/" * 100 + "keypoints0": POINTS})
    with pytest.raises(DeepMatchingError, match="64 deep"):
        read_matches(tmp_path / "m.h5")


@pytest.mark.parametrize("value", ["text", h5py.Empty("f4")])
def test_what_is_not_an_array_of_numbers_is_refused(tmp_path: Path, value: Any) -> None:
    write(tmp_path / "m.h5", keypoints0=value, keypoints1=POINTS)
    with pytest.raises(DeepMatchingError, match="'keypoints0' does not hold an array of numbers"):
        read_matches(tmp_path / "m.h5")


@pytest.mark.parametrize("size", [3.5, [1, 2, 3], [-1, 5], np.array([2**40, 3]), [0.5, 1.5]])
def test_sizes_that_are_not_two_whole_numbers_are_refused(tmp_path: Path, size: Any) -> None:
    write(tmp_path / "m.h5", keypoints0=POINTS, keypoints1=POINTS, size0=size)
    with pytest.raises(DeepMatchingError, match="size0 is not two whole numbers"):
        read_matches(tmp_path / "m.h5")
