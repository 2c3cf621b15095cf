"""Keypoints that pairs share."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from deepmatching.bulk_matching import MatchedPair, RunFolder
from deepmatching.bulk_matching.storage import shard_file, write_shard
from deepmatching.errors import DeepMatchingError
from deepmatching.matches import NO_MATCHES
from deepmatching.reconstruction.keypoints import SharedKeypoints, _Cells
from helpers.bulk_runs import MakeRun, matched


def tracks(shared: SharedKeypoints) -> list[set[str]]:
    """Return the images of each set of keypoints that matches connect."""
    track_of: dict[tuple[str, int], frozenset[tuple[str, int]]] = {}
    for pair in shared.matches():
        for i, j in pair.indices.tolist():
            ends = (pair.names[0], i), (pair.names[1], j)
            joined = frozenset().union(*(track_of.get(end, {end}) for end in ends))
            track_of.update(dict.fromkeys(joined, joined))
    return [{name for name, _ in track} for track in set(track_of.values())]


@given(st.floats(0.3, 5), st.lists(st.tuples(st.floats(-3, 300), st.floats(-3, 300)), min_size=1, max_size=40))
def test_merging_moves_no_point_by_more_than_a_cell(side: float, points: list[tuple[float, float]]) -> None:
    array = np.array(points)
    cells = _Cells(side)
    half = len(array) // 2
    cells.add(array[:half], np.ones(half))
    cells.add(array[half:], np.ones(len(array) - half))
    keypoints, scores = cells.finish(None)
    places = cells.keypoints_of(array)
    assert np.abs(keypoints[places] - array).max() <= side + 1e-4
    assert scores.sum() == pytest.approx(len(array))
    centres = np.round((array + 0.5) / side) * side - 0.5  # hloc's formula: a keypoint stays in its cell
    assert np.abs(keypoints[places] - centres).max() <= side / 2 + 1e-4


def test_points_of_a_cell_become_their_mean_best_first() -> None:
    cells = _Cells(2.0)
    cells.add(np.array([[10.0, 20.0], [10.25, 20.25], [30.0, 7.0]]), np.array([1.0, 2.0, 9.0]))
    keypoints, scores = cells.finish(None)
    np.testing.assert_allclose(np.column_stack([keypoints, scores]), [[30.0, 7.0, 9.0], [10.125, 20.125, 3.0]])


@pytest.mark.parametrize("is_refined", [False, True])
def test_tracks_run_through_three_images(make_run: MakeRun, three_views: list[MatchedPair], is_refined: bool) -> None:
    failed = MatchedPair(("0.png", "lost.png"), NO_MATCHES, failure="There is no such file.")  # is left out
    shared = SharedKeypoints(make_run([*three_views, failed]), is_refined=is_refined)
    assert set(shared.images) == {"0.png", "1.png", "2.png"} and len(list(shared.matches())) == 3
    through_all = [track for track in tracks(shared) if len(track) == 3]
    assert len(through_all) >= len(three_views[0].matches)  # at least the grid of the first image


def test_refined_keypoints_match_earlier_images(make_run: MakeRun, three_views: list[MatchedPair]) -> None:
    run = make_run(three_views)
    counts = [
        {pair.names: len(pair.indices) for pair in SharedKeypoints(run, is_refined=refined).matches()}
        for refined in (False, True)
    ]
    assert counts[1]["0.png", "1.png"] > 1.5 * counts[0]["0.png", "1.png"]
    assert counts[1]["0.png", "2.png"] == counts[0]["0.png", "2.png"]  # no pair starts from the last image


def test_matches_connect_the_same_points_as_before(make_run: MakeRun, three_views: list[MatchedPair]) -> None:
    shared = SharedKeypoints(make_run(three_views))
    for pair in shared.matches():
        points = [shared.images[name].points[pair.indices[:, side]] for side, name in enumerate(pair.names)]
        apart = 10 * (int(pair.names[1][0]) - int(pair.names[0][0]))
        assert np.abs(points[0] - points[1] - (apart, 0)).max() < 1.5
        assert len(np.unique(pair.indices[:, 0])) == len(np.unique(pair.indices[:, 1])) == len(pair.indices)


def test_the_best_keypoints_are_kept(make_run: MakeRun, three_views: list[MatchedPair]) -> None:
    run = make_run(three_views)
    everything, best = SharedKeypoints(run), SharedKeypoints(run, max_keypoints=7)
    for name, image in best.images.items():
        assert len(image.points) == 7
        np.testing.assert_array_equal(image.points, everything.images[name].points[:7])
        assert (np.diff(image.scores) <= 0).all()
    for pair in best.matches():
        assert (pair.indices < 7).all()


def test_cells_grow_with_the_reduction_of_the_images(make_run: MakeRun) -> None:
    points = [[100, 100], [103, 100]]
    pair = matched("a.png", "b.png", points, points, [1, 1], size=(400, 800))
    shared = SharedKeypoints(make_run([pair], max_size=100), is_refined=False)
    assert len(shared.images["a.png"].points) == 1  # matched at an eighth: precise to 16 px


def test_pairs_that_a_run_finishes_meanwhile_are_left_out(three_views: list[MatchedPair], tmp_path: Path) -> None:
    names = [pair.names for pair in three_views]
    with RunFolder.store(tmp_path / "run").reserve():
        run = RunFolder.prepare(tmp_path / "run", {"cell": 2, "step": 8}, names, tmp_path, shard_size=1)
    write_shard(shard_file(run.path, 0), three_views[:1])
    shared = SharedKeypoints(run)
    for number, pair in enumerate(three_views[1:], 1):
        write_shard(shard_file(run.path, number), [pair])
    assert [pair.names for pair in shared.matches()] == names[:1]


def test_the_confidence_ranks_if_there_is_one(make_run: MakeRun, three_views: list[MatchedPair]) -> None:
    judged = []
    for pair in three_views:
        confidence = np.linspace(0, 1, len(pair.matches), dtype=np.float32)  # against the order of the scores
        scores = 3 - confidence
        matches = replace(pair.matches, scores=scores, confidence=confidence)  # type: ignore[arg-type]
        judged.append(replace(pair, matches=matches))
    run = make_run(judged)
    everything = SharedKeypoints(run, is_refined=False)
    for pair in everything.matches():
        assert (np.diff(pair.scores) <= 0).all() and pair.scores[0] == 1 and pair.scores[-1] < 0.5
    assert max(image.scores.max() for image in everything.images.values()) <= 4  # sums of up to four confidences
    confident = SharedKeypoints(run, is_refined=False, min_confidence=0.5)
    for some, whole in zip(confident.matches(), everything.matches(), strict=True):
        np.testing.assert_array_equal(some.scores, whole.scores[whole.scores >= 0.5])


@pytest.mark.parametrize(
    ("options", "words"),
    [({"cell": 0}, "must be"), ({"max_keypoints": 0}, "must be"), ({"min_confidence": 0.5}, "no confidence")],
)
def test_bad_numbers_and_a_confidence_that_is_not_there_are_refused(
    make_run: MakeRun, three_views: list[MatchedPair], options: dict[str, Any], words: str
) -> None:
    with pytest.raises(DeepMatchingError, match=words):
        SharedKeypoints(make_run(three_views), **options)
