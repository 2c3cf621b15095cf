"""Addresses of object stores."""

from pathlib import Path, PureWindowsPath

import pytest

from deepmatching.errors import DeepMatchingError
from deepmatching.io.addresses import (
    exists_address,
    list_address,
    read_address,
    remove_address,
    scheme_of,
    shown,
    write_address,
)
from deepmatching.io.files import is_file, read_bytes, write_file


def test_an_address_is_known_in_every_spelling_and_a_drive_of_windows_is_none() -> None:
    for path in ("s3://bucket/a", Path("s3://bucket/a"), PureWindowsPath("s3://bucket/a"), "s3:/bucket/a"):
        assert scheme_of(path) == "s3" and shown(path) == "s3://bucket/a"
    for path in ("C:/a", r"C:\a", "a/b:/c", "a:b", "/s3:/a", ""):
        assert scheme_of(path) == "" and shown(path) == path


def test_a_file_is_written_listed_read_and_removed() -> None:
    folder = "memory://test_addresses/folder"
    assert list_address(folder) == {}
    write_address(f"{folder}/a/b.txt", memoryview(b"content"))
    write_file(Path(folder) / "c.txt", "ü")
    assert read_address(f"{folder}/a/b.txt") == b"content" and read_address(f"{folder}/a/b.txt", 3) == b"con"
    assert read_bytes(Path(folder) / "c.txt", "text") == "ü".encode()
    found = list_address(folder)
    assert set(found) == {"a/b.txt", "c.txt"} and found["a/b.txt"].startswith("7 bytes, ")
    assert exists_address(f"{folder}/c.txt") and is_file(Path(folder) / "c.txt") and not is_file(f"{folder}/a")
    for _ in range(2):
        remove_address(f"{folder}/a/b.txt")
    assert set(list_address(folder)) == {"c.txt"}
    remove_address(f"{folder}/c.txt")


def test_what_a_store_says_is_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    from fsspec.implementations.memory import MemoryFileSystem

    with pytest.raises(DeepMatchingError, match=r"There is no image 'memory://nowhere/a\.png'"):
        read_bytes(Path("memory://nowhere/a.png"), "image")

    class NoCredentialsError(Exception):
        """As botocore's, which is no OSError."""

    def refuse(*_: object, **__: object) -> None:
        raise NoCredentialsError("Unable to locate credentials\nmore")

    for method in ("cat_file", "pipe_file"):
        monkeypatch.setattr(MemoryFileSystem, method, refuse)
    with pytest.raises(DeepMatchingError, match=r"memory://bucket/a' cannot be read \(Unable to locate credentials\)"):
        read_bytes("memory://bucket/a", "image")
    with pytest.raises(DeepMatchingError, match=r"memory://bucket/a' cannot be written \(Unable to locate"):
        write_file("memory://bucket/a", b"")
