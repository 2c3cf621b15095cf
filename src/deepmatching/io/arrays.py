"""Arrays in files: one (``.npy``), several by name (``.npz``), or several in groups (HDF5).

NumPy's own reader raises a dozen kinds of exceptions for damaged files, and allocates whatever they declare. Here each
problem raises a clear error, and sizes are checked before anything is allocated.
"""

import io
import itertools
import math
import os
import zipfile
from collections import UserDict
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np

from deepmatching.errors import DeepMatchingError, short_repr
from deepmatching.io.addresses import shown
from deepmatching.io.files import PathLike, read_bytes

#: Bytes that the arrays of one file may take together: more numbers than any pair of images has matches or pixels.
LARGEST_CONTENT = 2**30
LARGEST_COMPRESSION = 1032  #: the most that deflate, the compression of ``.npz`` and ``.h5``, can shrink anything
_MAX_DEPTH = 64  #: of groups in groups of HDF5, which are named after images in folders
_MAX_ITEMS = 100_000  #: groups and arrays of HDF5 that are looked at
_MAGIC = b"\x93NUMPY"
_NOT_NUMBERS = "does not hold an array of numbers"


class Unreadable(ValueError):
    """What is wrong with a file, such as "is cut short": the part of a sentence after its name."""


def unmasked(array: Any, name: str) -> np.ndarray:
    """Return an array of whatever kind as a plain one; raise if some of its numbers are masked."""
    if np.ma.is_masked(array):
        raise DeepMatchingError(f"The {name} has masked numbers, which cannot be left out; fill them with a value.")
    try:
        return np.asarray(array)
    except (TypeError, ValueError, RuntimeError):
        raise DeepMatchingError(f"The {name} must be an array of numbers, not {short_repr(array)}.") from None


def read_npy(path: PathLike, kind: str) -> np.ndarray:
    """Read the array of numbers in an ``.npy`` file, which messages call ``kind``: "flow file", "edge map", …"""
    data = read_bytes(path, kind)
    try:
        return decode_npy(data)
    except Unreadable as error:
        raise DeepMatchingError(f"The {kind} '{path}' {error}; write one array of numbers again.") from error


def decode_npy(data: bytes) -> np.ndarray:
    """Decode the array of numbers in the bytes of an ``.npy`` file; raise :class:`Unreadable`."""
    if data.startswith(b"PK"):
        raise Unreadable("is an archive of arrays, not an .npy file")
    stream = io.BytesIO(data)
    try:
        version = np.lib.format.read_magic(stream)
        read_header = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
        shape, is_fortran, dtype = read_header(stream)
    except Exception as error:  # ValueError, SyntaxError, TypeError, MemoryError, …
        raise Unreadable("is not an .npy file, or has a damaged header") from error
    if dtype.kind not in "fiub":
        raise Unreadable(_NOT_NUMBERS)
    start, count = stream.tell(), math.prod(shape)
    if min(shape, default=0) < 0 or len(shape) > 32 or count * dtype.itemsize > len(data) - start:
        raise Unreadable(f"is cut short: it has {len(data) - start} bytes of data, but its header says {shape}")
    flat = np.frombuffer(data, dtype, count, start) if count else np.zeros(0, dtype)
    return flat.reshape(shape, order="F" if is_fortran else "C").copy()


class _Lazy(UserDict[str, Any]):
    """Arrays by name; each is read when it is asked for, and not kept."""

    def __init__(self, members: Mapping[str, Any], read: Callable[[str, Any], np.ndarray]) -> None:
        super().__init__(members)
        self._read = read

    def __getitem__(self, name: str) -> np.ndarray:
        return self._read(name, self.data[name])


