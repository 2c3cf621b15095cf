"""``deepmatching track`` as a user runs it."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from deepmatching.io.video import open_frames, write_video
from helpers.fake_datasets import texture, write_image

Command = Callable[..., str]
CLIP = [texture((80, 120))[8 - 2 * t : 72 - 2 * t, 4 * t : 96 + 4 * t] for t in range(4)]  #: moves by (−4, 2) a frame
HEAD = "frame,point,x,y,confidence,visible"


@pytest.fixture
def points(tmp_path: Path) -> Path:
    (tmp_path / "mine.txt").write_text("30.5 30\n44 40.25\n")
    return tmp_path / "mine.txt"


def rows(path: Path) -> np.ndarray:
    head, *lines = path.read_text().splitlines()
    assert head == HEAD
    return np.array([line.split(",") for line in lines], float)


def test_points_go_through_a_folder_into_a_table_and_a_video(command: Command, points: Path, tmp_path: Path) -> None:
    for number, frame in enumerate(CLIP):
        write_image(tmp_path / "frames" / f"{number}.png", frame)
    out, video = tmp_path / "t.csv", tmp_path / "t.avi"
    errors = command("track", tmp_path / "frames", "--points", points, "--radius", "16", "-o", out, "--draw", video)
    assert "2 points in 4 frames, 2 of them visible in the last one" in errors
    found = rows(out).reshape(4, 2, 6)
    assert (found[:, :, 0] == np.arange(4)[:, None]).all() and (found[:, :, 1] == [0, 1]).all()
    moves = np.stack([found[:, n, 2:4] - found[0, n, 2:4] for n in (0, 1)])
    assert np.abs(moves - np.arange(4)[:, None] * (-4, 2)).max() < 0.5
    assert (found[:, :, 5] == 1).all()
    assert len(open_frames(video)) == 4


def test_the_bits_in_use_of_frames_are_heeded(command: Command, points: Path, tmp_path: Path) -> None:
    for number, frame in enumerate(CLIP):
        write_image(tmp_path / "frames" / f"{number}.png", frame.astype(np.uint16) * 16)
    frames, out = tmp_path / "frames", tmp_path / "t.csv"
    assert "11 bits" in command("track", frames, "--points", points, "--bit-depth", "11", "-o", out, code=2)
    assert not out.exists()


def test_a_video_has_tracks_too_and_an_error_leaves_the_old_file(
    command: Command, points: Path, tmp_path: Path
) -> None:
    write_video(tmp_path / "clip.avi", CLIP)
    out = tmp_path / "t.csv"
    arguments = ("track", tmp_path / "clip.avi", "--points", points, "--radius", "16", "-o", out)
    command(*arguments)
    before = out.read_bytes()
    assert rows(out).shape == (8, 6)
    points.write_text("4000 30\n")
    assert "(4000, 30) is not in the first image" in command(*arguments, code=2)
    assert out.read_bytes() == before
