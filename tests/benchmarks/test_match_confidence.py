from __future__ import annotations

import json
from pathlib import Path

import cv2
import pytest

from helpers.benchmarks import output_of, run_benchmark
from helpers.fake_datasets import mask, write_image, write_pairs

pytestmark = pytest.mark.slow  # every test starts a process that loads PyTorch


def test_the_confidence_is_measured_beside_the_score_and_drawn(tmp_path: Path) -> None:
    write_image(tmp_path / "occ.png", mask(slice(None), slice(-16, None)))
    manifest = write_pairs(tmp_path, 2, dataset="tiny [/bold] $x$", occ="occ.png")  # not markup
    files = ["--out", tmp_path / "diagram.png", "--json", tmp_path / "rows.json"]
    printed = output_of("match_confidence", manifest, "--radius", 16, "--device", "cpu", "--chosen-on", 1, *files)
    assert printed.count("tiny [/bold] $x$") == 6  # three tables of each part
    for words in ("settings chosen on these", "the other pairs", "given out, by confidence", "forward-backward"):
        assert words in printed
    written = json.loads((tmp_path / "rows.json").read_text())
    assert [row["part"] for row in written["pairs"]] == ["the other pairs", "settings chosen on these"]
    for row in written["pairs"]:
        assert 0 < row["right"] < 1 and 0 < row["stated"] < 1  # the last columns leave the image
        assert 0 <= row["AUC hidden"] <= 1
        assert row["given out, by confidence: coverage"] >= row["verified, by confidence: coverage"]
    counts = sum(count for part in written["reliability"].values() for table in part.values() for count, _, _ in table)
    assert counts == 2 * 80  # every reference point
    assert cv2.imread(str(tmp_path / "diagram.png")) is not None


def test_a_model_that_does_not_judge_its_matches_is_refused_in_one_sentence(tmp_path: Path) -> None:
    result = run_benchmark("match_confidence", write_pairs(tmp_path, 1), "--model", "hog")
    assert result.returncode == 1
    assert "'hog' does not judge its matches" in result.stderr and len(result.stderr.splitlines()) == 1
