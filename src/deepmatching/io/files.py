"""Reading files with clear errors, and writing them atomically: a reader never sees half a file."""

import contextlib
import errno
import os
import re
import stat
import struct
import time
import uuid
import zlib
from collections.abc import Iterable, Iterator
from pathlib import Path

from deepmatching.errors import DeepMatchingError, short_repr
from deepmatching.io.addresses import (
    check_address,
    exists_address,
    list_address,
    read_address,
    remove_address,
    scheme_of,
    shown,
    write_address,
)

PathLike = str | os.PathLike[str]

#: Seconds between attempts to replace a file. On Windows, a virus scanner or a reader may hold it for a moment.
_PAUSES = (0.05, 0.1, 0.2, 0.4, 0.8, 1.6) if os.name == "nt" else ()
_PREFIX = ".deepmatching-"  #: names of temporary files: our prefix, 32 digits, the suffix of the target
_TEMPORARY = re.compile(re.escape(_PREFIX) + r"[0-9a-f]{32}(\.[^.]*)?")
#: What our files of a suffix begin with. Pictures are signed, see :func:`signed`, except for rarer formats.
_BEGINNINGS = {
    **dict.fromkeys((".png", ".jpg", ".jpeg"), rb"(?s).*deepmatching"),
    **dict.fromkeys((".html", ".htm"), rb"<!doctype html>"),
    **dict.fromkeys((".h5", ".hdf5"), rb"\x89HDF\r\n\x1a\n"),
    **dict.fromkeys((".db", ".sqlite", ".sqlite3"), rb"SQLite format 3\0"),
    ".txt": rb"([-+.e\d]+ ){5}\d+( [-+.e\d]+)?\r?\n",
    ".csv": rb"(x0|frame),",
    ".json": rb'\{\s*"(case|format|geometry)"',
    ".npz": rb"PK",
    ".npy": rb"\x93NUMPY",
    ".flo": rb"PIEH",
    ".pfm": rb"PF",
    ".ply": rb"ply",
    ".onnx": rb"\x08",
    ".parquet": rb"PAR1",
}
#: What our videos end with: a box or a chunk that players skip. The writer leaves no room for it elsewhere.
VIDEO_ENDS = {".mp4": b"\0\0\0\x14freedeepmatching", ".avi": b"JUNK\x0c\0\0\0deepmatching"}
#: A temporary file that nobody has written to for this many seconds was left behind by a killed process.
_STALE_AFTER = 3600.0


def as_path(path: PathLike) -> Path:
    """Return a path as ``Path``; raise for anything but text and paths of text."""
    if not isinstance(path, str | os.PathLike) or isinstance(os.fspath(path), bytes):
        raise DeepMatchingError(f"A path must be text or a pathlib.Path, not {short_repr(path)}.")
    return Path(path)


def check_suffix(path: PathLike, suffixes: Iterable[str], kind: str) -> str:
    """Return the suffix of `path` in lower case; raise unless it is one of `suffixes`."""
    suffix, known = as_path(path).suffix.lower(), list(suffixes)
    if suffix not in known:
        allowed = " or ".join(filter(None, (", ".join(known[:-1]), known[-1])))
        raise DeepMatchingError(f"Cannot tell the {kind} format of '{path}': name it {allowed}.")
    return suffix


def check_replaceable(path: PathLike) -> None:
    """Raise if there is a file that does not begin, or end, as ours of that suffix do: it is somebody else's."""
    suffix = Path(path).suffix.lower()
    if not os.path.isfile(path) or not (size := os.path.getsize(path)):
        return
    is_ours = re.match(_BEGINNINGS.get(suffix, b""), read_bytes(path, "file", 4096)) is not None
    if end := VIDEO_ENDS.get(suffix):
        with open(path, "rb") as file:
            file.seek(max(0, size - len(end)))
            is_ours = file.read() == end
    if not is_ours:
        raise DeepMatchingError(f"'{path}' exists and is not from deepmatching: give another name, or remove it.")


def signed(picture: bytes) -> bytes:
    """Return a PNG or JPEG picture with a remark that it is from this package; others unchanged."""
    if picture.startswith(b"\x89PNG"):  # a chunk after the signature and the header, of 8 and 25 bytes
        content = b"tEXtSoftware\0deepmatching"
        chunk = struct.pack(">I", len(content) - 4) + content + struct.pack(">I", zlib.crc32(content))
        return picture[:33] + chunk + picture[33:]
    if picture.startswith(b"\xff\xd8"):
        return picture[:2] + b"\xff\xfe\0\x0edeepmatching" + picture[2:]
    return picture


