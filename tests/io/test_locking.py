"""A lock ends with the process that holds it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from deepmatching.errors import DeepMatchingError
from deepmatching.io.locking import lock_folder

WORDS = ("training in", "out=…")

HOLD = """
import sys
from pathlib import Path
from deepmatching.io.locking import lock_folder
with lock_folder(Path(sys.argv[1]), "training in", "out=…"):
    print("locked", flush=True)
    sys.stdin.read()
"""


def test_only_one_run_at_a_time_has_the_folder(tmp_path: Path) -> None:
    with lock_folder(tmp_path, *WORDS):
        for _ in range(2):
            with (
                pytest.raises(DeepMatchingError, match="Another process is training"),
                lock_folder(tmp_path, *WORDS),
            ):
                pass
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(KeyboardInterrupt), lock_folder(tmp_path, *WORDS):
        raise KeyboardInterrupt
    assert list(tmp_path.iterdir()) == []
    with lock_folder(tmp_path, *WORDS):
        pass


def test_a_killed_process_locks_nobody_out(tmp_path: Path) -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None and process.stdout.readline() == "locked\n"
    with (
        pytest.raises(DeepMatchingError, match="Another process is training"),
        lock_folder(tmp_path, *WORDS),
    ):
        pass
    process.kill()
    process.communicate()
    assert (tmp_path / ".lock").exists()
    with lock_folder(tmp_path, *WORDS):
        pass
