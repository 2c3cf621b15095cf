"""The benchmarks run on miniatures, in processes of their own, and find what they should."""

import json
import os
import re
import sys
from functools import cache
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest
import torch

from deepmatching.flow.confidence import WEIGHTS
from deepmatching.geometry.homographies import centre, similarity
from helpers.benchmarks import imported, output_of, run_benchmark
from helpers.fake_datasets import mask, moved, texture, write_image, write_pairs
from helpers.synthetic_pictures import draw_photo

pytestmark = pytest.mark.slow  # every test starts a process that loads PyTorch


def read_json(path: Path) -> Any:
    return json.loads(path.read_text())


def test_a_large_run_is_planned_and_goes_on() -> None:
    printed = output_of("bulk_planning", "--images", 30, "--pairs", 300)
    assert "300 pairs of 30 images in 38 shards" in printed
    assert "152 pairs were finished" in printed and "300 pairs were finished" in printed


def test_the_costs_of_pairs_are_counted_by_setting_and_form(tmp_path: Path) -> None:
    for number in range(2):
        write_image(tmp_path / f"{number}.png", draw_photo(0, 96, 128))
    printed = output_of("bulk_costs", tmp_path, "--pairs", 1, "--json", tmp_path / "costs.json")
    assert "0.12 descriptions a pair as a run orders them" in printed and "half deflate" in printed
    rows = read_json(tmp_path / "costs.json")
    assert len(rows) == 3 and all(row["half"] < row["as it is"] > row["deflate"] for row in rows.values())


@pytest.mark.skipif(os.name == "nt", reason="Windows has no signal 9")
def test_a_killed_run_loses_nothing(tmp_path: Path) -> None:
    printed = output_of("bulk_kills", "--driver-kills", 2, "--images", 5, "--json", tmp_path / "tally.json")
    assert "0 finished shards written again (0 after a worker died), 0 with other bytes" in printed
    tally = read_json(tmp_path / "tally.json")
    assert tally["driver_kills"] == 2 and tally["runs"] >= 1 and tally["shards"] == 10


def test_matcher_engine_and_files_are_timed_and_find_the_same_matches(tmp_path: Path) -> None:
    write_pairs(tmp_path, 1)
    photo, rows = tmp_path / "0_a.png", tmp_path / "rows.json"
    options = ["--device", "cpu", "--model", "hog", "--radius", 16, "--size", 64, 48, "--pairs", 5, "--batch", 2]
    printed = output_of("bulk_throughput", photo, *options, "--json", rows, "--profile", tmp_path / "profile.txt")
    assert "pairs a second in batches of 2, of those of the matcher: engine " in printed
    assert "largest difference between the run and DeepMatcher.match: 0 px" in printed
    rates = read_json(rows)["rates"]
    assert [(rate["case"], rate["pairs"]) for rate in rates] == [("matcher", 5), ("engine", 5), ("files", 5)]
    assert rates[0]["matches"] == rates[1]["matches"] == rates[2]["matches"] > 0
    assert (tmp_path / "profile.txt").read_text()


def test_the_confidence_of_flow_is_measured_by_data_set_and_fitted(tmp_path: Path) -> None:
    manifest = write_pairs(tmp_path, 2)
    entries = read_json(manifest)
    names = ["first [/bold]", "second"]  # not markup
    manifest.write_text(json.dumps([{**entry, "dataset": name} for entry, name in zip(entries, names, strict=True)]))
    printed = output_of("confidence", manifest)
    assert all(name in printed for name in names)
    weights = printed.split("weights fitted to all:")[1]
    assert len(re.findall(r"-?\d+\.", weights)) == len(WEIGHTS)  # reference points were judged


@pytest.mark.parametrize("options", ["--radius 16", "--full", "--radius 16 --plain"])
def test_each_stage_of_matching_is_timed(tmp_path: Path, options: str) -> None:
    write_pairs(tmp_path, 1)
    printed = output_of("cpu_kernels", tmp_path / "0_a.png", tmp_path / "0_b.png", "--runs", 1, *options.split())
    stages = "describe correlate_and_pool aggregate_and_pool aggregate disaggregate unpool_and_disaggregate total"
    assert all(f"\n{stage}" in printed for stage in stages.split())
    assert "peak memory" in printed and "verified matches" in printed


