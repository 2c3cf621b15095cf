"""The orientation of a photograph: how the stored pixels are turned to show it upright.

``load_image`` turns photographs upright, as EXIF says. COLMAP and hloc work on the stored pixels. Positions go from one
to the other here.
"""

from __future__ import annotations

import struct

import numpy as np

from deepmatching.errors import DeepMatchingError
from deepmatching.io.files import PathLike, read_bytes

#: The EXIF tag, and its value for an image that is stored upright.
_TAG, UPRIGHT = 0x0112, 1

#: Bytes of a file that are searched for the tag. JPEG keeps EXIF in the first segments; PNG may keep it anywhere.
_SEARCHED = 2**18


def read_orientation(path: PathLike) -> int:
    """The EXIF orientation, 1 to 8, of a JPEG, PNG, WebP or TIFF file; 1 (upright) if it has none or is unreadable."""
    try:
        data = read_bytes(path, "image", most=_SEARCHED)
        return _in_tiff(_exif_part(data))
    except (DeepMatchingError, struct.error):
        return UPRIGHT


def to_stored(points: np.ndarray, size: tuple[int, int], orientation: int) -> np.ndarray:
    """Positions (N, 2) in the stored pixels, from those in the upright image of ``size`` (rows, columns).

    Both are measured at pixel centres.
    """
    rows, columns = size
    x, y = points[:, 0], points[:, 1]
    right, bottom = columns - 1 - x, rows - 1 - y
    stored = {
        2: (right, y),
        3: (right, bottom),
        4: (x, bottom),
        5: (y, x),
        6: (y, right),
        7: (bottom, right),
        8: (bottom, x),
    }.get(orientation, (x, y))
    return np.stack(stored, axis=1).astype(points.dtype)


def stored_size(size: tuple[int, int], orientation: int) -> tuple[int, int]:
    """The size (rows, columns) of the stored pixels, from that of the upright image."""
    return (size[1], size[0]) if orientation >= 5 else size


def _exif_part(data: bytes) -> bytes:
    """The EXIF block of a file, which is a small TIFF file; b"" if there is none."""
    if data[:4] in (b"II*\0", b"MM\0*"):
        return data
    if data.startswith(b"\xff\xd8"):
        return _exif_of_jpeg(data)
    for start, kind, marker in ((b"\x89PNG", b"eXIf", 4), (b"RIFF", b"EXIF", 8)):
        if data.startswith(start) and (place := data.find(kind)) >= 0:
            block = data[place + marker :]
            return block.removeprefix(b"Exif\0\0")
    return b""


def _exif_of_jpeg(data: bytes) -> bytes:
    place = 2
    while place + 4 <= len(data) and data[place] == 0xFF and data[place + 1] != 0xDA:
        length = int.from_bytes(data[place + 2 : place + 4], "big")
        block = data[place + 4 : place + 2 + length]
        if data[place + 1] == 0xE1 and block.startswith(b"Exif\0\0"):
            return block[6:]
        place += 2 + max(2, length)
    return b""


def _in_tiff(block: bytes) -> int:
    """The orientation in the first directory of a TIFF block."""
    order = {b"II": "<", b"MM": ">"}.get(block[:2])
    if order is None:
        return UPRIGHT
    (start,) = struct.unpack_from(f"{order}I", block, 4)
    (count,) = struct.unpack_from(f"{order}H", block, start)
    for entry in range(count):
        tag, kind, _, value = struct.unpack_from(f"{order}HHIH", block, start + 2 + 12 * entry)
        if tag == _TAG and kind == 3 and 1 <= value <= 8:
            return int(value)
    return UPRIGHT