class _Container:
    """A file of several arrays, which together may take :data:`LARGEST_CONTENT`; messages call it ``kind``."""

    def __init__(self, path: PathLike, kind: str) -> None:
        self._subject, self._left = f"'{shown(path)}' is not a readable {kind}", LARGEST_CONTENT

    @contextmanager
    def reading(self, part: str = "it", problem: str = "is damaged") -> Iterator[None]:
        """Turn what a library raises inside this block, one of a dozen kinds of exceptions, into an error of ours."""
        try:
            yield
        except Exception as error:
            what = str(error) if isinstance(error, Unreadable) else problem
            raise DeepMatchingError(f"{self._subject}: {part} {what}; write it again.") from error

    def claim(self, size: int, stored: int, chunk: int = 0) -> None:
        """Raise if an array, or a chunk of it, declares more bytes than the file can hold, or too many."""
        self._left -= size
        if max(size, chunk) > stored * LARGEST_COMPRESSION:
            raise Unreadable(f"declares {max(size, chunk)} bytes, more than the file can hold")
        if self._left < 0 or chunk > LARGEST_CONTENT:
            raise Unreadable(f"takes the arrays beyond {LARGEST_CONTENT} bytes, too many for a pair of images")


def open_npz(path: PathLike, kind: str) -> Mapping[str, np.ndarray]:
    """Return the arrays of an ``.npz`` file by name; each is read when it is asked for, and not kept."""
    file, data = _Container(path, kind), read_bytes(path, kind)
    with file.reading(problem="is damaged, or not a .npz file"):
        if data.startswith(_MAGIC):
            raise Unreadable("holds a single array instead of an archive")
        archive = zipfile.ZipFile(io.BytesIO(data))
        members = {info.filename.removesuffix(".npy"): info for info in archive.infolist()}

    def read(name: str, info: zipfile.ZipInfo) -> np.ndarray:
        with file.reading(f"its array '{name}'"):
            if info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED) or info.flag_bits & 1:
                raise Unreadable("is encrypted or in an unknown compression")
            file.claim(info.file_size, info.compress_size)
            return decode_npy(archive.read(info))

    return _Lazy(members, read)


@contextmanager
def open_hdf5(path: PathLike, kind: str) -> Iterator[dict[str, Mapping[str, np.ndarray]]]:
    """Open an HDF5 file: yield its groups that hold arrays by their path in the file, "" for the file itself.

    Only arrays that lie in the file are read. A link may lead out of it, so it counts as an array that cannot be read.
    """
    import h5py

    file = _Container(path, kind)
    read_bytes(path, kind, max_bytes=1)  # raises in our words

    def read(name: str, dataset: Any) -> np.ndarray:
        with file.reading(f"its array '{name}'"):
            if dataset is None:
                raise Unreadable("is a link to another place")
            if dataset.is_virtual or dataset.external is not None:
                raise Unreadable("is kept in another file")
            if dataset.dtype.kind not in "fiub" or dataset.shape is None:
                raise Unreadable(_NOT_NUMBERS)
            size, chunk = (math.prod(shape or ()) * dataset.dtype.itemsize for shape in (dataset.shape, dataset.chunks))
            file.claim(size, os.path.getsize(path), chunk)
            return np.asarray(dataset[()])

    found, visited = dict[str, dict[str, Any]](), itertools.count(1)

    def add(place: str, link: object) -> bool:
        item = opened[place] if isinstance(link, h5py.HardLink) else None
        if item is None or isinstance(item, h5py.Dataset):
            group, _, name = place.rpartition("/")
            found.setdefault(group, {})[name] = item
        return next(visited) > _MAX_ITEMS or place.count("/") > _MAX_DEPTH  # ends the visit

    with file.reading(problem="is damaged, or not an HDF5 file"):
        opened = h5py.File(os.fspath(path), "r")
    with opened:
        with file.reading():
            if opened.visititems_links(add):
                raise Unreadable(f"has more than {_MAX_ITEMS} arrays, or groups more than {_MAX_DEPTH} deep")
        yield {name: _Lazy(datasets, read) for name, datasets in found.items()}
