"""``deepmatching flow`` of two images, mostly called as a function."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest
import torch

from deepmatching.commands.evaluate import evaluate
from deepmatching.commands.flow import flow
from deepmatching.errors import DeepMatchingError
from deepmatching.io.flow import read_flow
from deepmatching.matcher import DeepMatcher
from deepmatching.matches import Matches
from helpers.fake_datasets import FLOW, moved, texture, write_image, write_pairs
from helpers.synthetic_pictures import draw_photo


def run(*images: Path, **options: Any) -> None:
    model = {} if "matches" in options or "model" in options else {"model": "hog"}
    radius = {} if "matches" in options or "radius" in options else {"radius": "16"}
    flow(*images, **{"device": "cpu", **model, **radius, **options})


@pytest.fixture
def pictures(tmp_path: Path) -> tuple[Path, Path]:
    paths = tmp_path / "a.png", tmp_path / "b.png"
    for times, path in enumerate(paths):
        write_image(path, moved(texture(), times))
    return paths


def inner(path: Path) -> np.ndarray:
    return read_flow(path)[16:-16, 16:-16]


def is_right(path: Path) -> bool:
    return bool(np.abs(inner(path) - FLOW).mean() < 0.3)


@pytest.mark.slow
def test_a_user_gets_the_flow_its_picture_and_its_confidence(pictures: tuple[Path, Path], tmp_path: Path) -> None:
    names = [tmp_path / name for name in ("f.flo", "p.jpg", "c.png")]
    command = ["flow", *pictures, "-o", names[0], "--draw", names[1], "--confidence", names[2], "--device", "cpu", "-v"]
    result = subprocess.run(
        [sys.executable, "-m", "deepmatching", *map(str, command)], capture_output=True, text=True, check=False
    )
    assert result.returncode == 0, result.stderr
    assert result.stdout == ""
    assert "matches used" in result.stderr and "refinement" in result.stderr and "px (median)" in result.stderr
    assert "reference points" in result.stderr
    assert is_right(names[0])
    assert cv2.imread(str(names[1])) is not None
    confidence = cv2.imread(str(names[2]), cv2.IMREAD_UNCHANGED)
    assert confidence.shape == (64, 80) and confidence.dtype == np.uint16


@pytest.mark.slow
def test_a_turned_image_has_its_flow_with_a_search_or_from_searched_matches(tmp_path: Path) -> None:
    picture = draw_photo(0, 128, 128)
    paths = tmp_path / "a.png", tmp_path / "b.png"
    for path, image in zip(paths, (picture, np.rot90(picture, -1)), strict=True):
        write_image(path, image)
    x, y = np.meshgrid(np.arange(128), np.arange(128))
    truth = np.stack([127 - y - x, x - y], axis=2)  # a quarter turn, clockwise
    DeepMatcher.from_pretrained(device="cpu", rotations=4, radius=160).match(*paths).save(tmp_path / "m.npz")
    options = {"plain": {}, "search": {"rotations": "4"}, "given": {"matches": tmp_path / "m.npz"}}
    for name, chosen in options.items():
        flow(*paths, output=tmp_path / f"{name}.flo", device="cpu", edges="gradient", **chosen)
    error = {n: np.hypot(*(read_flow(tmp_path / f"{n}.flo") - truth).transpose(2, 0, 1)).mean() for n in options}
    assert error["search"] < 0.5 and error["given"] < 0.5 and error["plain"] > 10


@pytest.mark.parametrize("suffix", ["png", "pfm", "npy"])
def test_the_suffix_chooses_the_format(pictures: tuple[Path, Path], tmp_path: Path, suffix: str) -> None:
    run(*pictures, output=tmp_path / f"f.{suffix}", edges="gradient")
    assert is_right(tmp_path / f"f.{suffix}")


@pytest.mark.parametrize("suffix", ["txt", "npz", "h5"])
def test_given_matches_are_interpolated_and_the_images_are_not_matched(
    pictures: tuple[Path, Path],
    tmp_path: Path,
    suffix: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    rows, columns = np.mgrid[4:64:8, 4:80:8]
    start = torch.from_numpy(np.stack([columns.ravel(), rows.ravel()], axis=1)).float()
    Matches(start, start + torch.tensor(FLOW), torch.ones(len(start))).save(tmp_path / f"m.{suffix}")
    monkeypatch.setattr(DeepMatcher, "_frame", lambda *_: pytest.fail("the images are matched"))
    run(*pictures, output=tmp_path / "f.flo", matches=tmp_path / f"m.{suffix}", verbose=True)
    assert is_right(tmp_path / "f.flo")
    assert "80 matches in" in capsys.readouterr().err


def test_an_edge_of_the_given_map_separates_two_motions(tmp_path: Path) -> None:
    """The images are black, so only the edge map tells where the motion on the left ends."""
    black = tmp_path / "black.png"
    write_image(black, np.zeros((64, 80, 3), np.uint8))
    lines = [f"{x} {y} {x + 6 * (x < 40)} {y}\n" for x in (4, 8, 12, 68, 72, 76) for y in range(4, 64, 8)]
    (tmp_path / "m.txt").write_text("".join(lines))
    middle = {}
    for place in (16, 56):
        edges = np.zeros((64, 80), np.uint8)
        edges[:, place : place + 8] = 255
        cv2.imwrite(str(tmp_path / "e.png"), edges)
        run(
            black,
            black,
            output=tmp_path / "f.npy",
            edges=str(tmp_path / "e.png"),
            matches=tmp_path / "m.txt",
            preset="original",
        )
        flow = read_flow(tmp_path / "f.npy")[32, :, 0]
        assert flow[5] > 3 > flow[75]
        middle[place] = flow[40]
    assert middle[56] > middle[16] + 3


def test_matches_outside_the_image_get_a_note_and_are_an_error_if_they_are_the_majority(
    pictures: tuple[Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    inside, outside = "10 10 16 6\n60 10 66 6\n10 50 16 46\n", "100 10 106 6\n10 100 16 96\n"
    (tmp_path / "m.txt").write_text(inside + outside)
    run(*pictures, output=tmp_path / "f.flo", matches=tmp_path / "m.txt", edges="gradient")
    assert "note: 2 of 5 matches start outside the image" in capsys.readouterr().err
    (tmp_path / "m.txt").write_text(inside + 2 * outside)
    with pytest.raises(DeepMatchingError, match="4 of 7"):
        run(*pictures, output=tmp_path / "g.flo", matches=tmp_path / "m.txt")
    assert not (tmp_path / "g.flo").exists()


# ---------------------------------------------------------------------- evaluation


def test_our_flow_is_evaluated_at_its_own_radius(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write_pairs(tmp_path, 1)
    evaluate(str(path), model="hog", flow=True, device="cpu", json_file=tmp_path / "e.json")
    content = json.loads((tmp_path / "e.json").read_text())
    assert content["kind"] == "flow" and content["pairs"][0]["all"]["epe"] < 5
    assert (content["settings"]["radius"], content["settings"]["preset"]) == (160, "default")
    assert "hog, radius 160" in capsys.readouterr().out
    with pytest.raises(DeepMatchingError, match="preset"):
        evaluate(
            str(path), model="hog", flow=True, preset="kitti", device="cpu", json_file=tmp_path / "e.json", resume=True
        )
