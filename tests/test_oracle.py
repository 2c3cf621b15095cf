"""Comparison with the original programs' outputs and with metrics measured on real pairs (skipped without the data)."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

import deepmatching as dm
from deepmatching.evaluation.metrics import accuracy, propagate
from deepmatching.io.flow import read_flow

PUBLISHED = """36 36 36 26 3.77558
36 44 36 34 3.65536
28 4 22 6 3.59854
28 20 28 10 3.75238
28 28 28 18 3.77126"""


@pytest.mark.slow
def test_the_published_lines_for_liberty(shared: Path) -> None:
    """The GPU program's README prints five lines: same coordinates, scores to six digits."""
    pictures = [shared / "oracle" / "liberty" / f"img{i}.png" for i in (0, 1)]
    command = [sys.executable, "-m", "deepmatching", "match", *map(str, pictures), "--model", "hog", "--radius", "full"]
    lines = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
    assert len(lines) == 49
    assert {f"{line} 0" for line in PUBLISHED.splitlines()} <= set(lines)


@pytest.mark.parametrize("radius", [16, "full"])
def test_identical_pictures_and_a_shift_are_matched_exactly(shared: Path, radius: int | str) -> None:
    matcher = dm.DeepMatcher.from_pretrained("hog", radius=radius)
    same, shifted = (
        matcher.match(*(shared / "oracle" / name / f"img{n}.png" for n in (0, 1)))
        for name in ("identity_96x64", "shift_128x96")
    )
    assert len(same) == 12 * 8 and not same.displacements.any()
    x, y = shifted.keypoints0.unbind(dim=1)
    inside = (x > 16) & (x < 112) & (y > 16) & (y < 80)
    assert inside.sum() >= 80 and (shifted.displacements[inside] == torch.tensor([-6.0, 4.0])).all()


@pytest.mark.parametrize("name", ["climb_128x96", "climb_160x120", "liberty"])
def test_most_matches_are_those_of_the_cpu_program(shared: Path, name: str) -> None:
    """The CPU program (v1.2) has another descriptor and border rule: close, not equal."""
    folder = shared / "oracle" / name
    found = dm.DeepMatcher.from_pretrained("hog", radius="full").match(folder / "img0.png", folder / "img1.png")
    original = dm.Matches.load(folder / "matches_paper.txt")
    ours, theirs = (
        dict(zip(map(tuple, each.keypoints0.tolist()), each.keypoints1.numpy(), strict=True))
        for each in (found, original)
    )
    near = [np.abs(ours[p] - q).max() <= 4 for p, q in theirs.items() if p in ours]
    assert len(near) > 0.6 * len(original) and np.mean(near) > 0.6


@pytest.mark.slow
def test_accuracy_on_middlebury_is_the_measured_one(shared: Path) -> None:
    """acc@2/5/10 of the four Middlebury pairs: 96.1 / 99.7 / 100.0."""
    root = shared / "flow"
    entries = [e for e in json.loads((root / "manifest.json").read_text()) if e["dataset"] == "middlebury_flow"]
    matcher = dm.DeepMatcher.from_pretrained("hog", radius=80)
    percentages = []
    for entry in entries:
        matches = matcher.match(root / entry["image0"], root / entry["image1"])
        truth = read_flow(root / entry["flow"])
        found = accuracy(propagate(*matches.numpy(), *truth.shape[:2]), truth)
        percentages.append([100 * found[t] for t in (2, 5, 10)])
    np.testing.assert_allclose(np.mean(percentages, axis=0), [96.1, 99.7, 100.0], atol=0.3)
