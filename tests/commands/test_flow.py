"""``deepmatching flow`` of two images, of a video and of a folder, mostly called as a function."""

import json
import os
import re
import shutil
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest
import torch

from deepmatching.commands import messages
from deepmatching.commands.evaluate import evaluate
from deepmatching.commands.flow import flow
from deepmatching.errors import DeepMatchingError
from deepmatching.io import files
from deepmatching.io.flow import read_flow
from deepmatching.io.store import lock_folder
from deepmatching.io.video import write_video
from deepmatching.matcher import DeepMatcher
from deepmatching.matches import Matches
from deepmatching.network.network import Network
from helpers import processes
from helpers.fake_datasets import FLOW, moved, texture, write_image, write_pairs
from helpers.synthetic_pictures import draw_photo


def run(*images: Path, **options: Any) -> None:
    ours = {} if "matches" in options else {"model": "hog", "radius": "16"}
    flow(*images, **{"device": "cpu", **ours, **options})


@pytest.fixture
def pictures(tmp_path: Path) -> tuple[Path, Path]:
    paths = tmp_path / "a.png", tmp_path / "b.png"
    for times, path in enumerate(paths):
        write_image(path, moved(texture(), times))
    return paths


@pytest.fixture
def frames(tmp_path: Path) -> Path:
    """Four frames that move by FLOW each."""
    for number in range(4):
        write_image(tmp_path / "frames" / f"frame_{number + 1:04d}.png", moved(texture(), number))
    return tmp_path / "frames"


def is_right(path: Path) -> bool:
    return bool(np.abs(read_flow(path)[16:-16, 16:-16] - FLOW).mean() < 0.3)


@pytest.mark.slow
def test_a_user_gets_the_flow_its_picture_and_its_confidence(pictures: tuple[Path, Path], tmp_path: Path) -> None:
    names = [tmp_path / name for name in ("f.flo", "p.jpg", "c.png")]
    command = ["flow", *pictures, "-o", names[0], "--draw", names[1], "--confidence", names[2], "--device", "cpu", "-v"]
    result = processes.run(*command)
    assert (result.returncode, result.stdout) == (0, ""), result.stderr
    for words in ("matches used", "refinement", "px (median)", "reference points"):
        assert words in result.stderr
    assert is_right(names[0])
    assert cv2.imread(str(names[1])) is not None
    confidence = cv2.imread(str(names[2]), cv2.IMREAD_UNCHANGED)
    assert confidence.shape == (64, 80) and confidence.dtype == np.uint16


@pytest.mark.slow
def test_a_turned_image_has_its_flow_by_a_search_or_from_searched_matches(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    picture = draw_photo(0, 128, 128)
    paths = tmp_path / "a.png", tmp_path / "b.png"
    for path, image in zip(paths, (picture, np.rot90(picture, -1)), strict=True):
        write_image(path, image)
    x, y = np.meshgrid(np.arange(128), np.arange(128))
    truth = np.stack([127 - y - x, x - y], axis=2)  # a quarter turn, clockwise
    DeepMatcher.from_pretrained(device="cpu", rotations=4, radius=160).match(*paths).save(tmp_path / "m.npz")
    options = {
        "plain": {"auto": False},
        "automatic": {},
        "search": {"rotations": "4"},
        "given": {"matches": tmp_path / "m.npz"},
    }
    for name, chosen in options.items():
        flow(*paths, output=tmp_path / f"{name}.flo", device="cpu", edges="gradient", **chosen)
    error = {n: np.hypot(*(read_flow(tmp_path / f"{n}.flo") - truth).transpose(2, 0, 1)).mean() for n in options}
    assert max(error[name] for name in ("automatic", "search", "given")) < 0.5 < 10 < error["plain"]
    assert capsys.readouterr().err.count("--no-auto forbids it") == 1


@pytest.mark.slow
def test_a_warning_advises_nothing_that_was_tried_already(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], rng: np.random.Generator
) -> None:
    paths = tmp_path / "a.png", tmp_path / "b.png"
    for path, image in zip(paths, (texture(), rng.integers(0, 256, (64, 80, 3))), strict=True):
        write_image(path, image.astype(np.uint8))
    for options, is_advised in (({}, False), ({"radius": "80"}, True), ({"auto": False}, True)):
        flow(*paths, output=tmp_path / "f.flo", device="cpu", **options)
        said = capsys.readouterr().err
        assert "probably wrong" in said and ("try a larger --radius; --search finds" in said) == is_advised


