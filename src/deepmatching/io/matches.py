"""Files of matches, ours and other matchers': ``.txt`` (the original's), ``.csv``, ``.json``, ``.npz`` and ``.h5``.

**Pixel convention.** The original program measures from pixel *corners*: x = 0 is the left border of the picture, and
the centre of the first pixel is x = 0.5. Most of Python (OpenCV, kornia, flow files) measures from pixel *centres*: the
first pixel is x = 0. The ``.txt`` format holds corners; everything else holds centres. Only :func:`from_corners` and
:func:`to_corners` convert, by half a pixel. Displacements are the same in both conventions.
"""

import contextlib
import csv
import io
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import numpy as np
from torch import Tensor

from deepmatching.errors import DeepMatchingError
from deepmatching.io.arrays import open_hdf5, open_npz
from deepmatching.io.files import PathLike, check_suffix, read_bytes, write_file
from deepmatching.io.structured import read_json

Size = tuple[int, int]
Points = TypeVar("Points", np.ndarray, Tensor)


class MatchArrays(NamedTuple):
    """The content of a file of matches."""

    keypoints0: np.ndarray  #: (N, 2) float32, x and y in pixels; pixel centres are integers
    keypoints1: np.ndarray  #: (N, 2) float32
    scores: np.ndarray  #: (N,) float32
    size0: Size | None = None  #: (rows, columns) of the first image, if known
    size1: Size | None = None
    confidence: np.ndarray | None = None  #: (N,) float32 in [0, 1], if estimated
    transformation: np.ndarray | None = None  #: (N,) int64, which of the transformations a match came from
    transformations: np.ndarray | None = None  #: (K, 3, 3) float32, if they were searched
    cycle_error: np.ndarray | None = None  #: (N,) float32 in pixels, if both directions were matched


SUFFIXES = (".txt", ".csv", ".json", ".npz", ".h5")
#: Of a ``.csv`` file; all but the first four are optional.
_COLUMNS = ("x0", "y0", "x1", "y1", "score", "confidence", "cycle_error")
_JSON_FORMAT = "deepmatching matches"
#: Names of the scores.
_SCORES = ("scores", "confidence", "mconf", "match_confidence", "matching_scores0", "matching_scores")
_BATCHES = ("batch_indexes", "m_bids")  #: LoFTR's names for the pair of the batch that each match belongs to
_INDICES = ("matches0", "matches")  #: names of the index: which keypoints correspond
_NAMES = {*MatchArrays._fields, *_SCORES, *_BATCHES, *_INDICES}  #: of all arrays that are read


def from_corners(points: Points) -> Points:
    """Convert positions measured from pixel corners (the original) to positions from pixel centres (Python)."""
    return points - 0.5


def to_corners(points: Points) -> Points:
    """Convert positions measured from pixel centres to positions measured from pixel corners."""
    return points + 0.5


def check_matches_suffix(path: PathLike) -> str:
    """Return the suffix in lower case; raise unless it names a format for matches."""
    return check_suffix(path, SUFFIXES, "matches")


def write_matches(path: PathLike, matches: MatchArrays, confidence: bool = False) -> None:
    """Write ``.txt``, ``.csv``, ``.json``, ``.npz`` or ``.h5``, depending on the suffix.

    The ``.txt`` file, the original's format, has the confidence only if it is asked for; the others always have it.
    """
    suffix = check_matches_suffix(path)
    if suffix == ".txt":
        return write_file(path, format_matches(matches, confidence))
    if suffix == ".csv":
        return write_file(path, _format_csv(matches))
    if suffix == ".json":
        return write_file(path, json.dumps({"format": _JSON_FORMAT, **to_json(matches)}) + "\n")
    types = {"size0": np.int64, "size1": np.int64}
    named = {name: value for name, value in matches._asdict().items() if value is not None}
    arrays: dict[str, Any] = {name: np.asarray(value, types.get(name)) for name, value in named.items()}
    stream = io.BytesIO()  # in memory: on a full disk, the HDF5 library ends the process
    if suffix == ".npz":
        np.savez_compressed(stream, **arrays)
    else:
        import h5py

        with h5py.File(stream, "w") as file:
            for name, array in arrays.items():
                file.create_dataset(name, data=array)
            file.attrs["convention"] = "x, y in pixels; pixel centres are integers"
    write_file(path, stream.getbuffer())


