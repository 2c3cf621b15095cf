from __future__ import annotations

import json
from pathlib import Path

import pytest

from helpers.benchmarks import output_of
from helpers.fake_datasets import write_pairs


@pytest.mark.slow
def test_matcher_engine_and_files_are_timed_and_find_the_same_matches(tmp_path: Path) -> None:
    write_pairs(tmp_path, 1)
    photo, rows = tmp_path / "0_a.png", tmp_path / "rows.json"
    options = ["--device", "cpu", "--model", "hog", "--radius", 16, "--size", 64, 48, "--pairs", 5, "--batch", 2]
    printed = output_of("bulk_throughput", photo, *options, "--json", rows, "--profile", tmp_path / "profile.txt")
    assert "pairs a second in batches of 2, of those of the matcher: engine " in printed
    assert "largest difference between the run and DeepMatcher.match: 0 px" in printed
    rates = json.loads(rows.read_text())["rates"]
    assert [(rate["case"], rate["pairs"]) for rate in rates] == [("matcher", 5), ("engine", 5), ("files", 5)]
    assert rates[0]["matches"] == rates[1]["matches"] == rates[2]["matches"] > 0
    assert (tmp_path / "profile.txt").read_text()
