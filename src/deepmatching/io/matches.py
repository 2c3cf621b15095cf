"""Files of matches, ours and those of other matchers: the original's text format, ``.npz`` and ``.h5``.

**Pixel convention.** The original program measures from pixel *corners*: x = 0 is the left border of the picture, and
the centre of the first pixel is x = 0.5. Most of Python (OpenCV, kornia, flow files) measures from pixel *centres*: the
first pixel is x = 0. The text format holds corners; everything else holds centres. Only :func:`from_corners` and
:func:`to_corners` convert, by half a pixel. Displacements are the same in both conventions.
"""

from __future__ import annotations

import io
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import numpy as np
from torch import Tensor

from deepmatching.errors import DeepMatchingError
from deepmatching.io.arrays import Archive
from deepmatching.io.files import PathLike, atomic_write, check_suffix, read_bytes
from deepmatching.io.foreign_matches import INDICES, pair_group, pair_of_arrays, to_float32
from deepmatching.io.hdf5 import Hdf5

Size = tuple[int, int]
Points = TypeVar("Points", np.ndarray, Tensor)


class MatchArrays(NamedTuple):
    """The content of a file of matches."""

    keypoints0: np.ndarray  #: (N, 2) float32, x and y in pixels; pixel centres are integers
    keypoints1: np.ndarray  #: (N, 2) float32
    scores: np.ndarray  #: (N,) float32
    size0: Size | None = None  #: (rows, columns) of the first image, if known
    size1: Size | None = None
    confidence: np.ndarray | None = None  #: (N,) float32 in [0, 1], if the matches were judged
    transformation: np.ndarray | None = None  #: (N,) int64, which of the transformations a match came from
    transformations: np.ndarray | None = None  #: (K, 3, 3) float32, if they were searched


def from_corners(points: Points) -> Points:
    """Positions measured from pixel corners (the original) to positions measured from pixel centres (Python)."""
    return points - 0.5


def to_corners(points: Points) -> Points:
    """Positions measured from pixel centres to positions measured from pixel corners."""
    return points + 0.5


def check_matches_suffix(path: PathLike) -> str:
    """The suffix in lower case; raises unless it names a format for matches."""
    return check_suffix(path, _WRITERS, "matches")


def write_matches(path: PathLike, matches: MatchArrays) -> None:
    """Write ``.txt`` (the original's format), ``.npz`` or ``.h5``, depending on the suffix."""
    suffix = check_matches_suffix(path)
    data = _WRITERS[suffix](matches)  # in memory: on a full disk, the HDF5 library ends the process
    with atomic_write(path) as temporary:
        temporary.write_bytes(data)


def read_matches(path: PathLike) -> MatchArrays:
    """Read a file that :func:`write_matches` or another matcher wrote.

    The lines of a text file must start with ``x0 y0 x1 y1``, measured from pixel corners. An ``.npz`` or ``.h5`` must
    have ``keypoints0`` and ``keypoints1`` of one pair, measured from pixel centres; scores and an index are optional.
    In an ``.h5``, the arrays may be in a group.
    """
    path = Path(path)
    suffix = check_matches_suffix(path)
    matches = _READERS[suffix](path)
    rows = np.concatenate([matches.keypoints0, matches.keypoints1, matches.scores[:, None]], axis=1)
    if bad := int((~np.isfinite(rows)).any(axis=1).sum()):
        raise DeepMatchingError(
            f"'{path}' has numbers that are not finite in {bad} of {len(rows)} matches; remove these matches."
        )
    return matches


def format_matches(matches: MatchArrays) -> str:
    """The original program's lines, ``x0 y0 x1 y1 score index``: positions from pixel corners, index 0."""
    rows = np.concatenate([to_corners(matches.keypoints0), to_corners(matches.keypoints1)], axis=1).tolist()
    return "".join(
        "{:g} {:g} {:g} {:g} {:g} 0\n".format(*row, score)
        for row, score in zip(rows, matches.scores.tolist(), strict=True)
    )


def _arrays(matches: MatchArrays) -> dict[str, np.ndarray]:
    arrays = {name: np.asarray(value) for name, value in matches._asdict().items() if value is not None}
    return {name: array.astype(np.int64) if name.startswith("size") else array for name, array in arrays.items()}