def refuse_address(path: PathLike) -> None:
    """Raise if a path is an address such as ``s3://bucket``, which would become a folder of that name."""
    if scheme := scheme_of(as_path(path)):
        advice = "mount it (rclone, s3fs, gcsfuse), or copy them"
        raise DeepMatchingError(f"'{scheme}://' is an address, but these files are in folders: {advice}.")


def read_bytes(path: PathLike, kind: str, max_bytes: int = -1) -> bytes:
    """Read up to `max_bytes` bytes of a file; raise if it is empty. Messages call it `kind`: "image", "flow file", …"""
    path = as_path(path)
    name = shown(path)
    if os.path.isdir(path):
        raise DeepMatchingError(f"The {kind} '{name}' is a folder; give the name of a file.")
    try:
        if scheme_of(path):
            check_address(path)
            data = read_address(path, max_bytes)
        else:
            with path.open("rb") as file:
                data = file.read(max_bytes)
    except DeepMatchingError:
        raise
    except FileNotFoundError as error:
        raise DeepMatchingError(f"There is no {kind} '{name}'; check the path.") from error
    except (OSError, ValueError) as error:
        reason = f"cannot be read ({_reason(error)})"
        raise DeepMatchingError(f"The {kind} '{name}' {reason}; check the path and its permissions.") from error
    if not data:
        raise DeepMatchingError(f"The {kind} '{name}' is an empty file; copy or download it again.")
    return data


@contextlib.contextmanager
def new_folders(*paths: PathLike) -> Iterator[None]:
    """Create folders for results; if the block fails, remove those that it created and left empty."""
    created = [p for path in paths for p in reversed((Path(path), *Path(path).parents)) if not os.path.exists(p)]
    try:
        for path in paths:
            make_folder(path)
        yield
    except BaseException:
        for place in reversed(created):
            with contextlib.suppress(OSError):
                place.rmdir()
        raise


def make_folder(path: PathLike) -> None:
    """Create a folder for results and its parents, unless it exists; see also :func:`remove_temporaries`."""
    path = as_path(path)
    refuse_address(path)
    try:
        os.makedirs(path, exist_ok=True)
        remove_temporaries(path)
    except FileExistsError:
        raise DeepMatchingError(f"Cannot use '{path}' as a folder: it is a file; give another name.") from None
    except (OSError, ValueError) as error:
        raise _cannot_write(path, error) from error


def check_writable(path: PathLike) -> None:
    """Raise now, before any work, if :func:`atomic_write` could not write `path`."""
    temporary, target = _create_temporary(path)
    temporary.unlink()
    remove_temporaries(target.parent)


def remove_temporaries(folder: PathLike, is_locked: bool = False) -> None:
    """Remove the temporary files that killed processes left in a folder.

    Unless the folder is locked (``io.store``), another process may be at work there. Then only temporary files go that
    nobody has written to for an hour.
    """
    with contextlib.suppress(OSError):
        for name in os.listdir(folder):
            if _TEMPORARY.fullmatch(name):
                file = Path(folder, name)
                with contextlib.suppress(OSError):
                    if is_locked or time.time() - file.stat().st_mtime > _STALE_AFTER:
                        file.unlink()


@contextlib.contextmanager
def atomic_write(path: PathLike) -> Iterator[Path]:
    """Yield a temporary path beside `path`; rename it to `path` on success, remove it on failure.

    The temporary file exists (empty) and has the same suffix, because many writers choose the format by suffix. It is
    synced to the disk before the rename, so that a power failure leaves the old file or the new one. The new file has
    the mode and, where that is allowed, the owner of the old one. Symbolic links stay; their target is replaced.
    """
    temporary, target = _create_temporary(path)
    try:
        yield temporary
        try:
            with open(temporary, "rb+") as file:
                os.fsync(file.fileno())
            _keep_mode(temporary, target)
            _replace(temporary, target)
        except OSError as error:
            raise _cannot_write(path, error) from error
    except BaseException as error:
        with contextlib.suppress(OSError):
            temporary.unlink()
        if isinstance(error, OSError) and error.errno is not None:
            raise _cannot_write(path, error) from error
        raise


def write_file(path: PathLike, content: bytes | memoryview | str) -> None:
    """Write a file atomically, in a folder or at an address; text in UTF-8."""
    data = content.encode() if isinstance(content, str) else content
    if scheme_of(path):
        with _at_address(path, "written"):
            return write_address(path, data)
    with atomic_write(path) as temporary:
        temporary.write_bytes(data)


