"""``deepmatching flow``, mostly without a process of its own."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest
import torch

from deepmatching.commands.evaluate import evaluate
from deepmatching.commands.flow import FormatChoice, flow
from deepmatching.commands.flow_sequence import runs
from deepmatching.errors import DeepMatchingError
from deepmatching.flow_files import read_flow, write_flow
from deepmatching.matcher import DeepMatcher
from deepmatching.matches import Matches
from fake_datasets import FLOW, moved, texture, write_image, write_pairs


def heed_interrupts() -> None:
    """For a new process: a shell that starts the tests in the background makes them, and it, ignore the interrupt."""
    signal.signal(signal.SIGINT, signal.default_int_handler)


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


@pytest.fixture
def frames(tmp_path: Path) -> Path:
    """Four frames that move by FLOW each."""
    for number in range(4):
        write_image(tmp_path / "frames" / f"frame_{number + 1:04d}.png", moved(texture(), number))
    return tmp_path / "frames"


def inner(path: Path) -> np.ndarray:
    return read_flow(path)[16:-16, 16:-16]


def is_right(path: Path) -> bool:
    return bool(np.abs(inner(path) - FLOW).mean() < 0.3)


# ---------------------------------------------------------------------- pairs


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


@pytest.mark.parametrize("suffix", ["png", "pfm", "npy"])
def test_the_suffix_chooses_the_format(pictures: tuple[Path, Path], tmp_path: Path, suffix: str) -> None:
    run(*pictures, output=tmp_path / f"f.{suffix}", edges="gradient")
    assert is_right(tmp_path / f"f.{suffix}")


@pytest.mark.parametrize("suffix", ["txt", "npz", "h5"])
def test_matches_of_a_file_are_interpolated_and_none_are_sought(
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


def test_an_edge_of_the_given_map_parts_two_motions(tmp_path: Path) -> None:
    """Black images, and matches at both sides: only the map says where the motion of the left ends."""
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


BAD: list[tuple[dict[str, Any], str]] = [
    ({}, "Nothing would be written"),
    ({"output": "f.csv"}, "names no flow format"),
    ({"output": "no/such/f.flo"}, "no folder"),
    ({"output": "f.flo", "draw": "p.docx"}, "suffix"),
    ({"output": "f.flo", "confidence": "c.jpg"}, r"name it \.npy or \.png"),
    ({"output": "f.png", "confidence": "f.png"}, "same file"),
    ({"output": "f.flo", "preset": "best"}, "no preset 'best': use default, original, sintel, kitti, middlebury"),
    ({"output": "f.flo", "edges": "wrong.npy"}, "edge map 'wrong.npy' has shape"),
    ({"output": "f.flo", "edges": "missing.png"}, "no edge map 'missing.png'"),
    ({"output": "f.flo", "structured_forest": Path("model.yml.gz")}, "no structured-forest model"),
    ({"output": "f.flo", "structured_forest": Path("m.txt"), "edges": "gradient"}, "exclude each other"),
    ({"output": "f.flo", "matches": Path("missing.txt")}, "no matches file"),
    ({"output": "f.flo", "matches": Path("m.txt")}, "fewer than four numbers"),
    ({"output": "f.flo", "matches": Path("m.csv")}, r"name it \.txt"),
    ({"output": "f.flo", "matches": Path("none.txt")}, "None of the 0 matches"),
    ({"output": "f.flo", "matches": Path("m.txt"), "radius": "80"}, "--radius has no effect"),
    ({"output": "f.flo", "matches": Path("m.txt"), "model": "hog"}, "--model has no effect"),
    ({"output": "f.flo", "radius": "far"}, "--radius"),
    ({"output": "f.flo", "model": "raft"}, "Unknown model"),
    ({"output": "f.flo", "device": "toaster"}, "Unknown device"),
    ({"out": "flows"}, "--out is for a video"),
    ({"output": "f.flo", "restart": True}, "--restart is for a video"),
]


@pytest.mark.parametrize(("options", "words"), BAD, ids=[words for _, words in BAD])
def test_bad_options_are_one_sentence_and_nothing_is_written(
    pictures: tuple[Path, Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    options: dict[str, Any],
    words: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    np.save("wrong.npy", np.zeros((10, 10), np.float32))
    (tmp_path / "m.txt").write_text("1 2 3\n")
    (tmp_path / "none.txt").write_text("# nothing\n")
    before = sorted(tmp_path.iterdir())
    paths = {n: Path(v) for n, v in options.items() if n in ("output", "draw", "confidence", "out")}
    with pytest.raises(DeepMatchingError, match=words):
        run(*pictures, **{**options, **paths})
    assert sorted(tmp_path.iterdir()) == before


def test_images_of_two_sizes_are_refused(pictures: tuple[Path, Path], tmp_path: Path) -> None:
    write_image(tmp_path / "small.png", texture()[:40])
    with pytest.raises(DeepMatchingError, match="one size, but they are 80x64 and 80x40"):
        run(pictures[0], tmp_path / "small.png", output=tmp_path / "f.flo")
    assert not (tmp_path / "f.flo").exists()


# ---------------------------------------------------------------------- sequences


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


def test_a_video_gives_the_same_and_is_drawn_as_one(frames: Path, tmp_path: Path) -> None:
    writer = cv2.VideoWriter(str(tmp_path / "v.avi"), cv2.VideoWriter.fourcc(*"MJPG"), 10, (80, 64))
    if not writer.isOpened():
        pytest.skip("this OpenCV writes no videos")
    for path in sorted(frames.iterdir()):
        writer.write(cv2.imread(str(path)))
    writer.release()
    run(tmp_path / "v.avi", out=tmp_path / "out", file_format=FormatChoice.png, draw=tmp_path / "out" / "flow.mp4")
    names = sorted(path.name for path in (tmp_path / "out").iterdir())
    assert names == ["flow.json", "flow.mp4", "frame_0001.png", "frame_0002.png", "frame_0003.png"]
    assert is_right(tmp_path / "out" / "frame_0002.png")
    video = cv2.VideoCapture(str(tmp_path / "out" / "flow.mp4"))
    assert video.isOpened() and video.get(cv2.CAP_PROP_FRAME_HEIGHT) == 128
    shown = 0
    while video.grab():
        shown += 1
    assert shown == 3


def test_an_interrupted_run_goes_on_where_it_stopped(
    frames: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from deepmatching.network import Network

    original, described, interrupt_at = Network.describe_frame, [], {3}

    def describe(self: Network, frame: torch.Tensor) -> Any:
        described.append(1)
        if len(described) in interrupt_at:
            raise KeyboardInterrupt
        return original(self, frame)

    monkeypatch.setattr(Network, "describe_frame", describe)
    with pytest.raises(KeyboardInterrupt):
        run(frames, out=tmp_path / "out")
    assert "1 of 3 flows are finished" in capsys.readouterr().err
    assert [path.name for path in (tmp_path / "out").glob("*.flo")] == ["frame_0001.flo"]
    first = (tmp_path / "out" / "frame_0001.flo").stat().st_mtime_ns
    described.clear()
    interrupt_at.clear()
    run(frames, out=tmp_path / "out")
    assert len(described) == 3  # frames 2, 3 and 4, each once
    assert "1 of 3 flows were there already" in capsys.readouterr().err
    assert (tmp_path / "out" / "frame_0001.flo").stat().st_mtime_ns == first
    run(frames, out=tmp_path / "whole")
    for number in (1, 2, 3):
        name = f"frame_000{number}.flo"
        assert (tmp_path / "out" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()
    described.clear()
    run(frames, out=tmp_path / "out")
    assert not described  # nothing is left to do
    run(frames, out=tmp_path / "out", restart=True)
    assert len(described) == 4


def test_settings_and_sources_do_not_mix(frames: Path, tmp_path: Path) -> None:
    run(frames, out=tmp_path / "out", edges="gradient")
    before = {path: path.read_bytes() for path in (tmp_path / "out").iterdir()}
    (tmp_path / "other").mkdir()
    for path in frames.iterdir():
        (tmp_path / "other" / path.name).write_bytes(path.read_bytes())
    changes: list[tuple[Path, dict[str, Any], str]] = [
        (frames, {"radius": "24"}, "radius 16, and now it is 24"),
        (frames, {"preset": "sintel"}, "preset 'default'"),
        (frames, {"edges": "network"}, "edges 'gradient'"),
        (frames, {"file_format": FormatChoice.npy}, "suffix"),
        (tmp_path / "other", {}, "source"),
    ]
    for source, options, words in changes:
        with pytest.raises(DeepMatchingError, match=words):
            run(source, out=tmp_path / "out", **{"edges": "gradient", **options})
    assert {path: path.read_bytes() for path in (tmp_path / "out").iterdir()} == before


def test_a_frame_that_cannot_be_read_is_named_and_those_before_are_kept(frames: Path, tmp_path: Path) -> None:
    (frames / "frame_0004.png").write_bytes(b"no picture")
    with pytest.raises(DeepMatchingError, match=r"frame_0004\.png"):
        run(frames, out=tmp_path / "out")
    assert len(list((tmp_path / "out").glob("*.flo"))) == 2
    write_image(frames / "frame_0004.png", texture()[:40])
    with pytest.raises(DeepMatchingError, match=r"Frame 'frame_0004'.* 80x40 pixels, but the one before is 80x64"):
        run(frames, out=tmp_path / "out")


@pytest.mark.parametrize(
    ("source", "options", "words"),
    [
        ("frames", {}, "--out DIR"),
        ("frames", {"output": Path("f.flo")}, "-o is for a pair"),
        ("frames", {"out": Path("out"), "matches": Path("m.txt")}, "--matches is for a pair"),
        ("frames", {"out": Path("out"), "edges": "map.png"}, "One edge map cannot serve all frames"),
        ("frames", {"out": Path("frames")}, "the frames themselves"),
        ("frames", {"out": Path("truth")}, "another origin"),
        ("frames", {"out": Path("out"), "draw": Path("p.png")}, r"name an \.mp4 or a folder"),
        ("frames/frame_0001.png", {"out": Path("out")}, "one picture"),
        ("empty", {"out": Path("out")}, "holds no pictures"),
        ("single", {"out": Path("out")}, "holds 1 frame"),
        ("missing.mp4", {"out": Path("out")}, "no video or folder"),
        ("video.mp4", {"out": Path("out")}, "cannot be opened as a video"),
    ],
)
def test_bad_sequences_are_one_sentence_and_nothing_is_written(
    frames: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, source: str, options: dict[str, Any], words: str
) -> None:
    monkeypatch.chdir(tmp_path)
    for folder in ("empty", "single", "truth"):
        Path(folder).mkdir()
    write_image(Path("single/a.png"), texture())
    write_flow("truth/frame_0002.flo", np.zeros((4, 4, 2), np.float32))
    Path("video.mp4").write_bytes(b"no video")
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(DeepMatchingError, match=words):
        run(Path(source), **options)
    assert sorted(path for path in tmp_path.rglob("*") if path != tmp_path / "out") == before


@pytest.mark.skipif(sys.platform == "win32", reason="sends a POSIX signal")
def test_the_interrupt_key_ends_with_130_and_leaves_finished_files_only(tmp_path: Path) -> None:
    for number in range(60):
        write_image(tmp_path / "frames" / f"{number}.png", moved(texture(), number))
    out = tmp_path / "out"
    command = [sys.executable, "-m", "deepmatching", "flow", tmp_path / "frames", "--out", out, "--radius", "16"]
    command = [*map(str, command), "--device", "cpu"]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, preexec_fn=heed_interrupts)
    while not (out / "2.flo").exists() and process.poll() is None:
        time.sleep(0.02)
    process.send_signal(signal.SIGINT)
    errors = process.communicate(timeout=300)[1]
    assert process.returncode == 130, errors
    assert "Traceback" not in errors and "flows are finished" in errors
    finished = json.loads((out / "flow.json").read_text())["finished"]
    found = sorted(path.name for path in out.iterdir())
    assert set(found) - {"flow.json"} >= {f"{name}.flo" for name in finished} and len(finished) < 59
    for path in out.glob("*.flo"):
        assert read_flow(path).shape == (64, 80, 2)
    assert not [name for name in found if name.startswith(".")]


def test_runs_are_what_is_missing() -> None:
    assert list(runs([])) == []
    assert list(runs([4])) == [(4, 5)]
    assert list(runs([0, 1, 2, 5, 6, 9])) == [(0, 3), (5, 7), (9, 10)]


# ---------------------------------------------------------------------- evaluation


def test_our_flow_is_evaluated_at_its_own_radius(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write_pairs(tmp_path, 1)
    evaluate(str(path), model="hog", flow=True, device="cpu", json_file=tmp_path / "e.json")
    content = json.loads((tmp_path / "e.json").read_text())
    assert content["kind"] == "flow" and content["pairs"][0]["all"]["epe"] < 5
    assert (content["settings"]["radius"], content["settings"]["preset"]) == (160, "default")
    assert "hog, radius 160" in capsys.readouterr().out
    with pytest.raises(DeepMatchingError, match="its preset is"):
        evaluate(
            str(path), model="hog", flow=True, preset="kitti", device="cpu", json_file=tmp_path / "e.json", resume=True
        )
    with pytest.raises(DeepMatchingError, match="--preset is for the flow of our own models"):
        evaluate(str(path), method="dis", flow=True, preset="kitti", device="cpu")
    with pytest.raises(DeepMatchingError, match="no preset 'best'"):
        evaluate(str(path), model="hog", flow=True, preset="best", device="cpu")
