"""The arrays that matchers, ours and others, write for a pair: keypoints, index and scores by their many names."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from deepmatching.errors import DeepMatchingError

#: Names of the scores.
SCORES = ("scores", "confidence", "mconf", "match_confidence", "matching_scores0", "matching_scores")

#: LoFTR's names for the pair of the batch that each match belongs to.
BATCHES = ("batch_indexes", "m_bids")

#: Names of the index: which keypoints correspond.
INDICES = ("matches0", "matches")


def pair_of_arrays(stored: Mapping[str, Any], path: Path) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Keypoints (N, 2), (N, 2) and scores (N,) in float32 from the arrays of a file.

    Without an index, ``keypoints0`` and ``keypoints1`` correspond row by row. An index, ``matches0`` or ``matches``, is
    (N0,) with −1 for no match, as in SuperGlue, LightGlue and hloc, or (N, 2). Scores have several possible names;
    without scores, all are 1. A leading batch axis is allowed, with one pair in the batch.
    """
    if missing := [name for name in ("keypoints0", "keypoints1") if name not in stored]:
        found = f"only {', '.join(stored)}" if len(stored) else "nor anything else"
        raise DeepMatchingError(
            f"'{path}' is not a readable matches file: it has no {missing[0]}, {found}; "
            "write keypoints0 and keypoints1."
        )
    known = ("keypoints0", "keypoints1", *INDICES, *SCORES, *BATCHES)
    arrays = {name: _numbers(stored, name, path) for name in known if name in stored}
    for name in BATCHES:
        if name in arrays and len(pairs := np.unique(arrays[name])) > 1:
            raise DeepMatchingError(f"'{path}' has matches of {len(pairs)} pairs ({name}); save one pair to a file.")
    start, end = (_points(arrays[name], name, path) for name in ("keypoints0", "keypoints1"))
    index = next((_index(arrays[name], name, path) for name in INDICES if name in arrays), None)
    if index is None and len(start) != len(end):
        raise DeepMatchingError(
            f"'{path}' has {len(start)} keypoints0, {len(end)} keypoints1 and no index; "
            "add matches0, or save only the keypoints that correspond, in order."
        )
    scores = _scores(arrays, len(start if index is None else index), path)
    if index is not None:
        kept = (index >= 0).all(axis=1)
        if (index[kept] >= (len(start), len(end))).any():
            raise DeepMatchingError(f"'{path}' has an index of keypoints that it does not have; write it again.")
        start, end, scores = start[index[kept, 0]], end[index[kept, 1]], scores[kept]
    return start, end, scores


def _numbers(stored: Mapping[str, Any], name: str, path: Path) -> np.ndarray:
    array = np.asarray(stored[name])
    if array.dtype.kind in "fiub":
        return array
    raise DeepMatchingError(
        f"'{path}' is not a readable matches file: its {name} are not an array of numbers; save one."
    )


def _points(array: np.ndarray, name: str, path: Path) -> np.ndarray:
    """Keypoints (N, 2) in float32 from (N, 2), (1, N, 2) or OpenCV's (N, 1, 2)."""
    if array.size == 0:
        return np.zeros((0, 2), np.float32)
    if array.shape[-1:] != (2,) or array.ndim > 3 or (array.ndim == 3 and 1 not in array.shape[:2]):
        raise DeepMatchingError(
            f"'{path}' is not a readable matches file: its {name} have shape {array.shape}; save (N, 2), x and y, of "
            "one pair."
        )
    return to_float32(array.reshape(-1, 2))


def _index(array: np.ndarray, name: str, path: Path) -> np.ndarray:
    """Which keypoints correspond, (N, 2), −1 for none; from that or (N0,), with or without a batch axis of 1."""
    is_pairs = array.ndim == 3 or (array.ndim == 2 and array.shape[1] == 2 and name != "matches0")
    if array.ndim == 2 + is_pairs and len(array) == 1:
        array = array[0]
    if array.ndim != 1 + is_pairs or (is_pairs and array.shape[1] != 2):
        raise DeepMatchingError(
            f"'{path}' is not a readable matches file: its {name} have shape {array.shape}; save (N,) or (N, 2), of "
            "one pair."
        )
    with np.errstate(invalid="ignore"):  # NaN becomes negative: none
        numbers = array.astype(np.int64)
    return numbers if is_pairs else np.stack([np.arange(len(numbers)), numbers], axis=1)


def _scores(arrays: dict[str, np.ndarray], count: int, path: Path) -> np.ndarray:
    """The first array of scores with one score per match; ones if the file has no scores."""
    named = {name: arrays[name] for name in SCORES if name in arrays}
    for array in named.values():
        if array.size == count and array.squeeze().ndim < 2:  # (N,), (1, N) or (N, 1)
            return to_float32(array.reshape(-1))
    if named:
        found = ", ".join(f"{name} of shape {array.shape}" for name, array in named.items())
        raise DeepMatchingError(f"'{path}' has {count} matches, but {found}; each match needs one score.")
    return np.ones(count, np.float32)


def to_float32(array: np.ndarray) -> np.ndarray:
    """The same numbers in float32; those that are too large become infinite."""
    with np.errstate(over="ignore"):
        return array.astype(np.float32)


def pair_group(groups: Mapping[str, Mapping[str, np.ndarray]], path: Path) -> Mapping[str, np.ndarray]:
    """The group with the keypoints: the file itself, or the only group that has some (hloc has a group per pair).

    Args:
        groups: the arrays of each group; "" is the file itself.
        path: of the file.
    """
    file = groups.get("", {})
    if "keypoints0" in file:
        return file
    others = {name: group for name, group in groups.items() if name}
    pairs = [group for group in others.values() if "keypoints0" in group and "keypoints1" in group]
    if len(pairs) == 1 or not others:
        return pairs[0] if pairs else file
    found = f"keypoints of {len(pairs)} pairs" if pairs else "no keypoints0, but groups"
    names = ", ".join(list(others)[:3]) + (", …" if len(others) > 3 else "")
    raise DeepMatchingError(
        f"'{path}' is not a readable matches file: it has {found} ({names}); write keypoints0, keypoints1 and "
        "matches0 of one pair to a file."
    )