def is_file(path: PathLike) -> bool:
    """Return whether there is a file of this path or at this address."""
    if not scheme_of(path):
        return os.path.isfile(path)
    with _at_address(path, "read"):
        return exists_address(path)


def remove_file(path: PathLike) -> None:
    """Remove a file, in a folder or at an address, if it is there."""
    if not scheme_of(path):
        return Path(path).unlink(missing_ok=True)
    with _at_address(path, "removed"):
        remove_address(path)


def list_names(folder: PathLike) -> list[str]:
    """Return the names of what is in a folder, or below an address; none if there is no such folder."""
    if scheme_of(folder):
        return list(list_stamps(folder))
    try:
        return os.listdir(folder)
    except FileNotFoundError:
        return []


def list_stamps(address: PathLike) -> dict[str, str]:
    """Return the names below an address, and the size, time and digest of each."""
    with _at_address(address, "read"):
        return list_address(address)


def absolute(path: PathLike) -> str:
    """Return what a path or an address is called everywhere on this machine."""
    return shown(path) if scheme_of(path) else os.path.abspath(path)


@contextlib.contextmanager
def _at_address(address: PathLike, done: str) -> Iterator[None]:
    """Turn what goes wrong with an address into one sentence; ``done`` to it is a word such as "written"."""
    check_address(address)
    try:
        yield
    except OSError as error:
        advice = "check the address, your credentials and the network"
        raise DeepMatchingError(f"'{shown(address)}' cannot be {done} ({_reason(error)}): {advice}.") from error


def _create_temporary(path: PathLike) -> tuple[Path, Path]:
    """Create an empty temporary file beside `path`; return it and the file that it is to replace."""
    path = as_path(path)
    refuse_address(path)
    try:
        target = Path(os.path.realpath(path))
        target.exists()  # raises for names that no file can have
    except (OSError, ValueError) as error:
        raise _cannot_write(path, error) from error
    if target.is_symlink():
        raise DeepMatchingError(f"Cannot write '{path}': it is a symbolic link in a loop; give another name.")
    if target.is_dir():
        raise DeepMatchingError(f"Cannot write '{path}': it is a folder; give the name of a file.")
    if not target.parent.is_dir():
        raise DeepMatchingError(f"Cannot write '{path}': there is no folder '{target.parent}'; create it first.")
    # Renaming over a device would replace the device itself (as root even /dev/null).
    if target.exists() and not target.is_file():
        raise DeepMatchingError(f"Cannot write '{path}': it is not a regular file; give another name.")

    # Not `tempfile`: its files are private to the user (mode 600) and would stay so after the rename.
    temporary = target.with_name(f"{_PREFIX}{uuid.uuid4().hex}{target.suffix}")
    mode = 0o600 if target.exists() else 0o666  # what replaces a private file is private from the start
    try:
        os.close(os.open(temporary, os.O_CREAT | os.O_EXCL | os.O_WRONLY, mode))
    except OSError as error:
        raise _cannot_write(path, error) from error
    return temporary, target


def _keep_mode(temporary: Path, target: Path) -> None:
    """Give the temporary file the mode of the file that it replaces and, where that is allowed, its owner and group."""
    if not target.exists():
        return
    about = target.stat()
    if hasattr(os, "chown"):
        for owner, group in ((about.st_uid, -1), (-1, about.st_gid)):
            with contextlib.suppress(OSError):
                os.chown(temporary, owner, group)
    with contextlib.suppress(OSError):  # file systems without modes
        os.chmod(temporary, stat.S_IMODE(about.st_mode))


def _replace(source: Path, target: Path) -> None:
    for pause in _PAUSES:
        try:
            return os.replace(source, target)
        except PermissionError:
            time.sleep(pause)
    os.replace(source, target)


def _reason(error: OSError | ValueError) -> str:
    return getattr(error, "strerror", None) or str(error)


def _cannot_write(path: PathLike, error: OSError | ValueError) -> DeepMatchingError:
    number, advice = getattr(error, "errno", None), "write to another disk"
    problem = f" ({_reason(error)}); check the permissions of its folder or choose another folder"
    if number in (errno.ENOSPC, errno.EDQUOT):
        problem = f": no space is left; free some space or {advice}"
    elif number == errno.EFBIG:
        problem = f": it exceeds the largest file size that is allowed; raise that (ulimit -f), or {advice}"
    return DeepMatchingError(f"Cannot write '{path}'{problem}.")
