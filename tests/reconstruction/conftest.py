"""A run of made-up matches: a plane with a texture that is never looked at, seen by a few cameras."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from deepmatching.bulk_matching import MatchedPair, RunFolder
from deepmatching.bulk_matching.storage import shard_file, write_shard
from helpers.bulk_runs import MakeRun, matched


@pytest.fixture
def make_run(tmp_path: Path) -> MakeRun:
    """Write a run of these pairs."""

    def make(pairs: Sequence[MatchedPair], **settings: object) -> RunFolder:
        names, content = [pair.names for pair in pairs], {"cell": 2, "step": 8, "max_size": None, **settings}
        with RunFolder.store(tmp_path / "run").reserve():
            run = RunFolder.prepare(tmp_path / "run", content, names, tmp_path, len(names))
        ordered = {pair.names: pair for pair in pairs}
        write_shard(shard_file(run.path, 0), [ordered[names] for names in run.plan.shard(0)])
        return run

    return make


@pytest.fixture
def three_views() -> list[MatchedPair]:
    """Three images, each 10 px further along, with matches from a grid as the matcher gives them: noisy positions."""
    generator = np.random.default_rng(0)
    starts = np.stack(np.meshgrid(np.arange(24, 72, 8), np.arange(16, 48, 8)), axis=-1).reshape(-1, 2) - 0.5
    pairs = []
    for first, second in ((0, 1), (0, 2), (1, 2)):
        ends = starts - (10.0 * (second - first), 0) + generator.normal(0, 0.1, starts.shape)
        pairs.append(matched(f"{first}.png", f"{second}.png", starts, ends, generator.uniform(2, 3, len(starts))))
    return pairs