@pytest.mark.parametrize("suffix", ["png", "pfm", "npy"])
def test_the_suffix_chooses_the_format(pictures: tuple[Path, Path], tmp_path: Path, suffix: str) -> None:
    run(*pictures, output=tmp_path / f"f.{suffix}", edges="gradient")
    assert is_right(tmp_path / f"f.{suffix}")


@pytest.mark.parametrize("suffix", ["txt", "csv", "json", "npz", "h5"])
def test_given_matches_are_interpolated_and_the_images_are_not_matched(
    pictures: tuple[Path, Path], tmp_path: Path, suffix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows, columns = np.mgrid[4:64:8, 4:80:8]
    start = torch.from_numpy(np.stack([columns.ravel(), rows.ravel()], axis=1)).float().repeat(2, 1)
    follows = torch.arange(len(start)) < len(start) / 2  # the confidence says which
    end, scores = start + follows[:, None] * torch.tensor(FLOW), torch.ones(len(start))
    Matches(start, end, scores, confidence=follows.float()).save(tmp_path / f"m.{suffix}", confidence=True)
    monkeypatch.setattr(DeepMatcher, "_frame", lambda *_: pytest.fail("the images are matched"))
    run(*pictures, output=tmp_path / "f.flo", matches=tmp_path / f"m.{suffix}", min_confidence=0.5)
    assert is_right(tmp_path / "f.flo")


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
        given = {"edges": str(tmp_path / "e.png"), "matches": tmp_path / "m.txt", "preset": "original"}
        run(black, black, output=tmp_path / "f.npy", **given)
        flow = read_flow(tmp_path / "f.npy")[32, :, 0]
        assert flow[5] > 3 > flow[75]
        middle[place] = flow[40]
    assert middle[56] > middle[16] + 3


def test_matches_outside_the_image_get_a_note_and_are_an_error_if_they_are_the_majority(
    pictures: tuple[Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    inside, outside = "10 10 16 6\n60 10 66 6\n10 50 16 46\n", "100 10 106 6\n10 100 16 96\n"
    (tmp_path / "m.txt").write_text(inside + outside)
    run(*pictures, output=tmp_path / "f.flo", matches=tmp_path / "m.txt", edges="gradient", verbose=True)
    said = capsys.readouterr().err
    assert "5 matches in" in said and "note: 2 of 5 matches start outside the image" in said
    (tmp_path / "m.txt").write_text(inside + 2 * outside)
    with pytest.raises(DeepMatchingError, match="4 of 7"):
        run(*pictures, output=tmp_path / "g.flo", matches=tmp_path / "m.txt")
    assert not (tmp_path / "g.flo").exists()


def test_our_flow_is_evaluated_at_its_own_radius(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path, options = write_pairs(tmp_path, 1), {"model": "hog", "flow": True, "device": "cpu"}
    evaluate(str(path), json_file=tmp_path / "e.json", **options)
    content = json.loads((tmp_path / "e.json").read_text())
    assert content["kind"] == "flow" and content["pairs"][0]["all"]["epe"] < 5
    assert (content["settings"]["radius"], content["settings"]["preset"]) == (160, "default")
    assert "hog, radius 160" in capsys.readouterr().out
    with pytest.raises(DeepMatchingError, match="preset"):
        evaluate(str(path), preset="kitti", json_file=tmp_path / "e.json", resume=True, **options)


# ---------------------------------------------------------------------- frames


def test_a_folder_gives_a_flow_for_each_frame_but_the_last(
    frames: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run(frames, out=tmp_path / "out", draw=tmp_path / "pictures")
    names = sorted(path.name for path in (tmp_path / "out").iterdir())
    assert names == ["flow.json", "frame_0001.flo", "frame_0002.flo", "frame_0003.flo"]
    assert all(is_right(path) for path in (tmp_path / "out").glob("*.flo"))
    assert "wrote 3 flows" in capsys.readouterr().err
    pictures = sorted((tmp_path / "pictures").iterdir())
    assert [path.name for path in pictures] == ["frame_0001.png", "frame_0002.png", "frame_0003.png"]
    assert cv2.imread(str(pictures[0])).shape == (128, 80, 3)
    settings = json.loads((tmp_path / "out" / "flow.json").read_text())["settings"]
    assert (settings["model"], settings["radius"], settings["preset"]) == ("hog", 16, "default")
    run(frames, out=tmp_path / "out", draw=tmp_path / "pictures")  # which are ours
    shutil.copytree(frames, tmp_path / "mine")
    with pytest.raises(DeepMatchingError, match=r"frame_0001\.png' exists"):
        run(frames, out=tmp_path / "out", draw=tmp_path / "mine")


def test_the_confidence_of_each_flow_goes_to_a_folder_of_its_own(frames: Path, tmp_path: Path) -> None:
    run(frames, out=tmp_path / "out", confidence=tmp_path / "certainty", edges="gradient")
    names = sorted(path.name for path in (tmp_path / "certainty").iterdir())
    assert names == ["frame_0001.png", "frame_0002.png", "frame_0003.png"]
    map_ = cv2.imread(str(tmp_path / "certainty" / names[0]), cv2.IMREAD_UNCHANGED)
    assert map_.shape == (64, 80) and map_.dtype == np.uint16 and map_.mean() > 32768
    (tmp_path / "out" / "frame_0002.flo").unlink()
    (tmp_path / "certainty" / "frame_0002.png").unlink()
    run(frames, out=tmp_path / "out", confidence=tmp_path / "certainty", edges="gradient")  # continues
    assert (tmp_path / "certainty" / "frame_0002.png").exists()
    with pytest.raises(DeepMatchingError, match="certainty"):
        run(frames, out=tmp_path / "out", edges="gradient")
    with pytest.raises(DeepMatchingError, match=r"frame_0001\.png"):
        run(frames, out=tmp_path / "new", confidence=tmp_path / "certainty")


def test_flows_that_are_probably_wrong_are_named(
    frames: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_image(frames / "frame_0004.png", texture(seed=9))
    run(frames, out=tmp_path / "out", edges="gradient")
    assert "warning: 1 of these flows are probably wrong (frame_0003)" in capsys.readouterr().err


def test_a_video_gives_the_same_and_is_drawn_as_one(frames: Path, tmp_path: Path) -> None:
    try:  # by our writer: FFmpeg stays as talkative in a process as it was when it was loaded
        write_video(tmp_path / "v.avi", (cv2.imread(str(path))[:, :, ::-1] for path in sorted(frames.iterdir())))
    except DeepMatchingError:
        pytest.skip("this OpenCV writes no videos")
    run(tmp_path / "v.avi", out=tmp_path / "out", file_format="png", draw=tmp_path / "out" / "flow.mp4")
    names = sorted(path.name for path in (tmp_path / "out").iterdir())
    assert names == ["flow.json", "flow.mp4", "frame_0001.png", "frame_0002.png", "frame_0003.png"]
    assert is_right(tmp_path / "out" / "frame_0002.png")
    video = cv2.VideoCapture(str(tmp_path / "out" / "flow.mp4"))
    assert video.isOpened() and video.get(cv2.CAP_PROP_FRAME_HEIGHT) == 128
    assert [video.grab() for _ in range(4)] == [True, True, True, False]


def test_an_interrupted_run_continues_where_it_stopped(
    frames: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    original, described, interrupt_at = Network.describe_image, [], {3}

    def describe(self: Network, frame: torch.Tensor, used: tuple[int, int]) -> Any:
        described.append(1)
        if len(described) in interrupt_at:
            raise KeyboardInterrupt
        return original(self, frame, used)

    monkeypatch.setattr(Network, "describe_image", describe)
    with pytest.raises(KeyboardInterrupt):
        run(frames, out=tmp_path / "out")
    assert re.search("1 of 3 flows are finished in .*: run the same command to continue", capsys.readouterr().err)
    assert [path.name for path in (tmp_path / "out").glob("*.flo")] == ["frame_0001.flo"]
    first = (tmp_path / "out" / "frame_0001.flo").stat().st_mtime_ns
    described.clear()
    interrupt_at.clear()
    run(frames, out=tmp_path / "out")
    assert len(described) == 3  # frames 2, 3 and 4, each once
    assert "1 of 3 flows were finished before" in capsys.readouterr().err
    assert (tmp_path / "out" / "frame_0001.flo").stat().st_mtime_ns == first
    run(frames, out=tmp_path / "whole")
    for number in (1, 2, 3):
        name = f"frame_000{number}.flo"
        assert (tmp_path / "out" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()
    described.clear()
    run(frames, out=tmp_path / "out")
    assert not described  # all flows are finished
    run(frames, out=tmp_path / "out", restart=True)
    assert len(described) == 4


def test_the_bits_in_use_of_frames_are_heeded(tmp_path: Path) -> None:
    for number in range(2):
        write_image(tmp_path / "frames" / f"{number}.png", moved(texture(), number).astype(np.uint16) * 16)
    for result in ({"out": tmp_path / "out"}, {"output": tmp_path / "f.avi"}):
        with pytest.raises(DeepMatchingError, match="11 bits"):
            run(tmp_path / "frames", bit_depth=11, edges="gradient", **result)


def test_settings_and_sources_do_not_mix(frames: Path, tmp_path: Path) -> None:
    run(frames, out=tmp_path / "out", edges="gradient")
    before = {path: path.read_bytes() for path in (tmp_path / "out").iterdir()}
    shutil.copytree(frames, tmp_path / "other")
    changes: list[tuple[Path, dict[str, Any], str]] = [
        (frames, {"radius": "24"}, "radius 16, and now it is 24"),
        (frames, {"preset": "sintel"}, "preset"),
        (frames, {"edges": "network"}, "edges"),
        (frames, {"file_format": "npy"}, "suffix"),
        (tmp_path / "other", {}, "source"),
    ]
    for source, options, words in changes:
        with pytest.raises(DeepMatchingError, match=words):
            run(source, out=tmp_path / "out", **{"edges": "gradient", **options})
    assert {path: path.read_bytes() for path in (tmp_path / "out").iterdir()} == before


def test_flows_of_frames_that_have_changed_are_computed_again(
    frames: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"

    def again() -> tuple[set[str], str]:
        """Return which flows a run writes, and what it prints."""
        for path in out.glob("*.flo"):
            os.utime(path, (0, 0))
        capsys.readouterr()
        run(frames, out=out, edges="gradient")
        return {path.stem[-4:] for path in out.glob("*.flo") if path.stat().st_mtime_ns}, capsys.readouterr().err

    assert again()[0] == {"0001", "0002", "0003"}
    assert again()[0] == set()
    write_image(frames / "frame_0002.png", 255 - moved(texture(), 1))
    os.utime(frames / "frame_0002.png", (1, 1))  # not the time of the first version, however coarse the clock
    written, printed = again()
    assert written == {"0001", "0002"} and "2 of 3 flows are computed again" in printed
    write_image(frames / "frame_0002.png", moved(texture(), 1))
    os.rename(frames / "frame_0002.png", frames / "frame_0001b.png")
    written, printed = again()
    assert written == {"0001", "001b"} and "1 of 3 flows are computed again" in printed
    assert "flows of frames that are gone: frame_0002.flo" in printed
    assert all(is_right(out / f"{name}.flo") for name in ("frame_0001", "frame_0001b", "frame_0003"))


def test_a_frame_that_cannot_be_read_is_named_and_those_before_are_kept(
    frames: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (frames / "frame_0004.png").write_bytes(b"no picture")
    advice = r"2 of 3 flows are finished in .*: replace or remove that frame, then run the same command to continue\.$"
    with pytest.raises(DeepMatchingError, match=r"frame_0004\.png.* " + advice):
        run(frames, out=tmp_path / "out")
    assert len(list((tmp_path / "out").glob("*.flo"))) == 2
    write_image(frames / "frame_0004.png", texture()[:40])
    words = r"Frame 'frame_0004'.* 80x40 pixels, but the one before is 80x64.* "
    with pytest.raises(DeepMatchingError, match=words + advice):
        run(frames, out=tmp_path / "out")
    assert "to continue" not in capsys.readouterr().err
    (frames / "frame_0004.png").unlink()
    run(frames, out=tmp_path / "out")
    assert "2 of 2 flows were finished before" in capsys.readouterr().err


def test_an_error_that_no_frame_caused_does_not_blame_one(
    frames: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: Any) -> None:
        raise DeepMatchingError("No space is left.")

    monkeypatch.setattr("deepmatching.flow.sequence.write_flow", full)
    words = r"No space is left\. 0 of 3 flows are finished in .*: fix that, then run the same command to continue"
    with pytest.raises(DeepMatchingError, match=words):
        run(frames, out=tmp_path / "out", edges="gradient")


def test_without_a_terminal_lines_report_the_progress(
    frames: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(messages, "LINES_EVERY", float("inf"))
    run(frames, out=tmp_path / "short", edges="gradient")
    assert "of 3" not in capsys.readouterr().err
    monkeypatch.setattr(messages, "LINES_EVERY", -1.0)
    run(frames, out=tmp_path / "long", edges="gradient")
    lines = capsys.readouterr().err.splitlines()
    assert [line.split(",")[0] for line in lines[:2]] == ["flows: 1 of 3", "flows: 2 of 3"]
    assert all(line.endswith(" left") for line in lines[:2]) and lines[2].startswith("wrote 3 flows")


def test_the_interrupt_key_while_a_flow_is_written_leaves_finished_files_only(
    frames: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    replace, out = files._replace, tmp_path / "out"

    def interrupted(source: Path, target: Path) -> None:
        if target.name == "frame_0003.flo":
            raise KeyboardInterrupt
        replace(source, target)

    monkeypatch.setattr(files, "_replace", interrupted)
    with pytest.raises(KeyboardInterrupt):
        run(frames, out=out, edges="gradient")
    assert sorted(path.name for path in out.iterdir()) == ["flow.json", "frame_0001.flo", "frame_0002.flo"]
    assert list(json.loads((out / "flow.json").read_text())["finished"]) == ["frame_0001", "frame_0002"]
    monkeypatch.undo()
    run(frames, out=out, edges="gradient")
    assert all(is_right(out / f"frame_000{number}.flo") for number in (1, 2, 3))


def test_a_folder_that_another_process_fills_is_left_alone(frames: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    run(frames, out=out, edges="gradient")
    before = {path.name: path.read_bytes() for path in out.iterdir()}
    for options in ({"edges": "network", "restart": True}, {"edges": "gradient"}):
        with lock_folder(out), pytest.raises(DeepMatchingError, match=r"'.*out': .* another --out\."):
            run(frames, out=out, **options)
    assert {path.name: path.read_bytes() for path in out.iterdir()} == before


def test_what_a_killed_run_left_half_written_is_removed(frames: Path, tmp_path: Path) -> None:
    (out := tmp_path / "out").mkdir()
    half_written = files._create_temporary(out / "frame_0001.flo")[0]
    run(frames, out=out, edges="gradient")
    assert not half_written.exists()
    assert sorted(path.name for path in out.iterdir())[0] == "flow.json"
