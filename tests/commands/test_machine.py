from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from deepmatching.commands import machine
from deepmatching.commands.machine import (
    LIBRARY_ADDRESSES,
    Usage,
    busy_cores,
    choose_threads,
    read_busy,
    read_quota,
    require_addresses,
    use_threads,
)


@pytest.fixture
def _threads_as_before() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


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


def test_the_work_of_this_process_does_not_count_as_that_of_others() -> None:
    before = Usage(time=100.0, busy=1000.0, own=1.0)
    assert busy_cores(before, Usage(time=102.0, busy=1005.0, own=3.0), load=9) == 1.5
    assert busy_cores(before, Usage(time=102.0, busy=1001.0, own=3.0), load=9) == 0.0
    assert busy_cores(before, Usage(time=102.0, busy=1000.0, own=3.0), load=9) == 9  # the system tells nothing


def test_ticks_are_read_of_our_cores_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine.os, "sysconf", lambda _: 100, raising=False)
    rows = ["cpu  9 9 9 9 9 9 9 9 0 0", "cpu0 100 20 30 999 999 4 5 6 7 8", "cpu1 1000 0 0 0 0 0 0 0 0 0", "intr 5"]
    (tmp_path / "stat").write_text("\n".join(rows))
    assert read_busy({0}, tmp_path / "stat") == 1.65
    assert read_busy({0, 1}, tmp_path / "stat") == 11.65
    assert read_busy({0}, tmp_path / "missing") == 0
    (tmp_path / "stat").write_text("cpu0 many")
    assert read_busy({0}, tmp_path / "stat") == 0


def test_the_limit_of_a_container_is_read(tmp_path: Path) -> None:
    assert read_quota(tmp_path) is None
    (tmp_path / "cpu").mkdir()
    (tmp_path / "cpu" / "cpu.cfs_quota_us").write_text("-1\n")
    (tmp_path / "cpu" / "cpu.cfs_period_us").write_text("100000\n")
    assert read_quota(tmp_path) is None
    (tmp_path / "cpu" / "cpu.cfs_quota_us").write_text("250000\n")
    assert read_quota(tmp_path) == 2.5
    (tmp_path / "cpu.max").write_text("150000 100000\n")
    assert read_quota(tmp_path) == 1.5
    (tmp_path / "cpu.max").write_text("max 100000\n")
    assert read_quota(tmp_path) is None


@pytest.mark.usefixtures("_threads_as_before")
def test_a_request_wins_over_the_environment_and_that_over_the_choice(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "_before", Usage(0.0, 0.0, 0.0))
    monkeypatch.setattr(machine, "_usage", lambda _: Usage(10.0, 20.0, 0.0))  # two cores are busy
    monkeypatch.setattr(machine, "_cores", lambda: {0, 1, 2, 3, 4})
    monkeypatch.setattr(machine, "read_quota", lambda: None)
    assert use_threads(4, {"OMP_NUM_THREADS": "2"}) == "4 threads (as --threads asks)"
    assert torch.get_num_threads() == 4
    assert use_threads(None, {"OMP_NUM_THREADS": "7"}) == "4 threads (as OMP_NUM_THREADS asks)"  # PyTorch has read it
    assert use_threads(None, {}) == "3 threads (5 cores, 2.0 of them in use by other processes)"
    assert torch.get_num_threads() == 3


@pytest.mark.usefixtures("_threads_as_before")
def test_a_command_called_as_a_function_leaves_the_number_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "_before", None)
    torch.set_num_threads(2)
    assert use_threads(None, {}) == "2 threads (PyTorch's choice)"


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="limits of addresses are enforced on Linux")
def test_too_few_addresses_for_the_libraries_are_reported_and_help_is_still_there() -> None:
    code = f"""
import resource, sys
from pathlib import Path
taken = resource.getpagesize() * int(Path("/proc/self/statm").read_text().split()[0])
resource.setrlimit(resource.RLIMIT_AS, 2 * (taken + {LIBRARY_ADDRESSES // 2},))
from deepmatching.cli import main
main()
"""
    command = [sys.executable, "-c", code, "match", "a.png", "b.png"]
    refused = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (refused.returncode, refused.stdout, refused.stderr.count("\n")) == (2, "", 1)
    assert refused.stderr.startswith("deepmatching: The limit of addresses (ulimit -v) leaves ")
    helped = subprocess.run([*command, "--help"], capture_output=True, text=True, check=False)
    assert helped.returncode == 0 and "Usage" in helped.stdout


def test_without_a_limit_or_where_none_is_enforced_nothing_is_refused(tmp_path: Path) -> None:
    require_addresses()
    require_addresses(tmp_path / "missing")
