"""A lock ends with the process that holds it, and a manifest with other settings is refused."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from deepmatching.errors import DeepMatchingError
from deepmatching.io.store import Store, lock_folder

HOLD = """
import sys
from pathlib import Path
from deepmatching.io.store import lock_folder
with lock_folder(Path(sys.argv[1])):
    print("locked", flush=True)
    sys.stdin.read()
"""


def test_only_one_run_at_a_time_has_the_folder(tmp_path: Path) -> None:
    with lock_folder(tmp_path):
        for _ in range(2):
            with pytest.raises(DeepMatchingError, match="Another process"), lock_folder(tmp_path):
                pass
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(KeyboardInterrupt), lock_folder(tmp_path):
        raise KeyboardInterrupt
    assert list(tmp_path.iterdir()) == []


def test_a_killed_process_locks_nobody_out(tmp_path: Path) -> None:
    command = [sys.executable, "-c", HOLD, str(tmp_path)]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None and process.stdout.readline() == "locked\n"
    with pytest.raises(DeepMatchingError, match="Another process"), lock_folder(tmp_path):
        pass
    process.kill()
    process.communicate()
    assert (tmp_path / ".lock").exists()
    with lock_folder(tmp_path):
        pass


def test_the_first_setting_that_differs_is_named(tmp_path: Path) -> None:
    store = Store(tmp_path, "run.json", "flows")
    before = {"radius": 80, "loss": {"S0": 1.0}, "device": "cpu", "data": {"root": "a", "split": "b"}}
    store.write(before)
    for now, words in (
        ({"radius": 160}, "with radius 80, and now it is 160"),
        ({"radius": None}, "with radius 80, and now it is not set"),
        ({"loss": {"S0": 2.0}}, r"with loss\.S0 1\.0, and now it is 2\.0"),
        ({"edges": "x"}, 'without edges, and now it is "x"'),
        ({"data": {"root": "c", "split": "d"}}, r"with data\.split"),
    ):
        with pytest.raises(DeepMatchingError, match=words):
            store.check_settings(store.read(dict[str, Any]), {**before, **now}, ["device", "data.root"])
    store.check_settings(before, {**before, "device": "cuda", "data": {"root": "c", "split": "b"}}, ["device", "data"])


def test_a_reserved_folder_is_free_of_what_killed_runs_left(tmp_path: Path) -> None:
    store = Store(tmp_path / "run", "run.json", "flows", ("parts",))
    with store.reserve():
        (store.path / "parts" / f".deepmatching-{'0' * 32}.npz").write_bytes(b"half")
        (store.path / "parts" / "1.npz").write_bytes(b"whole")
    with store.reserve():
        assert [file.name for file in (store.path / "parts").iterdir()] == ["1.npz"]
        with pytest.raises(DeepMatchingError, match="Another process"), store.reserve():
            pass
