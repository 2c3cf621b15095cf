"""The command as a user runs it: a process, its exit code, what it prints and what it leaves on disk."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import cv2
import numpy as np
import pytest

from deepmatching.matches import Matches


def run(*arguments: object, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "deepmatching", *map(str, arguments)],
        capture_output=True,
        text=True,
        cwd=cwd,
        check=False,
    )


@pytest.fixture
def pictures(pair: tuple[np.ndarray, np.ndarray], tmp_path: Path) -> tuple[Path, Path]:
    paths = (tmp_path / "a.png", tmp_path / "b.png")
    for path, image in zip(paths, pair, strict=True):
        cv2.imwrite(str(path), image[:, :, ::-1])
    return paths


def test_text_goes_to_standard_output(pictures: tuple[Path, Path]) -> None:
    result = run("match", *pictures, "--radius", "16", "--device", "cpu")
    assert result.returncode == 0
    lines = [line.split() for line in result.stdout.splitlines()]
    assert len(lines) > 50 and all(len(line) == 6 for line in lines)
    assert all((float(x) - 4) % 8 == 0 for x, *_ in lines)  # the original's positions: 4, 12, 20, …
    assert f"{len(lines)} matches of 96 reference points" in result.stderr


def test_the_suffix_chooses_the_format_and_a_picture_is_drawn(pictures: tuple[Path, Path], tmp_path: Path) -> None:
    for suffix in ("txt", "npz", "h5"):
        result = run("match", *pictures, "-o", tmp_path / f"m.{suffix}", "--radius", "16", "--draw", tmp_path / "m.jpg")
        assert result.returncode == 0
        assert result.stdout == ""
    loaded = [Matches.load(tmp_path / f"m.{suffix}") for suffix in ("txt", "npz", "h5")]
    assert len(loaded[0]) == len(loaded[1]) == len(loaded[2]) > 50
    assert cv2.imread(str(tmp_path / "m.jpg")) is not None


def test_options_reach_the_matcher(pictures: tuple[Path, Path]) -> None:
    result = run(
        "match",
        *pictures,
        "--model",
        "hog",
        "--radius",
        "full",
        "--levels",
        "2",
        "--downscale",
        "0",
        "--reciprocal",
        "none",
        "-v",
    )
    assert len(result.stdout.splitlines()) == 16 * 24
    assert "384 reference points, 3 levels" in result.stderr
    assert "of memory on" in result.stderr


def test_scores_and_demo_write_their_pictures(pictures: tuple[Path, Path], tmp_path: Path) -> None:
    assert run("scores", *pictures, "--at", "40,30", "-o", tmp_path / "s.png", "--radius", "16").returncode == 0
    assert cv2.imread(str(tmp_path / "s.png")) is not None
    result = run("demo", "--out", tmp_path / "demo", "--device", "cpu")
    assert result.returncode == 0, result.stderr
    assert len(Matches.load(tmp_path / "demo" / "matches.txt")) > 3000
    for name in ("matches.png", "displacement.png", "scores.png"):
        assert cv2.imread(str(tmp_path / "demo" / name)) is not None


def test_bench_prints_and_writes_its_figures(tmp_path: Path) -> None:
    result = run("bench", "--size", "128x96", "--repeats", "2", "--device", "cpu", "--json", tmp_path / "b.json")
    assert result.returncode == 0, result.stderr
    assert "time / floor" in result.stdout
    figures = json.loads((tmp_path / "b.json").read_text())
    assert figures["case"]["width"] == 128
    assert 0 < figures["best"] <= figures["time"]
    assert figures["ratio"] == figures["time"] / figures["floor"]


def test_help_and_version() -> None:
    assert "match" in run("--help").stdout
    for name in ("match", "scores", "demo", "bench"):
        assert name in run(name, "--help").stdout
    assert run("--version").stdout.startswith("deepmatching ")


BAD = [
    (["match", "{a}", "missing.png"], "missing.png"),
    (["match", "{a}", "{folder}"], "folder"),
    (["match", "{a}", "text.png"], "cannot be decoded"),
    (["match", "{a}", "cut.png"], "cut.png"),
    (["match", "{a}", "empty.png"], "empty.png"),
    (["match", "{a}", "tiny.png"], "smaller than one patch"),
    (["match", "{a}", "{b}", "--radius", "7"], "multiple of 2"),
    (["match", "{a}", "{b}", "--radius=-8"], "radius"),
    (["match", "{a}", "{b}", "--radius", "far"], "'full'"),
    (["match", "{a}", "{b}", "--levels", "40"], "levels"),
    (["match", "{a}", "{b}", "--levels", "100000000000"], "levels"),
    (["match", "{a}", "{b}", "--reciprocal", "maybe"], "bins"),
    (["match", "{a}"], "argument"),
    (["match", "{a}", "{b}", "--colour", "red"], "--colour"),
    (["sing"], "sing"),
    (["match", "{a}", "{b}", "--downscale", "5"], "downscale"),
    (["match", "{a}", "{b}", "--model", "sift"], "Unknown model"),
    (["match", "{a}", "{b}", "--device", "toaster"], "Unknown device"),
    (["match", "{a}", "{b}", "--memory", "lots"], "500MB"),
    (["match", "{a}", "{b}", "--memory", "1MB"], "smaller radius"),
    (["match", "{a}", "{b}", "-o", "out.csv"], "name it .txt"),
    (["match", "{a}", "{b}", "-o", "no/such/folder/m.txt"], "no folder"),
    (["match", "{a}", "{b}", "--draw", "m.docx"], "suffix"),
    (["match", "{a}", "{b}", "--draw", "{a}"], "would be written over"),
    (["scores", "{a}", "{b}", "--at", "4,4", "-o", "{b}"], "would be written over"),
    (["scores", "{a}", "{b}", "--at", "here", "-o", "s.png"], "--at"),
    (["scores", "{a}", "{b}", "--at", "4000,4", "-o", "s.png"], "not in the first image"),
    (["bench", "--size", "large"], "1024x436"),
    (["bench", "--size", "4x4"], "smaller than one patch"),
    (["demo", "--out", "{a}"], "folder"),
]


@pytest.mark.parametrize(("arguments", "words"), BAD, ids=[" ".join(arguments[1:]) for arguments, _ in BAD])
def test_bad_input_is_one_sentence_and_exit_code_2(
    arguments: list[str], words: str, pictures: tuple[Path, Path], tmp_path: Path
) -> None:
    (tmp_path / "text.png").write_text("this is no picture")
    (tmp_path / "cut.png").write_bytes(pictures[0].read_bytes()[:2000])
    (tmp_path / "empty.png").write_bytes(b"")
    cv2.imwrite(str(tmp_path / "tiny.png"), np.zeros((4, 4, 3), np.uint8))
    before = sorted(tmp_path.iterdir())
    names = {"a": pictures[0], "b": pictures[1], "folder": tmp_path}
    result = run(*(argument.format(**names) for argument in arguments), cwd=tmp_path)
    assert result.returncode == 2
    assert "Traceback" not in result.stderr
    assert words in result.stderr
    assert len(result.stderr.strip().splitlines()) == 1
    assert result.stdout == ""
    assert sorted(tmp_path.iterdir()) == before  # nothing was written


def shell(command: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(["bash", "-o", "pipefail", "-c", command], capture_output=True, text=True, check=False)


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a POSIX shell and /dev/full")
def test_standard_output_that_cannot_be_written(pictures: tuple[Path, Path], tmp_path: Path) -> None:
    match = f"{sys.executable} -m deepmatching match {pictures[0]} {pictures[1]} --radius 16"
    gone = shell(
        f"{match} --draw {tmp_path / 'q.png'} | true"
    )  # the reader has gone: no error, and the picture is there
    assert gone.returncode == 0, gone.stderr
    assert (tmp_path / "q.png").exists()
    for target in (">/dev/full", ">&-"):
        result = shell(f"{match} {target}")
        assert result.returncode == 2
        assert result.stderr.count("\n") == 1 and "use -o FILE" in result.stderr
    silent = shell(f"{match} 2>&-")  # no summary among the matches
    assert all(len(line.split()) == 6 for line in silent.stdout.splitlines())


def test_an_unwritable_output_is_refused_before_the_work(pictures: tuple[Path, Path], tmp_path: Path) -> None:
    (tmp_path / "m.txt").mkdir()
    result = run("match", *pictures, "-o", tmp_path / "m.txt")
    assert result.returncode == 2 and "folder" in result.stderr
