"""Limits around the process: control groups in a fake file system, limits of addresses in a child."""

import os
import subprocess
import sys
from pathlib import Path

import psutil
import pytest
import torch

from deepmatching.kernels.limits import free_bytes, group_limits


def test_free_memory_is_at_most_that_of_the_machine() -> None:
    free = free_bytes(torch.device("cpu"))
    assert free is not None and 0 < free <= psutil.virtual_memory().total


def _run_in(root: Path, lines: str) -> None:
    """Write the groups of the process."""
    (root / "proc/self").mkdir(parents=True)
    (root / "proc/self/cgroup").write_text(lines)


def _group(folder: Path, **values: object) -> None:
    """Write the files of a control group."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, value in values.items():
        (folder / f"memory.{name}").write_text(f"{value}\n")


@pytest.mark.parametrize("top", ["sys/fs/cgroup", "sys/fs/cgroup/unified"])
def test_every_group_around_the_process_limits_it(tmp_path: Path, top: str) -> None:
    """Version 2: the limit of a job may stand three groups above the process."""
    _run_in(tmp_path, "0::/slurm/job_7/step_0\n")
    root = tmp_path / top
    _group(root / "slurm/job_7/step_0", max="max", high="max", current=300, stat="anon 5\ninactive_file 100")
    _group(root / "slurm/job_7", max=1000, high=900, current=300, stat="inactive_file 100")
    _group(root / "slurm", max=5000, current=1000, stat="anon 5\ninactive_file 0")
    _group(root / "slurm/job_8", max=1, current=1, stat="inactive_file 0")
    assert sorted(group_limits(tmp_path)) == [700, 800, 4000]


def test_the_limits_of_version_1_count(tmp_path: Path) -> None:
    _run_in(tmp_path, "5:cpu,cpuacct:/job\n4:memory:/slurm/job_7\n1:name=systemd:/x\n")
    root = tmp_path / "sys/fs/cgroup/memory"
    _group(root / "slurm/job_7", limit_in_bytes=2000, usage_in_bytes=500, stat="total_inactive_file 50\ncache 9")
    _group(root, limit_in_bytes=9223372036854771712, usage_in_bytes=5000, stat="total_inactive_file 50")
    assert group_limits(tmp_path) == [1550]


def test_a_container_sees_its_own_group_as_the_root_even_without_statistics(tmp_path: Path) -> None:
    """The path is the host's and does not exist inside. A new kernel may write statistics of another form."""
    _run_in(tmp_path, "0::/docker/abc\n")
    _group(tmp_path / "sys/fs/cgroup", max=1000, current=400)
    assert group_limits(tmp_path) == [600]
    (tmp_path / "proc/self/cgroup").unlink()
    _group(tmp_path / "sys/fs/cgroup", stat="anon 5 of 7\ninactive_file 30")
    assert group_limits(tmp_path) == [630]


def test_without_groups_there_is_no_limit(tmp_path: Path) -> None:
    assert group_limits(tmp_path) == []
    _run_in(tmp_path, "damaged\n0::/../..\n")
    _group(tmp_path / "sys/fs/cgroup", max="?", current=1, stat="inactive_file")
    assert group_limits(tmp_path) == []


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="the kernel counts addresses differently")
@pytest.mark.parametrize("name", ["RLIMIT_AS", "RLIMIT_DATA"])
def test_the_limits_of_the_process_count(name: str) -> None:
    """A child may take only as many addresses as its limit leaves."""
    code = f"""
import resource, torch
from deepmatching.kernels.limits import free_bytes, process_limits
torch.set_num_threads(1)
assert process_limits() == []
resource.setrlimit(resource.{name}, (64 * 2**30, resource.RLIM_INFINITY))
before = process_limits()[0]
held = torch.ones(2**26)  # 256 MiB
print(before, process_limits()[0], free_bytes(torch.device("cpu")))
"""
    environment = {**os.environ, "OMP_NUM_THREADS": "2"}
    command = [sys.executable, "-c", code]
    result = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
    before, after, free = map(int, result.stdout.split())
    assert 0 < before < 64 * 2**30
    assert 2**28 <= before - after < 2**29
    assert free <= after
