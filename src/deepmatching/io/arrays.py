"""Arrays in files: one (``.npy``), several by name (``.npz``), or several in groups (HDF5).

NumPy's own reader raises a dozen kinds of exceptions for damaged files, and allocates whatever they declare. Here each
problem raises a clear error, and sizes are checked before anything is allocated.
"""

from __future__ import annotations

import io
import math
import os
import zipfile
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from deepmatching.errors import DeepMatchingError
from deepmatching.io.files import PathLike, read_bytes

if TYPE_CHECKING:
    import h5py

#: Bytes that the arrays of one file may take together: 10⁸ numbers in double precision, more than any pair of images
#: has matches or pixels.
LARGEST_CONTENT = 2**30

#: The most that deflate, the compression of ``.npz`` and ``.h5``, can shrink anything.
LARGEST_COMPRESSION = 1032

#: Groups in groups of HDF5 are followed this far; other matchers have three levels at most.
_MAX_DEPTH = 8

#: Groups and arrays of HDF5 that are looked at.
_MAX_ITEMS = 100_000

_MAGIC = b"\x93NUMPY"


class Unreadable(ValueError):
    """What is wrong with a file, such as "is cut short": the part of a sentence after its name."""


class NotNumbers(Unreadable):
    """The file is in order, but holds text or Python objects."""


def read_npy(path: PathLike, kind: str) -> np.ndarray:
    """Read the array of numbers in an ``.npy`` file, which messages call ``kind``: "flow file", "edge map", …"""
    data = read_bytes(path, kind)
    try:
        return decode_npy(data)
    except Unreadable as error:
        raise DeepMatchingError(
            f"The {kind} '{path}' {error}; write one array of numbers to an .npy file again."
        ) from error


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
        raise NotNumbers("does not hold an array of numbers")
    start, count = stream.tell(), math.prod(shape)
    if min(shape, default=0) < 0 or len(shape) > 32 or count * dtype.itemsize > len(data) - start:
        raise Unreadable(f"is cut short: it has {len(data) - start} bytes of data, but its header says {shape}")
    flat = np.frombuffer(data, dtype, count, start) if count else np.zeros(0, dtype)
    return flat.reshape(shape, order="F" if is_fortran else "C").copy()


class _Container:
    """A file of several arrays, which together may take :data:`LARGEST_CONTENT`.

    Args:
        path: the file.
        kind: what messages call it, such as "matches file".
    """

    def __init__(self, path: PathLike, kind: str) -> None:
        self.path, self.kind = path, kind
        self._left = LARGEST_CONTENT

    def _claim(self, name: str, size: int, stored: int, chunk: int = 0) -> None:
        """Raise if the file declares more bytes for an array, or a chunk of it, than it can hold, or too many."""
        self._left -= size
        if max(size, chunk) > stored * LARGEST_COMPRESSION:
            raise self._error(f"declares {max(size, chunk)} bytes for '{name}', more than it can hold")
        if self._left < 0 or chunk > LARGEST_CONTENT:
            raise self._error(f"declares arrays of more than {LARGEST_CONTENT} bytes, too many for a pair of images")

    def _error(self, problem: str) -> DeepMatchingError:
        return DeepMatchingError(f"'{self.path}' is not a readable {self.kind}: it {problem}; write it again.")

    def _not_numbers(self, name: str) -> DeepMatchingError:
        return DeepMatchingError(
            f"'{self.path}' is not a readable {self.kind}: its {name} are not an array of numbers; save one."
        )


class Archive(_Container, Mapping[str, np.ndarray]):
    """The arrays of an ``.npz`` file by name; each is read when it is asked for, and not kept."""

    def __init__(self, path: PathLike, kind: str) -> None:
        super().__init__(path, kind)
        data = read_bytes(path, kind)
        if data.startswith(_MAGIC):
            raise self._error("holds a single array instead of an archive")
        try:
            self._zip = zipfile.ZipFile(io.BytesIO(data))
            infos = self._zip.infolist()
        except Exception as error:  # also struct.error, NotImplementedError, UnicodeDecodeError, …
            raise self._error("is damaged, or not a .npz file") from error
        self._infos = {info.filename.removesuffix(".npy"): info for info in infos}

    def __getitem__(self, name: str) -> np.ndarray:
        info = self._infos[name]
        if info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED) or info.flag_bits & 1:
            raise self._error(f"holds '{name}' encrypted or in an unknown compression")
        self._claim(name, info.file_size, info.compress_size)
        try:
            return decode_npy(self._zip.read(info))
        except NotNumbers as error:
            raise self._not_numbers(name) from error
        except Unreadable as error:
            raise self._error(f"has an array '{name}' that {error}") from error
        except Exception as error:  # BadZipFile, zlib.error, EOFError, OSError, …
            raise self._error(f"is damaged at '{name}'") from error

    def __iter__(self) -> Iterator[str]:
        return iter(self._infos)

    def __len__(self) -> int:
        return len(self._infos)


