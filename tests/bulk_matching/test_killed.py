"""A run that is killed by signal 9 at random moments ends with the same bytes."""

import random
import time
from pathlib import Path

import pytest

from deepmatching.bulk_matching.storage import SHARDS
from helpers.bulk_runs import shards
from helpers.processes import run, started


@pytest.mark.slow
@pytest.mark.parametrize("engine", ["local", "ray"])
def test_a_run_killed_at_random_moments_ends_with_the_same_bytes(engine: str, photos: Path, tmp_path: Path) -> None:
    """Three kills. ``--repeat 10`` makes it thirty, at other moments."""
    command: list[object] = ["bulk", photos, "--exhaustive", "--model", "hog", "--radius", 32, "--device", "cpu"]
    assert run(*command, "--out", tmp_path / "whole").returncode == 0
    if engine == "ray":
        pytest.importorskip("ray")
        command += ["--engine", "ray", "--workers", 2, "--cpus-per-worker", 1]
    command.append("--out")
    expected = shards(tmp_path / "whole")
    folder = tmp_path / "run" / SHARDS
    for kill in range(3):
        there = _finished(folder)
        most = max(len(there), min(len(expected) - 1, 3 * (kill + 1)))  # the last kill may have come late
        wanted = random.randint(len(there), most)
        with started(*command, tmp_path / "run") as process:
            while process.poll() is None and len(_finished(folder)) < wanted:
                time.sleep(0.001)
            time.sleep(random.uniform(0, 0.02))
        assert there <= _finished(folder)  # what is finished stays
    assert run(*command, tmp_path / "run").returncode == 0
    assert shards(tmp_path / "run") == expected


def _finished(folder: Path) -> set[str]:
    return {path.name for path in folder.glob("[0-9]*.npz")}