def _from_arrays(stored: Mapping[str, Any], path: Path) -> MatchArrays:
    size0, size1 = (_size(stored[name], name, path) if name in stored else None for name in ("size0", "size1"))
    keypoints0, keypoints1, scores = pair_of_arrays(stored, path)
    # In the files of others, a confidence without scores is what we call scores.
    is_judged = "confidence" in stored and "scores" in stored and not any(name in stored for name in INDICES)
    confidence = _confidence(stored["confidence"], len(scores), path) if is_judged else None
    numbers, table = _transformations(stored, len(scores), path) if "transformations" in stored else (None, None)
    return MatchArrays(keypoints0, keypoints1, scores, size0, size1, confidence, numbers, table)


def _transformations(stored: Mapping[str, Any], number: int, path: Path) -> tuple[np.ndarray, np.ndarray]:
    numbers, table = stored["transformation"] if "transformation" in stored else np.zeros(0), stored["transformations"]
    if table.ndim != 3 or table.shape[1:] != (3, 3) or table.dtype.kind != "f" or not np.isfinite(table).all():
        raise DeepMatchingError(
            f"'{path}' is not a readable matches file: its transformations are not 3 x 3 matrices; write it again."
        )
    if (
        numbers.shape != (number,)
        or numbers.dtype.kind not in "iu"
        or not ((numbers >= 0) & (numbers < len(table))).all()
    ):
        raise DeepMatchingError(
            f"'{path}' is not a readable matches file: it does not name one of its transformations for each match; "
            "write it again."
        )
    return numbers.astype(np.int64), to_float32(table)


def _confidence(stored: np.ndarray, number: int, path: Path) -> np.ndarray:
    if stored.shape != (number,) or stored.dtype.kind != "f" or not ((stored >= 0) & (stored <= 1)).all():
        raise DeepMatchingError(
            f"'{path}' is not a readable matches file: its confidence is not a number from 0 to 1 for each match; "
            "write it again."
        )
    return to_float32(stored)


def _size(stored: np.ndarray, name: str, path: Path) -> Size:
    if stored.shape != (2,) or stored.dtype.kind not in "iu" or not ((stored > 0) & (stored < 2**31)).all():
        raise DeepMatchingError(
            f"'{path}' is not a readable matches file: its {name} is not two whole numbers; write it again."
        )
    return int(stored[0]), int(stored[1])


def _encode_text(matches: MatchArrays) -> bytes:
    return format_matches(matches).encode("ascii")


def _encode_npz(matches: MatchArrays) -> bytes:
    stream = io.BytesIO()
    np.savez_compressed(stream, **_arrays(matches))  # type: ignore[arg-type]
    return stream.getvalue()


def _encode_h5(matches: MatchArrays) -> bytes:
    import h5py

    stream = io.BytesIO()
    with h5py.File(stream, "w") as file:
        for name, array in _arrays(matches).items():
            file.create_dataset(name, data=array)
        file.attrs["convention"] = "x, y in pixels; pixel centres are integers"
    return stream.getvalue()


def _read_text(path: Path) -> MatchArrays:
    is_empty = os.path.isfile(path) and not os.path.getsize(path)  # no matches
    text = "" if is_empty else read_bytes(path, "matches file").decode("ascii", errors="replace")
    lines = [line.split() for line in text.splitlines() if line.strip() and not line.startswith("#")]
    if any(len(line) < 4 for line in lines):
        raise DeepMatchingError(f"'{path}' has lines with fewer than four numbers; each must start with x0 y0 x1 y1.")
    try:
        table = to_float32(np.array([[float(v) for v in [*line, "1"][:5]] for line in lines]).reshape(-1, 5))
    except ValueError:
        raise DeepMatchingError(
            f"'{path}' is not a readable matches file: it has lines with words, but each must start with x0 y0 x1 y1."
        ) from None
    return MatchArrays(from_corners(table[:, 0:2]), from_corners(table[:, 2:4]), table[:, 4])


def _read_npz(path: Path) -> MatchArrays:
    return _from_arrays(Archive(path, "matches file"), path)


def _read_h5(path: Path) -> MatchArrays:
    with Hdf5(path, "matches file") as file:
        return _from_arrays(pair_group(file.groups(), path), path)


_WRITERS: dict[str, Callable[[MatchArrays], bytes]] = {".txt": _encode_text, ".npz": _encode_npz, ".h5": _encode_h5}
_READERS: dict[str, Callable[[Path], MatchArrays]] = {".txt": _read_text, ".npz": _read_npz, ".h5": _read_h5}
