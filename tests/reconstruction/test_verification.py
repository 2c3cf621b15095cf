"""Verification without camera models."""

import numpy as np

from deepmatching.reconstruction.verification import verify_pairs
from helpers.bulk_runs import MakeRun, matched


def two_views(count: int, wrong: int) -> tuple[np.ndarray, np.ndarray]:
    """Points in front of two cameras that are side by side, and wrong matches."""
    generator = np.random.default_rng(0)
    points = generator.uniform((-1, -1, 3), (1, 1, 6), (count, 3))
    views = [400 * (points - (shift, 0, 0))[:, :2] / points[:, 2:] + 200 for shift in (0.0, 0.7)]
    ends = [np.concatenate([view, generator.uniform(0, 400, (wrong, 2))]) for view in views]
    return ends[0], ends[1]


def test_pairs_are_kept_for_their_confident_matches_that_fit_one_geometry(make_run: MakeRun) -> None:
    pairs = []
    for number, (right, wrong, share) in enumerate(((200, 20, 1.0), (0, 220, 1.0), (200, 20, 0.4), (5, 0, 1.0))):
        count = right + wrong
        confidence = np.where(np.arange(count) < share * count, 0.9, 0.1)
        arrays = *two_views(right, wrong), np.ones(count), confidence
        pairs.append(matched("a.png", f"{number}.png", *arrays, size=(400, 400)))
    counted: list[None] = []
    verified = verify_pairs(make_run(pairs), 100, lambda: counted.append(None))
    assert list(verified) == [("a.png", "0.png")] and 195 <= verified["a.png", "0.png"] <= 220
    assert len(counted) == 4