class _Group(Mapping[str, np.ndarray]):
    """The arrays of a group by name; each is read when it is asked for, and not kept."""

    def __init__(self, file: Hdf5, datasets: Mapping[str, Any]) -> None:
        self._file, self._datasets = file, datasets

    def __getitem__(self, name: str) -> np.ndarray:
        return self._file.read(self._datasets[name], name)

    def __iter__(self) -> Iterator[str]:
        return iter(self._datasets)

    def __len__(self) -> int:
        return len(self._datasets)


class Hdf5(_Container):
    """An HDF5 file, open for reading. Only arrays that lie in the file itself are read."""

    def __init__(self, path: PathLike, kind: str) -> None:
        import h5py

        super().__init__(path, kind)
        read_bytes(path, kind, max_bytes=1)  # raises in our words
        self._size = os.path.getsize(path)
        try:
            self._file = h5py.File(os.fspath(path), "r")
        except Exception as error:  # OSError, RuntimeError, KeyError, … as HDF5's own messages suggest
            raise self._error("is damaged, or not an HDF5 file") from error

    def __enter__(self) -> Hdf5:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def groups(self) -> dict[str, _Group]:
        """Return the groups that hold arrays, by their path in the file; "" is the file itself.

        A link may lead out of the file, so it is not followed: it counts as an array that cannot be read.
        """
        found: dict[str, dict[str, Any]] = {}
        try:
            self._collect(self._file, "", found, depth=0, seen=set())
        except DeepMatchingError:
            raise
        except Exception as error:  # as above
            raise self._error("is damaged") from error
        return {name: _Group(self, datasets) for name, datasets in found.items()}

    def _collect(
        self, group: h5py.Group, place: str, found: dict[str, dict[str, Any]], depth: int, seen: set[int]
    ) -> None:
        """Add the arrays of a group and of the groups in it. A group may contain itself: each is visited once."""
        import h5py

        address = h5py.h5o.get_info(group.id).addr
        if address in seen or depth > _MAX_DEPTH:
            return
        seen.add(address)
        for name in group:
            is_link = not isinstance(group.get(name, getlink=True), h5py.HardLink)
            item = None if is_link else group[name]
            if item is None or isinstance(item, h5py.Dataset):
                found.setdefault(place, {})[name] = item
            elif isinstance(item, h5py.Group):
                self._collect(item, f"{place}/{name}" if place else name, found, depth + 1, seen)
            if len(seen) + sum(map(len, found.values())) > _MAX_ITEMS:
                raise self._error(f"has more than {_MAX_ITEMS} arrays")

    def read(self, dataset: h5py.Dataset | None, name: str) -> np.ndarray:
        """Read an array of numbers; raise before allocating it if it is elsewhere, or larger than the file can hold."""
        if dataset is None:
            raise self._error(f"has a link to another place instead of the array '{name}'")
        try:
            is_elsewhere = dataset.is_virtual or dataset.external is not None
            is_numbers, bytes_each = dataset.dtype.kind in "fiub", dataset.dtype.itemsize
            declared = math.prod(dataset.shape or ()) * bytes_each
            chunk = math.prod(dataset.chunks or ()) * bytes_each
        except Exception as error:  # as above
            raise self._error(f"is damaged at '{name}'") from error
        if is_elsewhere:
            raise self._error(f"keeps '{name}' in another file")
        if not is_numbers or dataset.shape is None:
            raise self._not_numbers(name)
        self._claim(name, declared, self._size, chunk)
        try:
            return np.asarray(dataset[()])
        except Exception as error:  # as above
            raise self._error(f"is damaged at '{name}'") from error
