import os
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest
import torch

from deepmatching.commands import machine
from deepmatching.commands.machine import choose_threads, read_quota, use_threads, watch
from deepmatching.commands.messages import set_verbosity


@pytest.fixture(autouse=True)
def _as_before() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)
    set_verbosity()


@pytest.mark.parametrize(
    ("cores", "quota", "busy", "expected"),
    [
        (8, None, 0.0, 8),
        (8, None, 0.4, 8),
        (8, None, 3.0, 5),
        (8, None, 40.0, 1),  # never none
        (8, 2.0, 0.0, 2),
        (8, 0.5, 0.0, 1),
        (8, 6.0, 5.0, 3),
        (2, 16.0, 0.0, 2),
    ],
)
def test_threads_are_the_cores_that_are_free_and_allowed(
    cores: int, quota: float | None, busy: float, expected: int
) -> None:
    number, why = choose_threads(cores, quota, busy)
    assert number == expected
    assert f"{cores} cores" in why and f"{busy:.1f} of them in use by other processes" in why


def test_the_limit_of_a_container_is_read(tmp_path: Path) -> None:
    assert read_quota(tmp_path) is None
    (tmp_path / "cpu").mkdir()
    (tmp_path / "cpu" / "cpu.cfs_period_us").write_text("100000\n")
    first, second = "cpu/cpu.cfs_quota_us", "cpu.max"  # of both versions of cgroups
    for name, text, quota in (
        *((first, "-1\n", None), (first, "250000\n", 2.5), (first, "odd", None)),
        *((second, "150000 100000\n", 1.5), (second, "max 100000\n", None)),
    ):
        (tmp_path / name).write_text(text)
        assert read_quota(tmp_path) == quota


@pytest.fixture
def why(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    """Return the reason that a verbose command gives; our work and that of others keeps 2.5 of 5 cores busy."""
    monkeypatch.setattr(machine, "_start", (100.0, 1.0))
    monkeypatch.setattr(machine, "read_quota", lambda: None)
    monkeypatch.setattr(machine.time, "monotonic", lambda: 102.0)
    monkeypatch.setattr(machine.time, "process_time", lambda: 2.0)
    monkeypatch.setattr(psutil.Process, "cpu_affinity", lambda _: [0, 1, 2, 3, 4], raising=False)
    monkeypatch.setattr(psutil, "cpu_percent", lambda percpu: [100, 50, 0, 100, 0, 100, 100])
    monkeypatch.setattr(psutil, "getloadavg", lambda: (4.0, 0, 0))
    set_verbosity(verbose=True)

    def ask(requested: int | None, environ: dict[str, str]) -> str:
        use_threads(requested, environ)
        return capsys.readouterr().err.strip()

    return ask


def test_a_request_wins_over_the_environment_and_that_over_the_choice(
    why: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert why(4, {"OMP_NUM_THREADS": "2"}) == "4 threads (as --threads asks)"
    assert torch.get_num_threads() == 4
    assert why(None, {"OMP_NUM_THREADS": "7"}) == "4 threads (as OMP_NUM_THREADS asks)"  # PyTorch has read it
    assert why(None, {}) == "3 threads (5 cores, 2.0 of them in use by other processes)"
    assert torch.get_num_threads() == 3
    monkeypatch.setattr(psutil, "cpu_percent", lambda percpu: [0.0, 0.0])  # the system tells nothing
    assert why(None, {}) == "1 thread (5 cores, 4.0 of them in use by other processes)"
    monkeypatch.setattr(machine, "_start", None)
    assert why(None, {}) == "1 thread (PyTorch's choice)"


def test_a_command_observes_the_cores_from_its_start(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "_start", None)
    watch()
    use_threads(None, {})
    assert 1 <= torch.get_num_threads() <= len(os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else "1")
