"""Atomic writing: the target is either the old file or the whole new one."""

import errno
import os
import stat
import sys
from pathlib import Path

import pytest

from deepmatching.errors import DeepMatchingError
from deepmatching.io import files
from deepmatching.io.files import atomic_write, write_file


def test_success_renames_and_leaves_nothing_else(tmp_path: Path) -> None:
    target = tmp_path / "größe.txt"
    with atomic_write(target) as temporary:
        assert temporary.parent == tmp_path
        assert temporary.suffix == ".txt"
        assert temporary != target
        temporary.write_text("new")
        assert not target.exists()
    assert target.read_text() == "new"
    assert [entry.name for entry in tmp_path.iterdir()] == [target.name]


@pytest.mark.parametrize("is_gone", [False, True])
@pytest.mark.parametrize("failure", [RuntimeError, KeyboardInterrupt])
def test_failure_keeps_the_old_file_alone(tmp_path: Path, failure: type[BaseException], is_gone: bool) -> None:
    target = tmp_path / "a.bin"
    target.write_bytes(b"old")

    def write_half() -> None:
        with atomic_write(target) as temporary:
            temporary.write_bytes(b"half")
            if is_gone:
                temporary.unlink()
            raise failure

    with pytest.raises(failure):
        write_half()
    assert target.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [target]


@pytest.mark.parametrize(("name", "words"), [(".", "is a folder"), ("no/a.txt", "no folder")])
def test_what_cannot_be_a_file_is_refused(tmp_path: Path, name: str, words: str) -> None:
    with pytest.raises(DeepMatchingError, match=words), atomic_write(tmp_path / name):
        pytest.fail("the body must not run")


def test_a_full_disk_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(DeepMatchingError, match="no space is left"), atomic_write(tmp_path / "a"):
        raise OSError(errno.ENOSPC, "No space left on device")
    assert list(tmp_path.iterdir()) == []


def test_an_unwritable_folder_is_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> int:
        raise PermissionError(13, "Permission denied")

    # Not by chmod: the superuser may write anywhere.
    monkeypatch.setattr(os, "open", refuse)
    with pytest.raises(DeepMatchingError, match="Permission denied"), atomic_write(tmp_path / "a"):
        pytest.fail("the body must not run")


def test_a_file_that_is_held_briefly_is_replaced_later(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    replace, attempts = os.replace, []

    def held_at_first(*paths: Path) -> None:
        attempts.append(paths)
        if len(attempts) < 3:
            raise PermissionError(13, "Access is denied")
        replace(*paths)

    monkeypatch.setattr(os, "replace", held_at_first)
    monkeypatch.setattr(files, "_PAUSES", (0.0, 0.0))  # as on Windows, but quick
    write_file(tmp_path / "a", "new")
    assert (tmp_path / "a").read_text() == "new" and len(attempts) == 3
    for pauses, count in (((0.0,), 2), ((), 1)):  # held for too long, or not on Windows: the error is reported
        attempts.clear()
        monkeypatch.setattr(files, "_PAUSES", pauses)
        with pytest.raises(DeepMatchingError, match="Access is denied"):
            write_file(tmp_path / "a", "new")
        assert len(attempts) == count and [file.name for file in tmp_path.iterdir()] == ["a"]


@pytest.mark.skipif(sys.platform == "win32", reason="POSIX devices, modes and links")
def test_devices_are_refused_modes_kept_and_links_followed(tmp_path: Path) -> None:
    with pytest.raises(DeepMatchingError, match="not a regular file"), atomic_write(os.devnull):
        pytest.fail("the body must not run")
    assert stat.S_ISCHR(os.stat(os.devnull).st_mode)
    ordinary, atomic, link = (tmp_path / name for name in ("ordinary", "atomic", "link"))
    ordinary.write_text("")
    write_file(atomic, "")
    assert atomic.stat().st_mode == ordinary.stat().st_mode
    link.symlink_to(ordinary)
    write_file(link, "through")
    assert link.is_symlink() and ordinary.read_text() == "through"


@pytest.mark.skipif(sys.platform == "win32", reason="POSIX modes")
@pytest.mark.parametrize("mode", [0o600, 0o640, 0o664, 0o444])
def test_a_replaced_file_keeps_its_mode_and_what_replaces_it_is_private_until_then(tmp_path: Path, mode: int) -> None:
    target = tmp_path / "a.txt"
    target.write_text("old")
    target.chmod(mode)
    with atomic_write(target) as temporary:
        assert stat.S_IMODE(temporary.stat().st_mode) == 0o600
        temporary.write_text("new")
    assert target.read_text() == "new"
    assert stat.S_IMODE(target.stat().st_mode) == mode


@pytest.mark.skipif(sys.platform == "win32", reason="POSIX owners")
def test_a_replaced_file_keeps_its_owner_where_that_is_allowed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    target = tmp_path / "a.txt"
    target.write_text("old")
    about, wanted = target.stat(), []

    def chown(path: Path, owner: int, group: int) -> None:
        wanted.append((owner, group))
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "chown", chown)
    write_file(target, "new")
    assert target.read_text() == "new"
    assert wanted == [(about.st_uid, -1), (-1, about.st_gid)]


def test_temporaries_of_killed_processes_are_removed_and_nothing_else(tmp_path: Path) -> None:
    old, young = (files._create_temporary(tmp_path / "a.flo")[0] for _ in range(2))  # as a kill leaves them
    foreign = tmp_path / f".{'0' * 32}.flo"
    foreign.write_text("of another program")
    for path in (old, foreign):
        os.utime(path, (0, 0))
    files.check_writable(tmp_path / "a.flo")
    assert {*tmp_path.iterdir()} == {young, foreign}  # the young one may belong to a process at work
    files.remove_temporaries(tmp_path, is_locked=True)
    assert {*tmp_path.iterdir()} == {foreign}
    files.remove_temporaries(tmp_path / "missing")
