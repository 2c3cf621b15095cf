import os
from pathlib import Path

import cv2
import numpy as np
import pytest
import torch

from deepmatching.errors import DeepMatchingError
from deepmatching.io.files import check_replaceable
from deepmatching.io.video import BadFrame, natural_order, open_frames, write_video


def write_frames(folder: Path, names: list[str], size: tuple[int, int] = (16, 24)) -> None:
    """Grey pictures; the value of a frame is its place among the names."""
    folder.mkdir(parents=True, exist_ok=True)
    for place, name in enumerate(names):
        assert cv2.imwrite(str(folder / name), np.full((*size, 3), place, np.uint8))


def write_grey_video(path: Path, count: int) -> None:
    """Frames whose brightness is 20 times their number, 10 per second."""
    try:
        write_video(path, (np.full((48, 64, 3), 20 * number, np.uint8) for number in range(count)), 10)
    except DeepMatchingError:
        pytest.skip("this OpenCV cannot write videos")


def test_frames_of_a_folder_come_in_natural_order_and_have_the_names_of_their_files(tmp_path: Path) -> None:
    write_frames(tmp_path, ["f_1.png", "f_2.png", "f_9.png", "f_10.png", "f_100.png"])
    (tmp_path / "notes.txt").write_text("no frame")
    (tmp_path / ".hidden.png").write_bytes(b"no frame")
    (tmp_path / "folder.png").mkdir()
    frames = open_frames(tmp_path)
    assert frames.names == ["f_1", "f_2", "f_9", "f_10", "f_100"]
    assert [round(255 * frame[0, 0, 0].item()) for frame in frames.between(1, 4)] == [1, 2, 3]
    assert frames.rate is None


def test_the_origins_of_a_pair_change_only_with_its_own_files(tmp_path: Path) -> None:
    write_frames(tmp_path, ["1.png", "2.png", "3.png"])
    before = open_frames(tmp_path).origins
    assert list(before) == ["1", "2"] and before == open_frames(tmp_path).origins
    os.utime(tmp_path / "3.png", (1, 1))
    changed = open_frames(tmp_path).origins
    assert changed["1"] == before["1"] and changed["2"] != before["2"]
    write_frames(tmp_path, ["1b.png"])
    inserted = open_frames(tmp_path).origins
    assert inserted["1"] != changed["1"] and inserted["2"] == changed["2"]


def test_natural_order_is_by_number_and_then_by_letters() -> None:
    names = ["9", "10", "A1", "a2", "a2b", "a10", "b", "²"]
    assert sorted(set(names), key=natural_order) == names


def test_a_video_gives_the_frames_that_a_player_shows(tmp_path: Path) -> None:
    write_grey_video(tmp_path / "v.avi", 5)
    frames = open_frames(tmp_path / "v.avi")
    assert frames.names == [f"frame_000{number}" for number in range(1, 6)]
    assert frames.rate == pytest.approx(10)
    origins = frames.origins
    assert list(origins) == frames.names[:-1] and origins["frame_0001"] == origins["frame_0004"]
    assert origins == open_frames(tmp_path / "v.avi").origins
    os.utime(tmp_path / "v.avi", (1, 1))
    assert open_frames(tmp_path / "v.avi").origins["frame_0001"] != origins["frame_0001"]
    found = list(frames.between(2, 5))
    assert found[0].shape == (3, 48, 64) and found[0].dtype == torch.float32
    for number, frame in enumerate(found, 2):
        assert 255 * frame.mean().item() == pytest.approx(20 * number, abs=4)


@pytest.mark.parametrize("name", ["v.avi", "v.mp4"])
def test_a_video_may_be_replaced_if_it_is_ours(tmp_path: Path, name: str) -> None:
    write_grey_video(tmp_path / name, 3)
    check_replaceable(tmp_path / name)
    assert len(list(open_frames(tmp_path / name).between(0, 3))) == 3
    (tmp_path / name).write_bytes((tmp_path / name).read_bytes()[:-20])  # as other programs write it
    assert len(open_frames(tmp_path / name)) == 3
    with pytest.raises(DeepMatchingError, match=name):
        check_replaceable(tmp_path / name)


def test_a_frame_that_cannot_be_read_or_has_another_size_is_named(tmp_path: Path) -> None:
    write_frames(tmp_path, ["1.png", "2.png", "3.png"])
    (tmp_path / "2.png").write_bytes(b"no picture")
    frames = open_frames(tmp_path)
    with pytest.raises(BadFrame, match=r"2\.png"):
        list(frames.between(0, 3))
    assert len(list(frames.between(2, 3))) == 1  # the others can be read
    write_frames(tmp_path, ["1.png", "2.png"])
    assert cv2.imwrite(str(tmp_path / "3.png"), np.zeros((8, 8, 3), np.uint8))
    with pytest.raises(BadFrame, match=r"Frame '3'.*8x8 pixels, but the one before is 24x16"):
        list(open_frames(tmp_path).between(0, 3))


def test_the_white_of_frames_with_16_bits_follows_from_their_bits_in_use(tmp_path: Path) -> None:
    for name in ("1.png", "2.png"):
        assert cv2.imwrite(str(tmp_path / name), np.full((8, 8), 4095, np.uint16))
    for bits, shade in ((12, 1.0), (13, 4095 / 8191), (None, 4095 / 65535)):
        shades = [frame.mean().item() for frame in open_frames(tmp_path, bits).between(0, 2)]
        assert shades == [pytest.approx(shade)] * 2


@pytest.mark.parametrize(
    ("names", "path", "words"),
    [
        ([], "frames", "holds no pictures"),
        (["a.png"], "frames", "holds 1 frame"),
        (["a.png", "a.jpg"], "frames", "two frames with the same name"),
        (["a.png", "b.png"], "frames/a.png", "a single picture"),
        ([], "missing", "no video or folder"),
        ([], "no.mp4", "cannot be opened as a video"),
    ],
)
def test_a_source_without_two_frames_is_refused(tmp_path: Path, names: list[str], path: str, words: str) -> None:
    write_frames(tmp_path / "frames", names)
    (tmp_path / "no.mp4").write_bytes(b"no video at all")
    with pytest.raises(DeepMatchingError, match=words):
        open_frames(tmp_path / path)