def read_matches(path: PathLike) -> MatchArrays:
    """Read a file that :func:`write_matches` or another matcher wrote.

    The lines of a ``.txt`` file must start with ``x0 y0 x1 y1``, measured from pixel corners. A score may follow; the
    last one of seven columns is the confidence, if it is from 0 to 1. The first line of a ``.csv`` file names the
    columns ``x0``, ``y0``, ``x1``, ``y1`` and perhaps ``score``, ``confidence`` and ``cycle_error``. The others must
    have ``keypoints0`` and ``keypoints1`` of one pair; scores and an index are optional. In an ``.h5``, the arrays may
    be in a group.
    """
    suffix, path = check_matches_suffix(path), Path(path)
    if suffix == ".txt":
        matches = _read_text(path)
    elif suffix == ".csv":
        matches = _from_arrays(_read_csv(path), path)
    elif suffix == ".json":
        matches = _from_arrays(_read_json(path), path)
    elif suffix == ".npz":
        matches = _from_arrays(open_npz(path, "matches file"), path)
    else:
        with open_hdf5(path, "matches file") as groups:
            matches = _from_arrays(_pair_group(groups, path), path)
    rows = np.concatenate([matches.keypoints0, matches.keypoints1, matches.scores[:, None]], axis=1)
    if bad := int((~np.isfinite(rows)).any(axis=1).sum()):
        count = f"{bad} of {len(rows)} matches"
        raise DeepMatchingError(f"'{path}' has numbers that are not finite in {count}; remove these matches.")
    return matches


def format_matches(matches: MatchArrays, confidence: bool = False) -> str:
    """Format the original program's lines, ``x0 y0 x1 y1 score index``: positions from pixel corners, index 0.

    With ``confidence``, that is a seventh column.
    """
    columns = [to_corners(matches.keypoints0), to_corners(matches.keypoints1), matches.scores[:, None]]
    if confidence:
        if matches.confidence is None:
            raise DeepMatchingError("These matches have no confidence: write them without a column for it.")
        columns.append(matches.confidence[:, None])
    line = "{:g} {:g} {:g} {:g} {:g} 0" + " {:g}" * confidence + "\n"
    return "".join(line.format(*row) for row in np.concatenate(columns, axis=1).tolist())


def to_json(matches: MatchArrays) -> dict[str, Any]:
    """Return the arrays by name in the types of JSON; numbers have as many digits as float32 needs."""
    own = {name: value for name, value in matches._asdict().items() if value is not None}
    return {name: _shortest(value).tolist() if isinstance(value, np.ndarray) else value for name, value in own.items()}


def _shortest(array: np.ndarray) -> np.ndarray:
    """Return float32 numbers as the doubles with the fewest digits that become them again."""
    return array.astype(str).astype(np.float64) if array.dtype == np.float32 else array


def _format_csv(matches: MatchArrays) -> str:
    more = {name: values for name in _COLUMNS[5:] if (values := getattr(matches, name)) is not None}
    columns = [matches.keypoints0, matches.keypoints1, *(v[:, None] for v in (matches.scores, *more.values()))]
    table = np.concatenate(columns, axis=1)
    lines = [",".join((*_COLUMNS[:5], *more)), *(",".join(map(repr, row)) for row in _shortest(table).tolist())]
    return "\n".join(lines) + "\n"


def _from_arrays(stored: Mapping[str, Any], path: Path) -> MatchArrays:
    size0, size1 = (_size(stored[name], name, path) if name in stored else None for name in ("size0", "size1"))
    keypoints0, keypoints1, scores = _pair_of_arrays(stored, path)
    confidence = numbers = table = None
    # In the files of others, a confidence without scores is what we call scores.
    if "confidence" in stored and "scores" in stored and not any(name in stored for name in _INDICES):
        confidence = stored["confidence"]
        if confidence.shape != scores.shape or not ((confidence >= 0) & (confidence <= 1)).all():
            raise _unreadable(path, "its confidence is not a number from 0 to 1 for each match; write it again")
        confidence = _to_float32(confidence)
    if "transformations" in stored:
        numbers, table = stored.get("transformation", np.zeros(0)), stored["transformations"]
        if table.ndim != 3 or table.shape[1:] != (3, 3) or table.dtype.kind != "f" or not np.isfinite(table).all():
            raise _unreadable(path, "its transformations are not 3 x 3 matrices; write it again")
        is_index = numbers.shape == scores.shape and numbers.dtype.kind in "iu"
        if not is_index or not ((numbers >= 0) & (numbers < len(table))).all():
            raise _unreadable(path, "it does not name one of its transformations for each match; write it again")
        numbers, table = numbers.astype(np.int64), _to_float32(table)
    error = None
    if "cycle_error" in stored:
        error = _to_float32(stored["cycle_error"])
        if error.shape != scores.shape or not ((error >= 0) & np.isfinite(error)).all():
            raise _unreadable(path, "its cycle_error is not a number of pixels for each match; write it again")
    return MatchArrays(keypoints0, keypoints1, scores, size0, size1, confidence, numbers, table, error)


