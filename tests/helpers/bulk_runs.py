"""Runs of bulk matching."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from deepmatching.bulk_matching import RunFolder
from deepmatching.bulk_matching.storage import SHARDS

#: Settings that match small photographs fast.
SETTINGS: dict[str, Any] = {"model": "hog", "radius": 32, "device": "cpu"}

#: The fixture that writes a run of given pairs.
MakeRun = Callable[..., RunFolder]


def shards(run: RunFolder | Path) -> dict[str, bytes]:
    """Return the contents of the files of a run's matches."""
    folder = run.path if isinstance(run, RunFolder) else run
    return {path.name: path.read_bytes() for path in sorted((folder / SHARDS).iterdir())}
