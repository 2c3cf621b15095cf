"""A run says so if there is nothing to learn."""

import json
import math
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from deepmatching.errors import DeepMatchingError
from deepmatching.training import train
from deepmatching.training.config import Config
from deepmatching.training.log import read_log
from deepmatching.training.loop import Run
from helpers.recorder import Recorder

CPU = torch.device("cpu")
Configs = Callable[..., Config]


def with_flow(manifest: Path, folder: Path, *values: float) -> str:
    """Write a manifest of the first pair with each of these displacements everywhere, in both directions."""
    entries = []
    for n, value in enumerate(values):
        np.save(folder / f"{n}.npy", np.full((64, 96, 2), value, np.float32))
        entries.append({**{f"image{i}": str(manifest.parent / f"0_{i}.png") for i in (0, 1)}, "flow": f"{n}.npy"})
    (folder / "flows.json").write_text(json.dumps(entries))
    return f"data.train={folder / 'flows.json'}"


@pytest.mark.parametrize(
    ("value", "says"),
    [(math.nan, "No pixel of the training pairs is known"), (500, r"within model\.radius=8: raise it")],
)
def test_runs_without_lessons_fail(config_of: Configs, manifest: Path, tmp_path: Path, value: float, says: str) -> None:
    config = config_of(with_flow(manifest, tmp_path, value))
    watcher = Recorder()
    with pytest.raises(DeepMatchingError, match=f"{says}.* start another run") as raised:
        train(config, CPU, watchers=[watcher])
    first = str(raised.value).split(":")[0]
    warnings = [n for n, event in enumerate(watcher.events) if event.startswith(first)]
    assert warnings == [watcher.events.index("logged 2") + 1]
    assert len([event for event in watcher.events if "validation pairs" in event]) == math.isnan(value)
    row = next(row for row in read_log(tmp_path / "run" / "log.csv") if "loss" in row)
    assert (row["loss"], row["reachable"], row["known"]) == (0, 0, 0 if math.isnan(value) else 1)
    with pytest.raises(DeepMatchingError, match=says):
        train(config, CPU, resume=True)


def test_a_run_too_short_to_tell_only_warns(config_of: Configs, manifest: Path, tmp_path: Path) -> None:
    watcher = Recorder()
    config = config_of(with_flow(manifest, tmp_path, 500, 500, 500, 500), "steps=2", "log_every=1")
    assert train(config, CPU, watchers=[watcher]).progress.step == 2
    assert sum("No point" in event for event in watcher.events) == 1


def test_one_pair_with_a_lesson_is_enough(config_of: Configs, manifest: Path, tmp_path: Path) -> None:
    watcher = Recorder()
    config = config_of(with_flow(manifest, tmp_path, 500, 500, 3), "log_every=1")
    assert train(config, CPU, watchers=[watcher]).progress.step == 6
    lessons = [row["reachable"] > 0 for row in read_log(tmp_path / "run" / "log.csv") if "reachable" in row]
    assert sum(lessons) == 2  # of six steps, two epochs
    assert sum("No point" in event for event in watcher.events) == (not lessons[0])


def test_a_kill_leaves_one_row_for_a_step(config_of: Configs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Killed(BaseException):
        pass

    def killed(self: Run) -> int:
        validate(self)
        raise Killed

    validate = Run.validate
    monkeypatch.setattr(Run, "validate", killed)
    with pytest.raises(Killed):
        train(config_of("steps=2"), CPU)
    assert [row["step"] for row in read_log(tmp_path / "run" / "log.csv")] == [0]
    monkeypatch.undo()
    train(config_of("steps=2"), CPU, resume=True)
    assert [row["step"] for row in read_log(tmp_path / "run" / "log.csv")] == [0, 2, 2]
