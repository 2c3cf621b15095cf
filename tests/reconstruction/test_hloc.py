"""Files for hloc, read as hloc's documented functions read them."""

from __future__ import annotations

from pathlib import Path

import h5py
import numpy as np

from deepmatching.bulk_matching import MatchedPair
from deepmatching.io.orientation import to_stored
from deepmatching.matches import Matches
from deepmatching.reconstruction.hloc import names_to_pair, write_hloc
from deepmatching.reconstruction.keypoints import SharedKeypoints
from helpers.bulk_runs import MakeRun


def test_names_to_pair_is_hlocs() -> None:
    assert names_to_pair(("db/a b.jpg", "query/c.jpg")) == "db-a b.jpg/query-c.jpg"


def test_types_and_groups_are_those_of_hloc(make_run: MakeRun, three_views: list[MatchedPair], tmp_path: Path) -> None:
    shared = SharedKeypoints(make_run(three_views))
    count = write_hloc(shared, tmp_path / "feats.h5", tmp_path / "matches.h5")
    with h5py.File(tmp_path / "feats.h5") as features, h5py.File(tmp_path / "matches.h5") as matches:
        assert set(features) == {"0.png", "1.png", "2.png"}
        total = 0
        for pair in shared.matches():
            name0, name1 = pair.names
            group = matches[f"{name0}/{name1}"]
            matches0, scores0 = group["matches0"][()], group["matching_scores0"][()]
            assert matches0.dtype == np.int32 and scores0.dtype == np.float16
            points0, points1 = (features[name]["keypoints"][()] for name in pair.names)
            assert points0.dtype == np.float32 and len(matches0) == len(points0) == len(features[name0]["scores"])
            chosen = np.flatnonzero(matches0 > -1)
            total += len(chosen)
            assert {(int(i), int(matches0[i])) for i in chosen} == set(map(tuple, pair.indices.tolist()))
            apart = 10 * (int(name1[0]) - int(name0[0]))
            assert np.abs(points0[chosen] - points1[matches0[chosen]] - (apart, 0)).max() < 1.5
            assert (scores0[chosen] > 1).all() and (scores0[matches0 < 0] == 0).all()
        assert total == count


def test_keypoints_are_in_the_stored_pixels_of_turned_photographs(make_run: MakeRun, tmp_path: Path) -> None:
    points = np.float32([[10.0, 20.0], [50.0, 30.0]])
    matches = Matches(points, points, np.float32([2, 1]), (64, 96), (64, 96))  # type: ignore[arg-type]
    run = make_run([MatchedPair(("sub folder/a.jpg", "b.jpg"), matches, (6, 1))])
    write_hloc(SharedKeypoints(run), tmp_path / "feats.h5", tmp_path / "matches.h5")
    with h5py.File(tmp_path / "feats.h5") as features:
        group = features["sub folder/a.jpg"]
        np.testing.assert_allclose(group["keypoints"][()], to_stored(points, (64, 96), 6))
        assert group["image_size"][()].tolist() == [64, 96]
    with h5py.File(tmp_path / "matches.h5") as file:
        assert file["sub folder-a.jpg/b.jpg/matches0"][()].tolist() == [0, 1]
