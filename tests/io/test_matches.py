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
CORRESPONDING = {"keypoints0": KEYPOINTS1, "keypoints1": KEYPOINTS1}


def test_the_index_of_superglue_and_hloc_is_read(tmp_path: Path) -> None:
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


def test_the_pairs_of_indices_of_lightglue_are_read(tmp_path: Path) -> None:
    pairs, scores = np.array([[0, 1], [2, 0]]), np.array([0.5, 0.75], np.float32)
    np.savez(tmp_path / "l.npz", keypoints0=KEYPOINTS0, keypoints1=KEYPOINTS1, matches=pairs, scores=scores)
    matches = Matches.load(tmp_path / "l.npz")
    assert matches.keypoints0.tolist() == [[1, 2], [5, 6]]
    assert matches.keypoints1.tolist() == [[30, 40], [10, 20]]
    assert matches.scores.tolist() == [0.5, 0.75]


def test_corresponding_rows_are_read_with_or_without_confidence(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", keypoints0=KEYPOINTS1, keypoints1=KEYPOINTS1 + 1, mconf=np.array([0.1, 0.2]))
    np.savez(tmp_path / "b.npz", keypoints0=KEYPOINTS1, keypoints1=KEYPOINTS1 + 1)
    assert Matches.load(tmp_path / "a.npz").scores.tolist() == pytest.approx([0.1, 0.2])
    assert Matches.load(tmp_path / "b.npz").scores.tolist() == [1, 1]
    assert Matches.load(tmp_path / "b.npz").displacements.tolist() == [[1, 1], [1, 1]]


def test_a_batch_axis_of_one_pair_is_removed(tmp_path: Path) -> None:
    pairs, index = np.array([[0, 1], [2, 0]]), np.array([1, -1, 0])
    keypoints = {"keypoints0": KEYPOINTS0[None], "keypoints1": KEYPOINTS1[None]}
    scores, all_scores = np.array([0.5, 0.75], np.float32), np.array([0.5, 0, 0.75], np.float32)
    np.savez(tmp_path / "a.npz", **keypoints, matches=pairs[None], scores=scores[None])  # type: ignore[arg-type]
    np.savez(tmp_path / "b.npz", **keypoints, matches0=index[None], matching_scores0=all_scores[None])  # type: ignore[arg-type]
    np.savez(tmp_path / "c.npz", **keypoints, matches=pairs, scores=scores[:, None])  # type: ignore[arg-type]
    for name in ("a.npz", "b.npz", "c.npz"):
        matches = Matches.load(tmp_path / name)
        assert matches.keypoints0.tolist() == [[1, 2], [5, 6]]
        assert matches.keypoints1.tolist() == [[30, 40], [10, 20]]
        assert matches.scores.tolist() == [0.5, 0.75]


def test_the_first_array_with_one_score_per_match_is_read(tmp_path: Path) -> None:
    """LightGlue gives one score per match, and one per keypoint."""
    np.savez(
        tmp_path / "l.npz",
        keypoints0=KEYPOINTS0,
        keypoints1=KEYPOINTS1,
        matches0=np.array([1, -1, 0]),
        scores=np.array([0.5, 0.75]),
        matching_scores0=np.array([0.5, 0, 0.75]),
    )
    assert Matches.load(tmp_path / "l.npz").scores.tolist() == [0.5, 0.75]


def test_the_one_pair_in_a_group_of_hlocs_dense_matchers_is_read(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "h.h5", "w") as file:
        group = file.create_group("a.png/b.png")
        group["keypoints0"], group["keypoints1"], group["scores"] = KEYPOINTS1, KEYPOINTS1 + 1, np.array([0.5, 0.25])
    matches = Matches.load(tmp_path / "h.h5")
    assert matches.displacements.tolist() == [[1, 1], [1, 1]] and matches.scores.tolist() == [0.5, 0.25]
    with h5py.File(tmp_path / "h.h5", "a") as file:
        file.copy("a.png/b.png", "a.png/c.png")
    with pytest.raises(DeepMatchingError, match=r"keypoints of 2 pairs \(a\.png/b\.png, a\.png/c\.png\)"):
        Matches.load(tmp_path / "h.h5")


def test_an_h5_of_hloc_without_keypoints_names_its_groups(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "h.h5", "w") as file:
        file.create_group("a.png/b.png")["matches0"] = np.array([1, -1, 0])
    with pytest.raises(DeepMatchingError, match=r"no keypoints0, but groups \(a\.png/b\.png\); write keypoints0"):
        Matches.load(tmp_path / "h.h5")
    with h5py.File(tmp_path / "e.h5", "w"):
        pass
    with pytest.raises(DeepMatchingError, match="no keypoints0, nor anything else"):
        Matches.load(tmp_path / "e.h5")


def test_fields_that_are_not_needed_may_hold_anything(tmp_path: Path) -> None:
    about = np.array([{"pair": 1}], dtype=object)
    np.savez(tmp_path / "o.npz", keypoints0=KEYPOINTS1, keypoints1=KEYPOINTS1, about=about)
    assert len(Matches.load(tmp_path / "o.npz")) == 2


def test_our_own_hloc_arrays_are_read_back(tmp_path: Path) -> None:
    matches = Matches(KEYPOINTS1, KEYPOINTS1 + 2, np.array([3.0, 1.0], np.float32))  # type: ignore[arg-type]
    np.savez(tmp_path / "o.npz", **matches.as_hloc())
    again = Matches.load(tmp_path / "o.npz")
    assert again.keypoints1.tolist() == matches.keypoints1.tolist() and again.scores.tolist() == [3, 1]


@pytest.mark.parametrize(
    ("arrays", "words"),
    [
        ({"keypoints0": KEYPOINTS0, "matches": np.zeros(3)}, "has no keypoints1, only keypoints0, matches"),
        ({"keypoints0": KEYPOINTS0, "keypoints1": KEYPOINTS1}, "3 keypoints0, 2 keypoints1 and no index"),
        ({"keypoints0": KEYPOINTS0, "keypoints1": KEYPOINTS1, "matches": np.array([5, 0, 0])}, "does not have"),
        ({"keypoints0": np.zeros(3), "keypoints1": KEYPOINTS1}, r"its keypoints0 have shape \(3,\)"),
        ({"keypoints0": np.zeros((4, 3)), "keypoints1": np.zeros((4, 3))}, r"its keypoints0 have shape \(4, 3\)"),
        ({"keypoints0": np.zeros((2, 3, 2)), "keypoints1": KEYPOINTS1}, r"shape \(2, 3, 2\).* of one pair"),
        ({"keypoints0": np.array(["a", "b"]), "keypoints1": KEYPOINTS1}, "keypoints0 are not an array of numbers"),
        ({"keypoints0": np.array([None]), "keypoints1": KEYPOINTS1}, "keypoints0 are not an array of numbers"),
        (
            {**CORRESPONDING, "batch_indexes": np.array([0, 1])},
            r"matches of 2 pairs \(batch_indexes\); save",
        ),
        ({**CORRESPONDING, "scores": np.ones(3)}, r"2 matches, but scores of shape \(3,\)"),
        ({**CORRESPONDING, "matches0": np.array([0, 1]), "scores": np.ones(3)}, r"2 matches, but scores of shape"),
        ({**CORRESPONDING, "keypoints0": KEYPOINTS1 * [[1, np.nan], [1, 1]]}, "not finite in 1 of 2 matches"),
        ({**CORRESPONDING, "scores": np.array([1, np.inf])}, "not finite in 1 of 2 matches"),
        ({**CORRESPONDING, "scores": np.array([1, 1e300])}, "not finite in 1 of 2 matches"),
    ],
)
def test_arrays_that_do_not_fit_raise_a_clear_error(tmp_path: Path, arrays: dict[str, np.ndarray], words: str) -> None:
    np.savez(tmp_path / "m.npz", **arrays)  # type: ignore[arg-type]
    with pytest.raises(DeepMatchingError, match=words) as raised:
        Matches.load(tmp_path / "m.npz")
    assert "allow_pickle" not in str(raised.value)
