from __future__ import annotations

from pathlib import Path

import pytest

from helpers.benchmarks import output_of
from helpers.fake_datasets import write_pairs

pytestmark = pytest.mark.slow  # every test starts a process that loads PyTorch


@pytest.mark.parametrize(
    "options",
    [["--radius", 16], ["--full"], ["--radius", 16, "--plain"]],
    ids=lambda options: " ".join(map(str, options)),
)
def test_each_stage_is_timed(tmp_path: Path, options: list[object]) -> None:
    write_pairs(tmp_path, 1)
    printed = output_of("cpu_kernels", tmp_path / "0_a.png", tmp_path / "0_b.png", "--runs", 1, *options)
    stages = ("describe", "correlate_and_pool", "aggregate_and_pool", "aggregate", "disaggregate",
              "unpool_and_disaggregate", "total")  # fmt: skip
    assert all(f"\n{stage}" in printed for stage in stages)
    assert "peak memory" in printed and "verified matches" in printed
