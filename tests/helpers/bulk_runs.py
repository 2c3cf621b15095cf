"""Runs of bulk matching."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from deepmatching.bulk_matching import MatchedPair, RunFolder
from deepmatching.bulk_matching.storage import SHARDS
from deepmatching.matches import Matches

#: Settings that match small photographs fast.
SETTINGS: dict[str, Any] = {"model": "hog", "radius": 32, "device": "cpu"}

#: The fixture that writes a run of given pairs.
MakeRun = Callable[..., RunFolder]


def matched(name0: str, name1: str, *arrays: Any, size: tuple[int, int] = (64, 96), turned: int = 1) -> MatchedPair:
    """Return a pair with these points, measured in images of one size, scores and perhaps confidences."""
    points0, points1, scores, confidence = (*(np.asarray(array, np.float32) for array in arrays), None)[:4]
    return MatchedPair((name0, name1), Matches(points0, points1, scores, size, size, confidence), (turned, 1))


def shards(run: RunFolder | Path) -> dict[str, bytes]:
    """Return the contents of the files of a run's matches."""
    folder = run.path if isinstance(run, RunFolder) else run
    return {path.name: path.read_bytes() for path in sorted((folder / SHARDS).iterdir())}
