from __future__ import annotations

import json
from pathlib import Path

import pytest

from helpers.benchmarks import output_of, run_benchmark
from helpers.fake_datasets import write_pairs

pytestmark = pytest.mark.slow  # every test starts a process that loads PyTorch


def test_every_trial_is_measured_on_every_pair_and_matches_are_cached(tmp_path: Path) -> None:
    manifest = write_pairs(tmp_path, 2, dataset="tiny [/bold]")  # not markup
    options = ["--radius", 16, "--device", "cpu", "--cache", tmp_path / "cache", "--json", tmp_path / "rows.json"]
    printed = output_of("flow", manifest, *options, "--backward", "--set", "falloff=0.3", "--set", "steps=1", "alpha=2")
    assert "tiny [/bold]" in printed and "falloff=0.3" in printed and "steps=1 alpha=2" in printed
    rows = json.loads((tmp_path / "rows.json").read_text())
    assert [row["trial"] for row in rows] == ["falloff=0.3", "steps=1 alpha=2"] * 2
    assert all(row["EPE"] < 1 for row in rows)
    assert len(list((tmp_path / "cache").glob("*.npz"))) == 4  # two pairs, forward and backward


def test_the_stages_are_timed_on_one_pair(tmp_path: Path) -> None:
    write_pairs(tmp_path, 1)
    printed = output_of("flow", "--speed", tmp_path / "0_a.png", tmp_path / "0_b.png", "--radius", 16)
    for stage in ("edges", "interpolation", "refinement", "confidence", "peak memory"):
        assert stage in printed


def test_an_unknown_setting_is_one_sentence(tmp_path: Path) -> None:
    result = run_benchmark("flow", write_pairs(tmp_path, 1), "--set", "colour=1")
    assert result.returncode == 1
    assert "'colour'" in result.stderr and len(result.stderr.splitlines()) == 1
