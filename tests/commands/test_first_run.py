"""Compiling kernels in two processes."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from unittest.mock import Mock

import pytest
from filelock import FileLock
from tests.helpers.processes import run

from deepmatching.commands import first_run
from deepmatching.kernels import first_run as kernels


@pytest.fixture
def at_compilation(monkeypatch: pytest.MonkeyPatch) -> list[Callable[[], None]]:
    """Return what is called at the first compilation: nothing yet."""
    called: list[Callable[[], None]] = []
    for module in (first_run, kernels):
        monkeypatch.setattr(module, "at_compilation", called)
    return called


def test_one_process_helps_however_often_it_is_asked_for(
    at_compilation: list[Callable[[], None]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "cpu_count", lambda: 2)
    started = Mock()
    monkeypatch.setattr(subprocess, "Popen", started)
    first_run.share_compilation()
    first_run.share_compilation()
    kernels.announce_compilation.__wrapped__()
    ((command, *_), _) = started.call_args
    assert started.call_count == 1 and command[-1] == "deepmatching.commands.first_run"


def test_a_single_core_gets_no_help(at_compilation: list[Callable[[], None]], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "cpu_count", lambda: 1)
    first_run.share_compilation()
    assert not at_compilation


def test_a_second_helper_leaves_at_once(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(first_run.tempfile, "gettempdir", lambda: str(tmp_path))
    compiling = Mock()
    monkeypatch.setattr(first_run, "compile_backwards", compiling)
    first_run.main()
    (lock,) = (tmp_path / name for name in os.listdir(tmp_path))
    with FileLock(lock):
        first_run.main()
    assert compiling.call_count == 1


@pytest.mark.slow
def test_after_the_helper_a_flow_compiles_nothing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path / "cache"))
    subprocess.run([sys.executable, "-c", "from deepmatching.commands import first_run as f; f.compile_backwards()"])
    demo = Path(first_run.__file__).parents[1] / "data" / "demo"
    done = run("flow", *sorted(demo.glob("*.jpg")), "-o", tmp_path / "ab.flo")
    assert not done.returncode and "compiling" not in done.stderr