def test_every_trial_is_measured_on_every_pair_and_matches_are_cached(tmp_path: Path) -> None:
    manifest = write_pairs(tmp_path, 2, dataset="tiny [/bold]")  # not markup
    options = ["--radius", 16, "--device", "cpu", "--cache", tmp_path / "cache", "--json", tmp_path / "rows.json"]
    printed = output_of("flow", manifest, *options, "--backward", "--set", "falloff=0.3", "--set", "steps=1", "alpha=2")
    assert "tiny [/bold]" in printed and "falloff=0.3" in printed and "steps=1 alpha=2" in printed
    rows = read_json(tmp_path / "rows.json")
    assert [row["trial"] for row in rows] == ["falloff=0.3", "steps=1 alpha=2"] * 2
    assert all(row["EPE"] < 1 for row in rows)
    assert len(list((tmp_path / "cache").glob("*.npz"))) == 4  # two pairs, forward and backward


def test_warps_and_middle_frames_are_compared_with_the_truth(tmp_path: Path) -> None:
    manifest = write_pairs(tmp_path, 1)
    for n in range(3):
        write_image(tmp_path / "few" / "frames" / f"{n}.png", moved(texture(), n))
    output_of("warps", manifest, "--frames", tmp_path / "few" / "frames", "--json", tmp_path / "rows.json")
    rows = read_json(tmp_path / "rows.json")
    ((_, _, warped),), ((group, name, middle),) = rows["warps"], rows["frames"]
    assert set(warped) == {"ours", "DIS", "true flow"} and warped["ours"] > 25 < warped["true flow"]
    assert (group, name) == ("few/frames", "1") and middle["ours"] > middle["mean of both"] + 3


def test_each_stage_of_flow_is_timed(tmp_path: Path) -> None:
    write_pairs(tmp_path, 1)
    printed = output_of("flow", "--speed", tmp_path / "0_a.png", tmp_path / "0_b.png", "--radius", 16)
    for stage in ("edges", "interpolation", "refinement", "confidence", "peak memory"):
        assert stage in printed


def test_the_confidence_is_measured_beside_the_score_and_drawn(tmp_path: Path) -> None:
    write_image(tmp_path / "occ.png", mask(slice(None), slice(-16, None)))
    manifest = write_pairs(tmp_path, 2, dataset="tiny [/bold] $x$", occ="occ.png")  # not markup
    files = ["--out", tmp_path / "diagram.png", "--json", tmp_path / "rows.json"]
    printed = output_of("match_confidence", manifest, "--radius", 16, "--device", "cpu", "--chosen-on", 1, *files)
    assert printed.count("tiny [/bold] $x$") == 6  # three tables of each part
    assert "given out, by confidence" in printed and "forward-backward" in printed
    written = read_json(tmp_path / "rows.json")
    assert [row["part"] for row in written["pairs"]] == ["the other pairs", "settings chosen on these"]
    for row in written["pairs"]:
        assert 0 < row["right"] < 1 and 0 < row["stated"] < 1  # the last columns leave the image
        assert 0 <= row["AUC hidden"] <= 1
        assert row["given out, by confidence: coverage"] >= row["verified, by confidence: coverage"]
    counts = sum(count for part in written["reliability"].values() for table in part.values() for count, _, _ in table)
    assert counts == 2 * 80  # every reference point
    assert cv2.imread(str(tmp_path / "diagram.png")) is not None


def test_predictions_stand_beside_measurements_with_kernels_and_without(tmp_path: Path) -> None:
    printed = output_of("memory", "--quick", "--json", tmp_path / "memory.json")
    assert printed.count("64x48") == 4 and printed.count("flow") == 1
    rows = read_json(tmp_path / "memory.json")
    assert [row["kernels"] for row in rows] == [True, False, True, True]
    assert all(row["predicted"] > 0 and row["measured"] >= 0 for row in rows)


