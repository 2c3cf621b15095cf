"""Arrays of NumPy's formats: what NumPy writes is read, and nothing is allocated because a file says so."""

from __future__ import annotations

import io
import struct
import zipfile
from pathlib import Path

import numpy as np
import pytest

from deepmatching.errors import DeepMatchingError
from deepmatching.io.arrays import LARGEST_COMPRESSION, Archive, read_npy
from deepmatching.io.matches import read_matches


@pytest.mark.parametrize(
    "array",
    [
        np.arange(24, dtype=np.float32).reshape(2, 3, 4),
        np.asfortranarray(np.arange(6.0).reshape(2, 3)),
        np.array(2.5),
        np.zeros((0, 2), np.int16),
        np.arange(5, dtype=">f8"),
        np.array([True, False]),
        np.arange(3, dtype=np.uint8),
        np.arange(3, dtype=np.float16),
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


@pytest.mark.parametrize(
    ("header", "says"),
    [
        ("{'descr': '<f4', 'fortran_order': False, 'shape': (100000000000, 2)}", "cut short"),
        ("{'descr': '<f4', 'fortran_order': False, 'shape': (" + "9" * 400 + ",)}", "damaged header"),
        ("{'descr': '<f4', 'fortran_order': False, 'shape': " + "(" * 200, "damaged header"),
        ("{'descr': '|O', 'fortran_order': False, 'shape': (2,)}", "not hold an array of numbers"),
        ("{'descr': '<f3', 'fortran_order': False, 'shape': (2,)}", "not hold an array of numbers"),
        ("{'descr': [('x', '<f4')], 'fortran_order': False, 'shape': (2,)}", "not hold an array of numbers"),
        ("{'descr': '<f4', 'fortran_order': False, 'shape': (2,", "damaged header"),
        ("", "damaged header"),
    ],
)
def test_headers_that_are_wrong_are_one_sentence(tmp_path: Path, header: str, says: str) -> None:
    (tmp_path / "a.npy").write_bytes(npy(header, bytes(8)))
    with pytest.raises(DeepMatchingError, match=says) as raised:
        read_npy(tmp_path / "a.npy", "edge map")
    assert str(raised.value).startswith("The edge map '")


def test_a_header_is_not_evaluated(tmp_path: Path) -> None:
    header = "{'descr': '<f4', 'fortran_order': False, 'shape': (2,), 'x': open('made', 'w')}"
    (tmp_path / "a.npy").write_bytes(npy(header, bytes(8)))
    assert read_npy(tmp_path / "a.npy", "flow file").tolist() == [0, 0]


def archive_of(size: int, path: Path) -> None:
    """An archive of zeros, compressed as far as deflate can."""
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive, archive.open("keypoints0.npy", "w") as member:
        header = f"{{'descr': '<f4', 'fortran_order': False, 'shape': ({size // 8}, 2)}}"
        member.write(npy(header))
        for _ in range(size // 2**20):
            member.write(bytes(2**20))


def test_an_archive_of_more_than_any_pair_has_is_refused_unread(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    archive_of(2**23, tmp_path / "m.npz")
    assert Archive(tmp_path / "m.npz", "matches file")["keypoints0"].shape == (2**20, 2)
    monkeypatch.setattr("deepmatching.io.arrays.LARGEST_CONTENT", 2**22)
    monkeypatch.setattr(zipfile.ZipFile, "read", None)
    with pytest.raises(DeepMatchingError, match="too many for a pair of images"):
        Archive(tmp_path / "m.npz", "matches file")["keypoints0"]


def test_the_arrays_of_an_archive_share_one_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    points = np.zeros((100, 2), np.float32)
    np.savez(tmp_path / "m.npz", keypoints0=points, keypoints1=points)
    monkeypatch.setattr("deepmatching.io.arrays.LARGEST_CONTENT", 1000)
    with pytest.raises(DeepMatchingError, match="too many"):
        read_matches(tmp_path / "m.npz")


def test_an_archive_cannot_declare_more_than_its_bytes_can_hold(tmp_path: Path) -> None:
    stream = io.BytesIO()
    np.savez_compressed(stream, keypoints0=np.zeros((50, 2), np.float32))
    data = bytearray(stream.getvalue())
    directory = data.rindex(b"PK\x01\x02")
    data[directory + 24 : directory + 28] = struct.pack("<I", 2**31)  # the size after decompression
    (tmp_path / "m.npz").write_bytes(data)
    with pytest.raises(DeepMatchingError, match="more than it can hold"):
        Archive(tmp_path / "m.npz", "matches file")["keypoints0"]


def test_zeros_do_not_compress_beyond_the_limit(tmp_path: Path) -> None:
    archive_of(2**25, tmp_path / "m.npz")
    (info,) = zipfile.ZipFile(tmp_path / "m.npz").infolist()
    assert info.file_size / info.compress_size <= LARGEST_COMPRESSION


@pytest.mark.parametrize("method", [zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
def test_other_compressions_are_refused(tmp_path: Path, method: int) -> None:
    with zipfile.ZipFile(tmp_path / "m.npz", "w", method) as archive:
        archive.writestr("keypoints0.npy", bytes(100))
    with pytest.raises(DeepMatchingError, match="unknown compression"):
        Archive(tmp_path / "m.npz", "matches file")["keypoints0"]
