"""Verification without camera models."""

from __future__ import annotations

import numpy as np

from deepmatching.bulk_matching import MatchedPair
from deepmatching.matches import Matches
from deepmatching.reconstruction.verification import count_inliers, verify_pairs
from helpers.bulk_runs import MakeRun


def two_views(count: int, wrong: int) -> tuple[np.ndarray, np.ndarray]:
    """Points in front of two cameras that are side by side, and wrong matches."""
    generator = np.random.default_rng(0)
    points = generator.uniform((-1, -1, 3), (1, 1, 6), (count, 3))
    views = [400 * (points - (shift, 0, 0))[:, :2] / points[:, 2:] + 200 for shift in (0.0, 0.7)]
    ends = [np.concatenate([view, generator.uniform(0, 400, (wrong, 2))]) for view in views]
    return ends[0], ends[1]


def test_matches_that_fit_one_geometry_are_counted() -> None:
    first, second = two_views(200, 100)
    assert 195 <= count_inliers(first, second, 0.5) <= 215
    assert count_inliers(first[:5], second[:5], 0.5) == 0


def test_pairs_with_too_few_verified_matches_are_left_out(make_run: MakeRun) -> None:
    pairs = []
    for number, (right, wrong) in enumerate(((200, 20), (0, 220))):
        arrays = [np.float32(array) for array in (*two_views(right, wrong), np.ones(220))]
        matches = Matches(*arrays, (400, 400), (400, 400))  # type: ignore[arg-type]
        pairs.append(MatchedPair(("a.png", f"{number}.png"), matches))
    counted: list[None] = []
    verified = verify_pairs(make_run(pairs), 100, lambda: counted.append(None))
    assert list(verified) == [("a.png", "0.png")] and verified["a.png", "0.png"] >= 195
    assert len(counted) == 2
