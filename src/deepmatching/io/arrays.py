"""NumPy's files: one array (``.npy``) or several by name (``.npz``).

NumPy's own reader raises a dozen kinds of exceptions for damaged files, and allocates whatever they declare. Here
everything that can be wrong with a file is one sentence, and sizes are checked before anything is allocated.
"""

from __future__ import annotations

import io
import math
import re
import zipfile
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from deepmatching.errors import DeepMatchingError
from deepmatching.io.files import PathLike, read_bytes

#: Bytes that the arrays of one file may take together: 10⁸ numbers in double precision, more than any pair of images
#: has matches or pixels.
LARGEST_CONTENT = 2**30

#: The most that deflate, the compression of ``.npz`` and ``.h5``, can shrink anything.
LARGEST_COMPRESSION = 1032

_MAGIC = b"\x93NUMPY"
_LARGEST_HEADER = 10_000  # as in NumPy


class Unreadable(ValueError):
    """What is wrong with a file, such as "is cut short": the part of a sentence after its name."""


class NotNumbers(Unreadable):
    """The file is in order, but holds text or Python objects."""


def read_npy(path: PathLike, kind: str) -> np.ndarray:
    """The array of numbers in an ``.npy`` file, which messages call ``kind``: "flow file", "edge map", …"""
    data = read_bytes(path, kind)
    try:
        return decode_npy(data)
    except Unreadable as error:
        raise DeepMatchingError(
            f"The {kind} '{path}' {error}; write one array of numbers to an .npy file again."
        ) from error


def decode_npy(data: bytes) -> np.ndarray:
    """The array of numbers in the bytes of an ``.npy`` file; raises :class:`Unreadable`."""
    if data.startswith(b"PK"):
        raise Unreadable("is an archive of arrays, not an .npy file")
    if not data.startswith(_MAGIC) or len(data) < 12:
        raise Unreadable("is not an .npy file")
    width = 2 if data[6] == 1 else 4  # bytes of the header's length, by the version of the format
    start = 8 + width + int.from_bytes(data[8 : 8 + width], "little")
    if start > len(data):
        raise Unreadable("is cut short")
    if start > _LARGEST_HEADER:
        raise Unreadable("has a damaged header")
    dtype, shape, is_fortran = _header(data[8 + width : start])
    needed = math.prod(shape) * dtype.itemsize
    if needed > len(data) - start:
        raise Unreadable(f"is cut short: it has {len(data) - start} bytes of data, but its header says {needed}")
    flat = np.frombuffer(data, dtype, count=math.prod(shape), offset=start) if needed else np.zeros(0, dtype)
    return flat.reshape(shape, order="F" if is_fortran else "C").copy()


#: The parts of a header that NumPy and others write: {'descr': '<f4', 'fortran_order': False, 'shape': (480, 640), }.
_DESCR = re.compile(r"""['"]descr['"]\s*:\s*['"]([<>|=]?[fiubc]\d{1,2})['"]""")
_ORDER = re.compile(r"""['"]fortran_order['"]\s*:\s*(True|False)""")
_SHAPE = re.compile(r"""['"]shape['"]\s*:\s*\(\s*((?:\d{1,18}L?\s*,\s*)*(?:\d{1,18}L?\s*)?)\)""")  # Python 2 wrote 10L


def _header(data: bytes) -> tuple[np.dtype[Any], tuple[int, ...], bool]:
    """The type, the shape and the order of an array from the text before it. It is Python, but not evaluated."""
    text = data.decode("latin1")
    order, shape, descr = (pattern.search(text) for pattern in (_ORDER, _SHAPE, _DESCR))
    if order is None or shape is None or "descr" not in text:
        raise Unreadable("has a damaged header")
    try:
        dtype = np.dtype(descr[1]) if descr else None
    except TypeError:  # such as f3
        dtype = None
    if dtype is None:
        raise NotNumbers("does not hold an array of numbers")
    sides = tuple(int(side) for side in re.findall(r"\d+", shape[1]))
    if len(sides) > 32:
        raise Unreadable("has a damaged header")
    return dtype, sides, order[1] == "True"


class Archive(Mapping[str, np.ndarray]):
    """The arrays of an ``.npz`` file by name; each is read when it is asked for, and not kept.

    Args:
        path: the file.
        kind: what messages call it, such as "matches file".
    """

    def __init__(self, path: PathLike, kind: str) -> None:
        self.path, self.kind = path, kind
        data = read_bytes(path, kind)
        if data.startswith(_MAGIC):
            raise self._error("holds a single array instead of an archive")
        try:
            self._zip = zipfile.ZipFile(io.BytesIO(data))
            infos = self._zip.infolist()
        except Exception as error:  # also struct.error, NotImplementedError, UnicodeDecodeError, …
            raise self._error("is damaged, or not a .npz file") from error
        self._infos = {info.filename.removesuffix(".npy"): info for info in infos}
        self._left = LARGEST_CONTENT

    def __getitem__(self, name: str) -> np.ndarray:
        info = self._infos[name]
        if info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED) or info.flag_bits & 1:
            raise self._error(f"holds '{name}' encrypted or in an unknown compression")
        if info.file_size > info.compress_size * LARGEST_COMPRESSION:
            raise self._error(f"declares {info.file_size} bytes for '{name}', more than it can hold")
        self._left -= info.file_size
        if self._left < 0:
            raise self._error(f"declares arrays of more than {LARGEST_CONTENT} bytes, too many for a pair of images")
        try:
            data = self._zip.read(info)
        except Exception as error:  # BadZipFile, zlib.error, EOFError, OSError, …
            raise self._error(f"is damaged at '{name}'") from error
        try:
            return decode_npy(data)
        except NotNumbers as error:
            raise DeepMatchingError(
                f"'{self.path}' is not a readable {self.kind}: its {name} are not an array of numbers; save one."
            ) from error
        except Unreadable as error:
            raise self._error(f"has an array '{name}' that {error}") from error

    def __iter__(self) -> Iterator[str]:
        return iter(self._infos)

    def __len__(self) -> int:
        return len(self._infos)

    def _error(self, problem: str) -> DeepMatchingError:
        return DeepMatchingError(f"'{self.path}' is not a readable {self.kind}: it {problem}; write it again.")
