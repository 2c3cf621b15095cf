"""Arrays in HDF5 files. Only arrays that lie in the file itself are read, and only of a size that it can hold."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from deepmatching.errors import DeepMatchingError
from deepmatching.io.arrays import LARGEST_COMPRESSION, LARGEST_CONTENT
from deepmatching.io.files import PathLike, read_bytes

if TYPE_CHECKING:
    import h5py

#: Groups in groups are followed this far; other matchers have three levels at most.
_DEEPEST = 8

#: Groups and arrays that are looked at.
_MOST_ITEMS = 100_000


class Arrays(Mapping[str, np.ndarray]):
    """The arrays of a group by name; each is read when it is asked for, and not kept."""

    def __init__(self, file: Hdf5, datasets: Mapping[str, Any]) -> None:
        self._file, self._datasets = file, datasets

    def __getitem__(self, name: str) -> np.ndarray:
        return self._file.read(self._datasets[name], name)

    def __iter__(self) -> Iterator[str]:
        return iter(self._datasets)

    def __len__(self) -> int:
        return len(self._datasets)


class Hdf5:
    """An HDF5 file, open for reading.

    Args:
        path: the file.
        kind: what messages call it, such as "matches file".
    """

    def __init__(self, path: PathLike, kind: str) -> None:
        import h5py

        self.path, self.kind = path, kind
        read_bytes(path, kind, most=1)  # raises in our words
        self._size, self._left = os.path.getsize(path), LARGEST_CONTENT
        try:
            self._file = h5py.File(os.fspath(path), "r")
        except Exception as error:  # OSError, RuntimeError, KeyError, … as HDF5's own messages suggest
            raise self._error("is damaged, or not an HDF5 file") from error

    def __enter__(self) -> Hdf5:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def groups(self) -> dict[str, Arrays]:
        """The groups that hold arrays, by their path in the file; "" is the file itself.

        A link may lead out of the file, so it is not followed: it counts as an array that cannot be read.
        """
        found: dict[str, dict[str, Any]] = {}
        try:
            self._collect(self._file, "", found, depth=0, seen=set())
        except DeepMatchingError:
            raise
        except Exception as error:  # as above
            raise self._error("is damaged") from error
        return {name: Arrays(self, datasets) for name, datasets in found.items()}

    def _collect(
        self, group: h5py.Group, place: str, found: dict[str, dict[str, Any]], depth: int, seen: set[int]
    ) -> None:
        """Add the arrays of a group and of the groups in it. A group may contain itself: each is visited once."""
        import h5py

        address = h5py.h5o.get_info(group.id).addr
        if address in seen or depth > _DEEPEST:
            return
        seen.add(address)
        for name in group:
            is_link = not isinstance(group.get(name, getlink=True), h5py.HardLink)
            item = None if is_link else group[name]
            if item is None or isinstance(item, h5py.Dataset):
                found.setdefault(place, {})[name] = item
            elif isinstance(item, h5py.Group):
                self._collect(item, f"{place}/{name}" if place else name, found, depth + 1, seen)
            if len(seen) + sum(map(len, found.values())) > _MOST_ITEMS:
                raise self._error(f"has more than {_MOST_ITEMS} arrays")

    def read(self, dataset: h5py.Dataset | None, name: str) -> np.ndarray:
        """An array of numbers; raises before allocating it if it is elsewhere, or larger than the file can hold."""
        if dataset is None:
            raise self._error(f"has a link to another place instead of the array '{name}'")
        try:
            is_elsewhere = dataset.is_virtual or dataset.external is not None
            is_numbers, bytes_each = dataset.dtype.kind in "fiub", dataset.dtype.itemsize
            declared = math.prod(dataset.shape or ()) * bytes_each
            piece = math.prod(dataset.chunks or ()) * bytes_each
        except Exception as error:  # as above
            raise self._error(f"is damaged at '{name}'") from error
        if is_elsewhere:
            raise self._error(f"keeps '{name}' in another file")
        if not is_numbers or dataset.shape is None:
            raise DeepMatchingError(
                f"'{self.path}' is not a readable {self.kind}: its {name} are not an array of numbers; save one."
            )
        self._left -= declared
        if max(declared, piece) > self._size * LARGEST_COMPRESSION:
            raise self._error(f"declares {max(declared, piece)} bytes for '{name}', more than it can hold")
        if self._left < 0 or piece > LARGEST_CONTENT:
            raise self._error(f"declares arrays of more than {LARGEST_CONTENT} bytes, too many for a pair of images")
        try:
            return np.asarray(dataset[()])
        except Exception as error:  # as above
            raise self._error(f"is damaged at '{name}'") from error

    def _error(self, problem: str) -> DeepMatchingError:
        return DeepMatchingError(f"'{self.path}' is not a readable {self.kind}: it {problem}; write it again.")
