"""Stamps of images, which tell whether a file has changed since its pairs were planned."""

import hashlib
import os
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import chain, zip_longest
from pathlib import Path

from deepmatching.io.addresses import scheme_of
from deepmatching.io.files import PathLike, list_stamps

MISSING = "missing"  #: The stamp of a file that is not there.
#: Formats in which other pixels give another size or another end of the file. In others, the time counts.
_COMPRESSED = (".jpg", ".jpeg", ".png", ".webp")
_SAMPLED_BYTES = 16_384  #: Bytes at the beginning and at the end of a file that its stamp depends on.
_THREADS = 128  #: Files that are looked at together: a disk in a network answers each after many milliseconds.
_AT_ONCE = 16  #: Files that a thread looks at before it takes others.


def stamps(folder: PathLike, names: Sequence[str], before: Sequence[str]) -> list[str]:
    """Return the stamps of files in a folder; ``before`` has those of the first ones, as they were."""
    if scheme_of(folder):
        there = list_stamps(folder)
        return [there.get(name, MISSING) for name in names]
    both = list(zip_longest(names, before, fillvalue=""))

    def look(start: int) -> list[str]:
        return [stamp(Path(folder, name), old) for name, old in both[start : start + _AT_ONCE]]

    with ThreadPoolExecutor(_THREADS, "deepmatching-stamps") as pool:
        return list(chain.from_iterable(pool.map(look, range(0, len(both), _AT_ONCE))))


def has_any(folder: PathLike, names: Iterable[str]) -> bool:
    """Return whether at least one of the files is in a folder."""
    if scheme_of(folder):
        return not list_stamps(folder).keys().isdisjoint(names)
    return any(os.path.isfile(Path(folder, name)) for name in names)


def stamp(path: Path, before: str = "") -> str:
    """Return the size, time and digest of beginning and end of a file; ``before`` if size and time are unchanged."""
    try:
        about = path.stat()
        text = f"{about.st_size} bytes, {about.st_mtime_ns} ns"
        if before.startswith(f"{text}, "):
            return before
        with path.open("rb") as file:
            digest = hashlib.sha256(file.read(_SAMPLED_BYTES))
            file.seek(max(0, about.st_size - _SAMPLED_BYTES), os.SEEK_SET)
            digest.update(file.read(_SAMPLED_BYTES))
    except (OSError, ValueError):
        return MISSING
    return f"{text}, {digest.hexdigest()[:16]}"


def is_unchanged(name: str, before: str, now: str) -> bool:
    """Return whether two stamps are of one content; ``name`` tells the format.

    Photographs that were copied, or downloaded again, have another time, and need not be matched again.
    """
    (size0, *rest0), (size1, *rest1) = before.split(", "), now.split(", ")
    if size0 != size1 or rest0[:1] == rest1[:1]:
        return size0 == size1
    return Path(name).suffix.lower() in _COMPRESSED and rest0[1:] == rest1[1:]
