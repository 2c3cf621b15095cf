"""Matches in the files of other matchers."""

from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from deepmatching.errors import DeepMatchingError
from deepmatching.io.files import check_replaceable
from deepmatching.matches import Matches

KEYPOINTS0 = np.array([[1, 2], [3, 4], [5, 6]], np.float64)
KEYPOINTS1 = np.array([[10, 20], [30, 40]], np.float32)
KEYPOINTS = {"keypoints0": KEYPOINTS0, "keypoints1": KEYPOINTS1}
CORRESPONDING = {"keypoints0": KEYPOINTS1, "keypoints1": KEYPOINTS1}
BATCH = {name: array[None] for name, array in KEYPOINTS.items()}

INDEX = np.array([1, -1, 0])
PAIRS = np.array([[0, 1], [2, 0]])
ONE_EACH = np.array([0.5, 0.75], np.float32)  # a score for each match
ALL = np.array([0.5, 0, 0.75], np.float32)  # a score for each keypoint

#: The same two matches, as others write them.
INDEXED: dict[str, dict[str, Any]] = {
    "SuperGlue": {**KEYPOINTS, "matches": INDEX, "match_confidence": ALL},
    "hloc": {**KEYPOINTS, "matches0": INDEX, "matching_scores0": ALL},
    "LightGlue": {**KEYPOINTS, "matches": PAIRS, "scores": ONE_EACH},
    "LightGlue, both kinds of scores": {**KEYPOINTS, "matches0": INDEX, "scores": ONE_EACH, "matching_scores0": ALL},
    "batch of pairs": {**BATCH, "matches": PAIRS[None], "scores": ONE_EACH[None]},
    "batch of an index": {**BATCH, "matches0": INDEX[None], "matching_scores0": ALL[None]},
    "batch of keypoints": {**BATCH, "matches": PAIRS, "scores": ONE_EACH[:, None]},
}


def write(path: Path, arrays: dict[str, Any]) -> Path:
    if path.suffix == ".npz":
        np.savez(path, **arrays)
    else:
        with h5py.File(path, "w") as file:
            for name, array in arrays.items():
                file[name] = array
            file.create_group("other")
    return path


@pytest.mark.parametrize("suffix", [".npz", ".h5"])
@pytest.mark.parametrize("form", INDEXED)
def test_indexed_keypoints_are_read(tmp_path: Path, form: str, suffix: str) -> None:
    matches = Matches.load(write(tmp_path / f"m{suffix}", INDEXED[form]))
    assert matches.keypoints0.tolist() == [[1, 2], [5, 6]]
    assert matches.keypoints1.tolist() == [[30, 40], [10, 20]]
    assert matches.scores.tolist() == [0.5, 0.75]


@pytest.mark.parametrize(("scores", "expected"), [({"mconf": np.array([0.5, 0.25])}, [0.5, 0.25]), ({}, [1, 1])])
def test_rows_are_read_without_scores_too(tmp_path: Path, scores: dict[str, np.ndarray], expected: list[float]) -> None:
    about = np.array([{"pair": 1}], dtype=object)  # not needed, so it may hold anything
    arrays = {"keypoints0": KEYPOINTS1, "keypoints1": KEYPOINTS1 + 1, "about": about, **scores}
    matches = Matches.load(write(tmp_path / "a.npz", arrays))
    assert matches.scores.tolist() == expected and matches.displacements.tolist() == [[1, 1], [1, 1]]


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
    for name, words in (("a.png/b.png/matches0", r"no keypoints0, but groups \(a\.png/b\.png\)"), ("x", "only x")):
        with pytest.raises(DeepMatchingError, match=words):
            Matches.load(write(tmp_path / "e.h5", {name: INDEX}))


def test_our_own_hloc_arrays_are_read_back(tmp_path: Path) -> None:
    matches = Matches(KEYPOINTS1, KEYPOINTS1 + 2, np.array([3.0, 1.0], np.float32))  # type: ignore[arg-type]
    again = Matches.load(write(tmp_path / "o.npz", matches.as_hloc()))
    assert again.keypoints1.tolist() == matches.keypoints1.tolist() and again.scores.tolist() == [3, 1]


