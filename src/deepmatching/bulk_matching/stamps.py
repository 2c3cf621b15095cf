"""Whether the file of an image is still the one that was matched.

A stamp is the size of a file, its time and a digest of its beginning and end. Photographs that were copied, or
downloaded again, have another time, and need not be matched again.
"""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

MISSING = "missing"

#: Formats in which other pixels give another size or another end of the file. In others, the time counts.
_COMPRESSED = (".jpg", ".jpeg", ".png", ".webp")

#: Bytes at the beginning and at the end that are read.
_PART = 16_384


def stamp(path: Path, before: str = "") -> str:
    """The stamp of a file; the one ``before`` if size and time are the same, so that the file is not read."""
    try:
        about = path.stat()
        text = f"{about.st_size} bytes, {about.st_mtime_ns} ns"
        if before.startswith(f"{text}, "):
            return before
        with path.open("rb") as file:
            digest = hashlib.sha256(file.read(_PART))
            file.seek(max(0, about.st_size - _PART), os.SEEK_SET)
            digest.update(file.read(_PART))
    except (OSError, ValueError):
        return MISSING
    return f"{text}, {digest.hexdigest()[:16]}"


def is_same(name: str, before: str, now: str) -> bool:
    """Whether two stamps are of one content; ``name`` tells the format."""
    (size0, *rest0), (size1, *rest1) = before.split(", "), now.split(", ")
    if size0 != size1 or rest0[:1] == rest1[:1]:
        return size0 == size1
    is_compressed = Path(name).suffix.lower() in _COMPRESSED
    return is_compressed and len(rest0) == 2 and rest0[1:] == rest1[1:]  # the first runs had no digests