def _size(stored: np.ndarray, name: str, path: Path) -> Size:
    if stored.shape != (2,) or stored.dtype.kind not in "iu" or not ((stored > 0) & (stored < 2**31)).all():
        raise _unreadable(path, f"its {name} is not two whole numbers; write it again")
    return int(stored[0]), int(stored[1])


def _pair_of_arrays(stored: Mapping[str, Any], path: Path) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return keypoints (N, 2), (N, 2) and scores (N,) in float32 from the arrays of a file.

    Without an index, ``keypoints0`` and ``keypoints1`` correspond row by row. An index, ``matches0`` or ``matches``, is
    (N0,) with −1 for no match, as in SuperGlue, LightGlue and hloc, or (N, 2). Scores have several possible names;
    without scores, all are 1. A leading batch axis is allowed, with one pair in the batch.
    """
    if missing := [name for name in ("keypoints0", "keypoints1") if name not in stored]:
        found = f"only {', '.join(stored)}" if len(stored) else "nor anything else"
        raise _unreadable(path, f"it has no {missing[0]}, {found}; write keypoints0 and keypoints1")
    known = ("keypoints0", "keypoints1", *_INDICES, *_SCORES, *_BATCHES)
    arrays = {name: np.asarray(stored[name]) for name in known if name in stored}
    for name in _BATCHES:
        if name in arrays and len(pairs := np.unique(arrays[name])) > 1:
            raise DeepMatchingError(f"'{path}' has matches of {len(pairs)} pairs ({name}); save one pair to a file.")
    start, end = (_points(arrays[name], name, path) for name in ("keypoints0", "keypoints1"))
    index = next((_index(arrays[name], name, path) for name in _INDICES if name in arrays), None)
    if index is None and len(start) != len(end):
        counts = f"{len(start)} keypoints0, {len(end)} keypoints1 and no index"
        raise DeepMatchingError(f"'{path}' has {counts}; add matches0, or save those that correspond, in order.")
    scores = _scores(arrays, len(start if index is None else index), path)
    if index is not None:
        kept = (index >= 0).all(axis=1)
        if (index[kept] >= (len(start), len(end))).any():
            raise DeepMatchingError(f"'{path}' has an index of keypoints that it does not have; write it again.")
        start, end, scores = start[index[kept, 0]], end[index[kept, 1]], scores[kept]
    return start, end, scores


def _points(array: np.ndarray, name: str, path: Path) -> np.ndarray:
    """Return keypoints (N, 2) in float32 from (N, 2), (1, N, 2) or OpenCV's (N, 1, 2)."""
    if array.size == 0:
        return np.zeros((0, 2), np.float32)
    if array.shape[-1:] != (2,) or array.ndim > 3 or (array.ndim == 3 and 1 not in array.shape[:2]):
        raise _unreadable(path, f"its {name} have shape {array.shape}; save (N, 2), x and y, of one pair")
    return _to_float32(array.reshape(-1, 2))


def _index(array: np.ndarray, name: str, path: Path) -> np.ndarray:
    """Return which keypoints correspond, (N, 2), −1 for none; from that or (N0,), with or without a batch axis of 1."""
    is_pairs = array.ndim == 3 or (array.ndim == 2 and array.shape[1] == 2 and name != "matches0")
    if array.ndim == 2 + is_pairs and len(array) == 1:
        array = array[0]
    if array.ndim != 1 + is_pairs or (is_pairs and array.shape[1] != 2):
        raise _unreadable(path, f"its {name} have shape {array.shape}; save (N,) or (N, 2), of one pair")
    with np.errstate(invalid="ignore"):  # NaN becomes negative: none
        numbers = array.astype(np.int64)
    return numbers if is_pairs else np.stack([np.arange(len(numbers)), numbers], axis=1)


def _scores(arrays: dict[str, np.ndarray], count: int, path: Path) -> np.ndarray:
    """Return the first array of scores with one score per match; ones if the file has no scores."""
    named = {name: arrays[name] for name in _SCORES if name in arrays}
    for array in named.values():
        if array.size == count and array.squeeze().ndim < 2:  # (N,), (1, N) or (N, 1)
            return _to_float32(array.reshape(-1))
    if found := ", ".join(f"{name} of shape {array.shape}" for name, array in named.items()):
        raise DeepMatchingError(f"'{path}' has {count} matches, but {found}; each match needs one score.")
    return np.ones(count, np.float32)


def _to_float32(array: np.ndarray) -> np.ndarray:
    """Convert numbers to float32; those that are too large become infinite."""
    with np.errstate(over="ignore"):
        return array.astype(np.float32)


