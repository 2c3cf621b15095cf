"""``deepmatching match``, ``scores`` and ``demo`` as a user runs them."""

import json
import os
import subprocess
import sys
from pathlib import Path

import cv2
import numpy as np
import pytest
import torch

import deepmatching
from deepmatching.io.flow import read_flow
from deepmatching.matches import Matches
from helpers.fake_datasets import texture, write_image
from helpers.processes import errors_of, run
from helpers.synthetic_pictures import draw_photo


def test_text_goes_to_standard_output(pictures: tuple[Path, Path]) -> None:
    result = run("match", *pictures, "--radius", "16", "--device", "cpu")
    assert result.returncode == 0
    lines = [line.split() for line in result.stdout.splitlines()]
    assert len(lines) > 50 and all(len(line) == 6 for line in lines)
    assert all((float(x) - 4) % 8 == 0 for x, *_ in lines)  # the original's positions: 4, 12, 20, …
    assert f"{len(lines)} matches of 96 reference points" in result.stderr


@pytest.mark.slow
def test_quiet_prints_the_matches_and_errors_only(pictures: tuple[Path, Path], tmp_path: Path) -> None:
    result = run("match", *pictures, "--radius", "16", "--draw", tmp_path / "m.png", "--quiet")
    assert (result.returncode, result.stderr) == (0, "")
    assert len(result.stdout.splitlines()) > 50
    failed = run("match", pictures[0], tmp_path / "missing.png", "-q")
    assert failed.returncode == 2 and failed.stderr.count("\n") == 1


@pytest.mark.slow
def test_unrelated_pictures_get_a_warning_and_related_ones_do_not(pictures: tuple[Path, Path], tmp_path: Path) -> None:
    write_image(tmp_path / "other.png", texture((64, 96), seed=5))
    related = run("match", *pictures, "--radius", "16", "-o", tmp_path / "m.npz")
    unrelated = run("match", pictures[0], tmp_path / "other.png", "--radius", "16", "-o", tmp_path / "m.npz")
    assert unrelated.returncode == 0  # the matches are written all the same
    assert "warning: this is probably wrong" in unrelated.stderr and "try a larger --radius" in unrelated.stderr
    assert "warning" not in related.stderr


@pytest.mark.slow
def test_min_confidence_keeps_the_matches_with_at_least_that(pictures: tuple[Path, Path], tmp_path: Path) -> None:
    first, second = pictures
    changed = cv2.imread(str(second))
    assert changed is not None
    changed[:, 48:] = texture((64, 48), seed=5)  # no match there is right
    cv2.imwrite(str(second), changed)
    everything, sure = tmp_path / "all.npz", tmp_path / "sure.npz"
    assert run("match", first, second, "--radius", "16", "-o", everything).returncode == 0
    result = run("match", first, second, "--radius", "16", "-o", sure, "--min-confidence", "0.9")
    found, kept = Matches.load(everything), Matches.load(sure)
    assert found.confidence is not None and kept.confidence is not None
    assert 0 < len(kept) < len(found) and float(kept.confidence.min()) >= 0.9
    assert len(kept) == int((found.confidence >= 0.9).sum())
    assert f"{len(kept)} matches of 96 reference points" in result.stderr
    assert "warning" not in result.stderr  # which is about all matches, not about those that are kept


@pytest.mark.slow
def test_a_turned_picture_and_another_one_get_a_warning_and_the_demo_pair_does_not(tmp_path: Path) -> None:
    demo = Path(deepmatching.__file__).parent / "data" / "demo"
    first, second = demo / "bunny_0.jpg", demo / "bunny_1.jpg"
    pixels = cv2.imread(str(first))
    assert pixels is not None
    cv2.imwrite(str(tmp_path / "turned.png"), cv2.rotate(pixels, cv2.ROTATE_90_CLOCKWISE))
    cv2.imwrite(str(tmp_path / "other.png"), draw_photo(0, *pixels.shape[:2]))
    output = ("-o", tmp_path / "m.npz")
    for beyond in ("turned.png", "other.png"):
        stderr = run("match", first, tmp_path / beyond, "--no-auto", *output).stderr
        assert "warning: this is probably wrong, since the model expects a right match at only" in stderr, beyond
        assert "try a larger --radius" in stderr and stderr.count("warning") == 1
    for found in (tmp_path / "turned.png", second):
        assert "warning" not in run("match", first, found, *output).stderr
    assert "turned by 90 degrees" in run("match", first, tmp_path / "turned.png", *output).stderr


