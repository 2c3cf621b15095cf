"""``deepmatching match``, ``scores`` and ``demo`` as a user runs them."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
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
def test_the_confidence_is_a_seventh_column_on_request(pictures: tuple[Path, Path], tmp_path: Path) -> None:
    result = run("match", *pictures, "--radius", "16", "--with-confidence")
    assert {len(line.split()) for line in result.stdout.splitlines()} == {7}
    (tmp_path / "m.txt").write_text(result.stdout)
    assert run("match", *pictures, "--radius", "16", "-o", tmp_path / "m.json").returncode == 0
    text, exact = Matches.load(tmp_path / "m.txt"), Matches.load(tmp_path / "m.json")
    assert text.confidence is not None and exact.confidence is not None
    assert np.allclose(text.confidence, exact.confidence, rtol=1e-5)
    refused = run("match", *pictures, "--radius", "16", "--with-confidence", "--model", "hog")
    assert refused.returncode == 2 and "no confidence" in refused.stderr


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
    alone = json.loads(beside.stdout)
    assert alone == json.loads(run("match", *pictures, *options).stdout) and alone.items() <= content.items()
    found = Matches.load(tmp_path / "m.npz")
    fitting = found[found.homography().inliers]  # these are in the file, too
    assert torch.equal(Matches.load(tmp_path / "h.json").keypoints1, fitting.keypoints1)
    assert len(found) == content["matches"] and np.allclose(found.homography().matrix, content["matrix"])


@pytest.mark.slow
def test_the_points_of_a_file_go_to_standard_output_or_to_a_file(pictures: tuple[Path, Path], tmp_path: Path) -> None:
    (tmp_path / "mine.txt").write_text("40 30\n50.5 25.25\n")
    options = ("--points", tmp_path / "mine.txt", "--radius", "16")
    printed = run("match", *pictures, *options)
    x0, y0, x1, y1, confidence, visible = map(float, printed.stdout.splitlines()[1].split())
    assert (x0, y0, visible) == (50.5, 25.25, 1) and abs(x1 - 56.5) + abs(y1 - 21.25) < 0.3 and confidence > 0.5
    written = run("match", *pictures, *options, "-o", tmp_path / "p.txt", "--draw", tmp_path / "p.png")
    assert (tmp_path / "p.txt").read_text() == printed.stdout and written.stdout == ""
    assert (tmp_path / "p.png").is_file() and "2 points, 2 of them visible" in written.stderr
    assert run("match", *pictures, *options, "-o", tmp_path / "p.txt").returncode == 0  # replaces its own file
    masked = run("match", *pictures, *options, "--mask0", "45,20 60,20 60,30 45,30")
    assert [float(line.split()[4]) > 0 for line in masked.stdout.splitlines()] == [False, True]


def test_the_picture_of_points_heeds_the_bits_in_use(
    pictures: tuple[Path, Path], tmp_path: Path, command: Callable[..., str]
) -> None:
    (tmp_path / "mine.txt").write_text("40 30\n")
    shades = []
    for number, bits in enumerate(((), ("--bit-depth", "12"))):
        drawn = tmp_path / f"drawn{number}.png"
        options = ("--points", tmp_path / "mine.txt", "--radius", "16", "-o", tmp_path / "p.txt", "--draw", drawn)
        command("match", *pictures, *options, *bits)
        shades.append(cv2.imread(str(drawn)).mean())
        for path in pictures:
            cv2.imwrite(str(path), cv2.imread(str(path)).astype(np.uint16) * 16)  # 12 bits
    assert shades[1] == pytest.approx(shades[0], abs=2)


@pytest.mark.slow
def test_the_essential_matrix_is_that_of_the_given_cameras(pictures: tuple[Path, Path], tmp_path: Path) -> None:
    (tmp_path / "k.txt").write_text("90 0 48\n0 90 32\n0 0 1\n")
    options = ("--radius", "16", "--geometry", "essential", "--camera0", tmp_path / "k.txt", "--threshold", "2")
    results = [run("match", *pictures, *options, *more) for more in ((), ("--camera1", "90,90,48,32"))]
    content, again = (json.loads(result.stdout) for result in results)
    assert content == again and content["geometry"] == "essential" and content["threshold"] == 2
    assert np.shape(content["rotation"]) == (3, 3) and np.isclose(np.linalg.norm(content["translation"]), 1)


@pytest.mark.slow
def test_the_picture_shows_what_is_asked_for(pictures: tuple[Path, Path], tmp_path: Path) -> None:
    asked = ("--draw-lines", "3", "--draw-confidence", "0.5", "--draw-inliers", "--draw-range", "9")
    pixels = []
    for options in ((), asked):
        path, common = tmp_path / f"{len(options)}.png", ("--radius", "16", "--geometry", "homography")
        assert run("match", *pictures, *common, "--draw", path, *options).returncode == 0
        pixels.append(cv2.imread(str(path)))
    assert pixels[0].shape == pixels[1].shape and (pixels[0] != pixels[1]).any()


@pytest.mark.slow
def test_both_directions_are_matched_and_matches_that_do_not_lead_back_are_left_out(
    pictures: tuple[Path, Path], tmp_path: Path
) -> None:
    options = ("--radius", "16", "--reciprocal", "none", "-o")
    assert "; cycle error " in run("match", *pictures, *options, tmp_path / "m.csv", "--both").stderr
    assert run("match", *pictures, *options, tmp_path / "few.csv", "--max-cycle-error", "0.5").returncode == 0
    found, few = Matches.load(tmp_path / "m.csv"), Matches.load(tmp_path / "few.csv")
    assert found.cycle_error is not None and few.cycle_error is not None
    assert 0 < len(few) == int((found.cycle_error <= 0.5).sum()) < len(found)


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


@pytest.mark.slow
def test_masks_are_pictures_or_polygons(pictures: tuple[Path, Path], tmp_path: Path) -> None:
    mask = np.zeros((64, 96), np.uint8)
    mask[10:41, 20:61] = 255
    cv2.imwrite(str(tmp_path / "m.png"), mask)
    words = ["match", *pictures, "--radius", "16", "--device", "cpu", "-o", tmp_path / "ab.npz"]
    found = []
    for options in (["--mask0", "20,10 60,10 60,40 20,40"], ["--mask0", tmp_path / "m.png"]):
        result = run(*words, *options)
        assert result.returncode == 0 and "warning" not in result.stderr
        found.append(Matches.load(tmp_path / "ab.npz"))
    assert 5 <= len(found[0]) < 30 and torch.equal(found[0].keypoints1, found[1].keypoints1)
    x, y = found[0].keypoints0.T
    assert 20 < x.min() < x.max() < 60 and 10 < y.min() < y.max() < 40
    cv2.imwrite(str(tmp_path / "transparent.png"), np.dstack([cv2.imread(str(pictures[0])), mask]))
    assert run("match", tmp_path / "transparent.png", *words[2:], "--use-alpha").returncode == 0
    assert torch.equal(Matches.load(tmp_path / "ab.npz").keypoints1, found[0].keypoints1)
    assert "check the masks" in run(*words, "--mask0", "200,10 300,10 300,50").stderr
    for wrong in ("missing.png", "1,1 2,2"):
        refused = run(*words, "--mask1", wrong)
        assert refused.returncode == 2 and refused.stderr.count("\n") == 1 and "mask1" in refused.stderr