@pytest.mark.parametrize(
    ("arrays", "words"),
    [
        ({"keypoints0": KEYPOINTS0, "matches": np.zeros(3)}, "has no keypoints1, only keypoints0, matches"),
        (KEYPOINTS, "3 keypoints0, 2 keypoints1 and no index"),
        ({**KEYPOINTS, "matches": np.array([5, 0, 0])}, "does not have"),
        ({**KEYPOINTS, "keypoints0": np.zeros(3)}, r"its keypoints0 have shape \(3,\)"),
        ({**KEYPOINTS, "keypoints0": np.zeros((4, 3))}, r"its keypoints0 have shape \(4, 3\)"),
        ({**KEYPOINTS, "keypoints0": np.zeros((2, 3, 2))}, r"shape \(2, 3, 2\).* of one pair"),
        ({**KEYPOINTS, "keypoints0": np.array(["a", "b"])}, "'keypoints0' does not hold an array of numbers"),
        ({**CORRESPONDING, "batch_indexes": np.array([0, 1])}, r"matches of 2 pairs \(batch_indexes\); save"),
        ({**CORRESPONDING, "scores": np.ones(3)}, r"2 matches, but scores of shape \(3,\)"),
        ({**CORRESPONDING, "matches0": np.array([0, 1]), "scores": np.ones(3)}, r"2 matches, but scores of shape"),
        ({**CORRESPONDING, "keypoints0": KEYPOINTS1 * [[1, np.nan], [1, 1]]}, "not finite in 1 of 2 matches"),
        ({**CORRESPONDING, "scores": np.array([1, np.inf])}, "not finite in 1 of 2 matches"),
        ({**CORRESPONDING, "scores": np.array([1, 1e300])}, "not finite in 1 of 2 matches"),
        ({"x": np.zeros(3)}, "not a readable"),
        ({**CORRESPONDING, "scores": np.ones(2), "confidence": np.array([0.5, 1.5])}, "its confidence is not a number"),
        ({**CORRESPONDING, "cycle_error": np.ones(3)}, "its cycle_error is not a number of pixels"),
        ({**CORRESPONDING, "cycle_error": np.array([1, -1])}, "its cycle_error is not a number of pixels"),
        ({**CORRESPONDING, "cycle_error": np.array([1, np.nan])}, "its cycle_error is not a number of pixels"),
    ],
)
def test_arrays_that_do_not_fit_raise_a_clear_error(tmp_path: Path, arrays: dict[str, np.ndarray], words: str) -> None:
    with pytest.raises(DeepMatchingError, match=words) as raised:
        Matches.load(write(tmp_path / "m.npz", arrays))
    assert "allow_pickle" not in str(raised.value)


def test_the_confidence_of_others_without_scores_is_their_score(tmp_path: Path) -> None:
    loaded = Matches.load(write(tmp_path / "loftr.npz", {**CORRESPONDING, "confidence": np.array([0.5, 7.0])}))
    assert loaded.confidence is None and loaded.scores.tolist() == [0.5, 7.0]


def test_seven_columns_of_text_end_with_a_confidence_and_those_of_others_need_not(tmp_path: Path) -> None:
    path = tmp_path / "m.txt"
    for last, expected in ((("0.25", "1"), [0.25, 1.0]), (("0.25", "17"), None), (("0.25", "x"), None)):
        path.write_text("".join(f"1 2 3 4 0.5 0 {word}\n" for word in last))
        found = Matches.load(path).confidence
        assert (found if found is None else found.tolist()) == expected


def test_the_columns_of_other_peoples_csv_are_found_by_name(tmp_path: Path) -> None:
    path = tmp_path / "others.csv"
    path.write_bytes(b"\xef\xbb\xbfid,Y1,X1, Y0 ,X0\r\na,40,30,2,1\r\n\r\n")
    loaded = Matches.load(path)
    assert loaded.keypoints0.tolist() == [[1, 2]] and loaded.keypoints1.tolist() == [[30, 40]]
    assert loaded.scores.tolist() == [1] and loaded.confidence is None


numbers = st.floats(-1e6, 1e6, width=32)
certain = st.floats(0, 1, width=32)


@pytest.mark.hypothesis
@given(st.lists(st.tuples(numbers, numbers, numbers, numbers, numbers, certain), max_size=5), st.booleans())
def test_all_formats_hold_the_same_matches(
    tmp_path_factory: pytest.TempPathFactory, rows: list[tuple[float, ...]], is_judged: bool
) -> None:
    table = np.array(rows, np.float32).reshape(-1, 6)
    confidence = table[:, 5] if is_judged else None
    arrays: tuple[Any, ...] = (table[:, :2], table[:, 2:4], table[:, 4], None, None, confidence)
    matches, folder = Matches(*arrays), tmp_path_factory.mktemp("formats")
    for name in ("m.csv", "m.json", "m.npz", "m.h5", "m.txt"):
        matches.save(folder / name, confidence=is_judged)
        check_replaceable(folder / name)
        found = Matches.load(folder / name)
        own, theirs = ([m.keypoints0, m.keypoints1, m.scores[:, None]] for m in (matches, found))
        is_text = name == "m.txt"  # which has six digits
        for ours, read in zip(own, theirs, strict=True):
            assert np.allclose(ours, read, rtol=1e-5, atol=0.51e-5) if is_text else np.array_equal(ours, read)
        if not is_judged or (is_text and not rows):
            assert found.confidence is None
        else:
            assert found.confidence is not None and matches.confidence is not None
            assert np.allclose(found.confidence, matches.confidence, rtol=1e-5 if is_text else 0, atol=0)
