"""Matches in the files of other matchers."""

from __future__ import annotations

from pathlib import Path

import h5py
import numpy as np
import pytest

from deepmatching.errors import DeepMatchingError
from deepmatching.matches import Matches

KEYPOINTS0 = np.array([[1, 2], [3, 4], [5, 6]], np.float64)
KEYPOINTS1 = np.array([[10, 20], [30, 40]], np.float32)


def test_an_index_as_superglue_and_hloc_have_it(tmp_path: Path) -> None:
    index = np.array([1, -1, 0])
    confidence = np.array([0.5, 0.0, 0.25], np.float32)
    np.savez(
        tmp_path / "s.npz", keypoints0=KEYPOINTS0, keypoints1=KEYPOINTS1, matches=index, match_confidence=confidence
    )
    with h5py.File(tmp_path / "h.h5", "w") as file:
        for name, array in (
            ("keypoints0", KEYPOINTS0),
            ("keypoints1", KEYPOINTS1),
            ("matches0", index),
            ("matching_scores0", confidence),
        ):
            file[name] = array
        file.create_group("other")
    for name in ("s.npz", "h.h5"):
        matches = Matches.load(tmp_path / name)
        assert matches.keypoints0.tolist() == [[1, 2], [5, 6]]
        assert matches.keypoints1.tolist() == [[30, 40], [10, 20]]
        assert matches.scores.tolist() == [0.5, 0.25]


def test_pairs_of_indices_as_lightglue_has_them(tmp_path: Path) -> None:
    pairs, scores = np.array([[0, 1], [2, 0]]), np.array([0.5, 0.75], np.float32)
    np.savez(tmp_path / "l.npz", keypoints0=KEYPOINTS0, keypoints1=KEYPOINTS1, matches=pairs, scores=scores)
    matches = Matches.load(tmp_path / "l.npz")
    assert matches.keypoints0.tolist() == [[1, 2], [5, 6]]
    assert matches.keypoints1.tolist() == [[30, 40], [10, 20]]
    assert matches.scores.tolist() == [0.5, 0.75]


def test_rows_that_correspond_with_or_without_confidence(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", keypoints0=KEYPOINTS1, keypoints1=KEYPOINTS1 + 1, mconf=np.array([0.1, 0.2]))
    np.savez(tmp_path / "b.npz", keypoints0=KEYPOINTS1, keypoints1=KEYPOINTS1 + 1)
    assert Matches.load(tmp_path / "a.npz").scores.tolist() == pytest.approx([0.1, 0.2])
    assert Matches.load(tmp_path / "b.npz").scores.tolist() == [1, 1]
    assert Matches.load(tmp_path / "b.npz").displacements.tolist() == [[1, 1], [1, 1]]


def test_our_own_hloc_arrays_come_back(tmp_path: Path) -> None:
    matches = Matches(KEYPOINTS1, KEYPOINTS1 + 2, np.array([3.0, 1.0], np.float32))  # type: ignore[arg-type]
    np.savez(tmp_path / "o.npz", **matches.as_hloc())
    again = Matches.load(tmp_path / "o.npz")
    assert again.keypoints1.tolist() == matches.keypoints1.tolist() and again.scores.tolist() == [3, 1]


@pytest.mark.parametrize(
    ("arrays", "words"),
    [
        ({"keypoints0": KEYPOINTS0, "matches": np.zeros(3)}, "has no keypoints1, but keypoints0, matches"),
        ({"keypoints0": KEYPOINTS0, "keypoints1": KEYPOINTS1}, "shape"),
        ({"keypoints0": KEYPOINTS0, "keypoints1": KEYPOINTS1, "matches": np.array([5, 0, 0])}, "does not have"),
        ({"keypoints0": np.zeros(3), "keypoints1": KEYPOINTS1}, "not a readable"),
        ({"keypoints0": np.array(["a", "b"]), "keypoints1": KEYPOINTS1}, "not a readable"),
    ],
)
def test_arrays_that_do_not_fit_are_refused_in_words(tmp_path: Path, arrays: dict[str, np.ndarray], words: str) -> None:
    np.savez(tmp_path / "m.npz", **arrays)  # type: ignore[arg-type]
    with pytest.raises(DeepMatchingError, match=words):
        Matches.load(tmp_path / "m.npz")
