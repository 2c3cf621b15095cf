"""Locks end with whoever has them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from deepmatching.errors import DeepMatchingError
from deepmatching.training.lock import locked

HOLD = """
import sys, time
from pathlib import Path
from deepmatching.training.lock import locked
with locked(Path(sys.argv[1])):
    print("locked", flush=True)
    time.sleep(60)
"""


def test_one_at_a_time(tmp_path: Path) -> None:
    with locked(tmp_path):
        for _ in range(2):
            with pytest.raises(DeepMatchingError, match="Another process is training"), locked(tmp_path):
                pass
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(KeyboardInterrupt), locked(tmp_path):
        raise KeyboardInterrupt
    assert list(tmp_path.iterdir()) == []
    with locked(tmp_path):
        pass


def test_a_killed_process_locks_nobody_out(tmp_path: Path) -> None:
    process = subprocess.Popen([sys.executable, "-c", HOLD, str(tmp_path)], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None and process.stdout.readline() == "locked\n"
    with pytest.raises(DeepMatchingError, match="Another process is training"), locked(tmp_path):
        pass
    process.kill()
    process.communicate()
    assert (tmp_path / ".lock").exists()
    with locked(tmp_path):
        pass