def test_a_turned_pair_is_matched_by_the_search_alone(tmp_path: Path) -> None:
    picture = draw_photo(0, 160, 208)
    write_image(tmp_path / "a.png", picture)
    write_image(tmp_path / "b.png", np.ascontiguousarray(np.rot90(picture, -1)))
    np.savetxt(tmp_path / "h.txt", similarity(90, 1, centre((160, 208)), centre((208, 160))))
    entry = {"scene": "noise", "image0": "a.png", "image1": "b.png", "homography": "h.txt"}
    (tmp_path / "pairs.json").write_text(json.dumps([entry]))
    printed = output_of("oxford_search", tmp_path / "pairs.json", "--cache", tmp_path / "cache")
    result = read_json(tmp_path / "cache" / "0.json")
    assert "noise b" in printed and result["rotation"] == pytest.approx(90) and result["zoom"] == pytest.approx(1)
    assert result["search"][0] > 90 > 10 > result["plain"][2]
    assert all(0 <= value <= 100 for method in ("SIFT matches", "SIFT homography") for value in result[method])


def test_hard_and_soft_pooling_are_compared(tmp_path: Path) -> None:
    file = tmp_path / "rows.json"
    options = ("--model", "hog", "--radius", 16, "--device", "cpu", "--json", file)
    assert "Soft and hard pooling" in output_of("soft_pooling", write_pairs(tmp_path, 2), *options)
    rows = read_json(file)
    assert rows["hog hard"]["cells"] < 10 < rows["hog soft"]["cells"]
    assert rows["hog soft"]["one cell"] == rows["hog soft"]["two cells"] == 100


def test_a_small_case_of_each_kind_is_timed_recorded_and_plotted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    module = imported("speed")
    monkeypatch.setattr(module, "measure", cache(module.measure))  # the small cases are equal, and one takes seconds
    files = ["--json", str(tmp_path / "speed.json"), "--plot", str(tmp_path / "cost.png")]
    monkeypatch.setattr(sys, "argv", ["speed.py", "--quick", "--device", "cpu", "--original", "cat", *files])
    module.main()
    assert capsys.readouterr().out.count("64x48") == 4
    content = read_json(tmp_path / "speed.json")
    programs = content["whole_programs"]
    assert len(programs) == 3 and programs["cat"]["time"] < programs["deepmatching match --model hog"]["time"]
    for name in ("reference", "by_radius", "by_size"):
        (timing,) = content[name]
        assert timing["time"] > 0 and timing["floor"] > 0
    assert cv2.imread(str(tmp_path / "cost.png")) is not None


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_gpu_kernels_agree_with_their_definitions() -> None:
    printed = output_of("gpu_kernels", "--only", "check hog full")
    assert "check hog full" in printed and "FAILED" not in printed


@pytest.mark.parametrize(
    ("name", "options", "words"),
    [
        ("flow", ["pairs.json", "--set", "colour=1"], "'colour'"),
        ("match_confidence", ["pairs.json", "--model", "hog"], "'hog' does not judge its matches"),
        ("gpu_flow", ["a.png", "b.png"], "CUDA"),
        ("gpu_kernels", [], "CUDA"),
    ],
)
def test_what_cannot_be_measured_is_one_sentence(tmp_path: Path, name: str, options: list[str], words: str) -> None:
    if words == "CUDA" and torch.cuda.is_available():
        pytest.skip("there is a CUDA device")
    write_pairs(tmp_path, 1)
    result = run_benchmark(name, *(tmp_path / word if word == "pairs.json" else word for word in options))
    (line,) = result.stderr.splitlines()
    assert result.returncode != 0 and words in line


def test_points_are_measured_beside_other_methods(tmp_path: Path) -> None:
    manifest = write_pairs(tmp_path, 2, dataset="tiny [/bold]")  # not markup
    printed = output_of("points", manifest, "--points", 20, "--device", "cpu", "--json", tmp_path / "points.json")
    assert "tiny [/bold]" in printed and "2 pairs, 40 points" in printed
    assert all(f"\n  {name} " in printed for name in ("ours", "ours, sure", "LK", "DIS", "SIFT"))
    rows = read_json(tmp_path / "points.json")
    assert [len(row["errors"]["ours"]) for row in rows] == [20, 20]
    assert np.median(rows[0]["errors"]["ours"]) < 1