def _pair_group(groups: Mapping[str, Mapping[str, np.ndarray]], path: Path) -> Mapping[str, np.ndarray]:
    """Return the group with the keypoints: the file itself (""), or the only group that has some, as hloc writes."""
    file = groups.get("", {})
    if "keypoints0" in file:
        return file
    others = {name: group for name, group in groups.items() if name}
    pairs = [group for group in others.values() if "keypoints0" in group and "keypoints1" in group]
    if len(pairs) == 1 or not others:
        return pairs[0] if pairs else file
    found = f"keypoints of {len(pairs)} pairs" if pairs else "no keypoints0, but groups"
    names = ", ".join(list(others)[:3]) + (", …" if len(others) > 3 else "")
    raise _unreadable(path, f"it has {found} ({names}); write keypoints0, keypoints1 and matches0 of one pair")


def _unreadable(path: Path, problem: str) -> DeepMatchingError:
    return DeepMatchingError(f"'{path}' is not a readable matches file: {problem}.")


def _read_text(path: Path) -> MatchArrays:
    is_empty = os.path.isfile(path) and not os.path.getsize(path)  # no matches
    text = "" if is_empty else read_bytes(path, "matches file").decode("ascii", errors="replace")
    lines = [line.split() for line in text.splitlines() if line.strip() and not line.startswith("#")]
    if any(len(line) < 4 for line in lines):
        raise DeepMatchingError(f"'{path}' has lines with fewer than four numbers; each must start with x0 y0 x1 y1.")
    try:
        table = _table([[*line, "1"][:5] for line in lines], 5)
    except ValueError:
        raise _unreadable(path, "it has lines with words, but each must start with x0 y0 x1 y1") from None
    confidence = None
    if lines and all(len(line) == 7 for line in lines):
        with contextlib.suppress(ValueError):  # others may have words there
            column = _table([line[6:] for line in lines], 1)[:, 0]
            confidence = column if ((column >= 0) & (column <= 1)).all() else None
    return MatchArrays(from_corners(table[:, 0:2]), from_corners(table[:, 2:4]), table[:, 4], confidence=confidence)


def _read_csv(path: Path) -> dict[str, np.ndarray]:
    """Return the arrays of a ``.csv`` file by name."""
    text = read_bytes(path, "matches file").decode("utf-8-sig", errors="replace")
    try:
        names, *rows = (row for row in csv.reader(text.splitlines(), strict=True) if row)
        names = [name.strip().lower() for name in names]
        if missing := [name for name in _COLUMNS[:4] if name not in names]:
            raise _unreadable(path, f"its first line does not name the column {missing[0]}; begin with x0,y0,x1,y1")
        chosen = {name: names.index(name) for name in _COLUMNS if name in names}
        table = _table([[row[column] for column in chosen.values()] for row in rows], len(chosen))
    except IndexError:
        raise _unreadable(path, "it has lines with fewer columns than the first; write it again") from None
    except csv.Error as error:
        raise _unreadable(path, f"it is not CSV ({error}); write it again") from None
    except DeepMatchingError:
        raise
    except ValueError:  # an empty text, too
        raise _unreadable(path, "it has lines with words; below the first, write numbers with commas between") from None
    columns = dict(zip(chosen, table.T, strict=True))
    points = {f"keypoints{n}": np.stack([columns.pop(f"x{n}"), columns.pop(f"y{n}")], axis=1) for n in (0, 1)}
    return {**points, **({"scores": columns.pop("score")} if "score" in columns else {}), **columns}


def _read_json(path: Path) -> dict[str, np.ndarray]:
    """Return the arrays of a ``.json`` file by name; what is no list does not count."""
    if not isinstance(content := read_json(path, "matches file"), dict):
        raise _unreadable(path, "it does not begin with {; write keypoints0 and keypoints1 by name")
    arrays = {}
    for name, value in content.items():
        if isinstance(value, list) and name in _NAMES:
            try:
                array = np.asarray(value)
            except ValueError:  # lists of different lengths
                array = np.asarray(None)
            if array.dtype.kind not in "biuf":
                raise _unreadable(path, f"its {name} are not rows of numbers; write them again")
            empty = {"transformations": np.zeros((0, 3, 3)), "transformation": np.zeros(0, np.int64)}
            arrays[name] = array if array.size else empty.get(name, array)
    return arrays


def _table(rows: list[list[str]], columns: int) -> np.ndarray:
    """Return texts of numbers as float32 (N, columns); raise ``ValueError`` for other texts."""
    return _to_float32(np.array([[float(text) for text in row] for row in rows]).reshape(-1, columns))