@pytest.mark.slow
def test_the_geometry_goes_to_a_json_file_or_to_standard_output(pictures: tuple[Path, Path], tmp_path: Path) -> None:
    options = ("--radius", "16", "--geometry", "homography")
    written = run("match", *pictures, *options, "-o", tmp_path / "h.json", "--draw", tmp_path / "h.png")
    assert (written.returncode, written.stdout) == (0, "") and (tmp_path / "h.png").is_file()
    content = json.loads((tmp_path / "h.json").read_text())
    assert content["geometry"] == "homography" and content["threshold"] == 3
    assert f"homography: {content['inliers']} of {content['matches']} matches fit within 3 px" in written.stderr
    beside = run("match", *pictures, *options, "-o", tmp_path / "m.npz")
    assert json.loads(beside.stdout) == json.loads(run("match", *pictures, *options).stdout) == content
    found = Matches.load(tmp_path / "m.npz")
    assert len(found) == content["matches"] and np.allclose(found.homography().matrix, content["matrix"])
    assert run("match", *pictures, "-o", tmp_path / "m.json").returncode == 2


@pytest.mark.slow
def test_options_reach_the_matcher(pictures: tuple[Path, Path]) -> None:
    options = "--model hog --radius full --levels 2 --downscale 0 --reciprocal none -v"
    result = run("match", *pictures, *options.split())
    assert len(result.stdout.splitlines()) == 16 * 24
    assert "384 reference points, 2 levels" in result.stderr
    assert "of memory on" in result.stderr


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="the error of a closed pipe is POSIX")
def test_a_reader_that_stops_early_is_not_an_error(pictures: tuple[Path, Path], tmp_path: Path) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    options = ["--radius", "16", "--draw", tmp_path / "q.png"]
    try:
        result = run("match", *pictures, *options, stdout=writing)
    finally:
        os.close(writing)
    assert result.returncode == 0, result.stderr
    assert (tmp_path / "q.png").exists()


@pytest.mark.slow
@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a POSIX shell and /dev/full")
def test_standard_output_that_cannot_be_written_is_reported(pictures: tuple[Path, Path]) -> None:
    def shell(redirection: str) -> subprocess.CompletedProcess[str]:
        match = f"{sys.executable} -m deepmatching match {pictures[0]} {pictures[1]} --radius 16 {redirection}"
        return subprocess.run(["bash", "-c", match], capture_output=True, text=True, check=False)

    for redirection in (">/dev/full", ">&-"):
        result = shell(redirection)
        assert result.returncode == 2
        (error,) = errors_of(result)
        assert "use -o FILE" in error
    silent = shell("2>&-")  # no summary among the matches
    assert silent.stdout and all(len(line.split()) == 6 for line in silent.stdout.splitlines())


def test_a_turned_image_is_matched_with_a_search(tmp_path: Path) -> None:
    picture = draw_photo(0, 128, 160)
    for name, image in (("a.png", picture), ("b.png", np.rot90(picture, -1))):
        cv2.imwrite(str(tmp_path / name), image)
    result = run("match", "a.png", "b.png", "--rotations", "0,90", "-o", "m.npz", "--device", "cpu", cwd=tmp_path)
    assert "matches turned by 90 degrees, zoomed by 1.00" in result.stderr
    matches = Matches.load(tmp_path / "m.npz")
    x, y = matches.keypoints0.T
    expected = torch.stack([127 - y, x], dim=1)  # a quarter turn, clockwise
    assert ((matches.keypoints1 - expected).norm(dim=1) < 1).float().mean() > 0.95
    assert matches.transformations is not None and matches.transformations.shape == (1, 3, 3)


@pytest.mark.slow
def test_scores_writes_its_picture(pictures: tuple[Path, Path], tmp_path: Path) -> None:
    rows = []
    for points in (["--at", "40,30"], ["--at", "40,30", "--at", "20,20", "--at", "9,50"]):
        assert run("scores", *pictures, *points, "-o", tmp_path / "s.png", "--radius", "16").returncode == 0
        rows.append(cv2.imread(str(tmp_path / "s.png")).shape[0])
    assert rows[1] > rows[0]


@pytest.mark.slow
def test_demo_writes_its_files(tmp_path: Path) -> None:
    result = run("demo", "--out", tmp_path / "demo", "--device", "cpu", "--quiet")
    assert (result.returncode, result.stderr) == (0, "")
    assert len(Matches.load(tmp_path / "demo" / "matches.txt")) > 3000
    for name in ("matches.png", "displacement.png", "scores.png", "flow.png"):
        assert cv2.imread(str(tmp_path / "demo" / name)) is not None
    assert read_flow(tmp_path / "demo" / "flow.flo").shape[2] == 2
