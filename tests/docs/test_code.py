"""The code in README.md and docs/: Python runs on miniatures, commands run or are at least parsed."""

import re
import shlex
import shutil
from importlib.resources import files
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest
import torch
import typer

import deepmatching as dm
from deepmatching.cli import app
from deepmatching.training import read_config
from helpers.fake_datasets import SIZE, moved, texture, write_image, write_pairs, write_sintel
from helpers.pages import ROOT, blocks, commands, run_here, write_vgg
from helpers.synthetic_pictures import draw_photo

PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]

#: Commands that are parsed, not run, and why. Their own tests run them.
ONLY_PARSED = {
    "bench": "measures time",
    "demo": "takes seconds, and its test runs it",
    "explore": "serves a page until it is stopped",
    "export-onnx": "takes seconds, and its test runs it",
    "reproduce": "needs data sets; docs/test_paper.py runs it",
    "sfm": "needs photographs of a scene",
    "synthesize": "needs photographs",
    "track": "needs a clip, and its test runs it",
    "train": "takes minutes; its settings are read",
}

#: The same for lines that contain one of these.
NEEDED = re.compile(
    r"DATA|MANIFEST|KITTI|cuda|ray|global.h5|video.mp4|s3:|parquet|arrow|--root|--method|runs/|photographs.json|…"
)

#: What makes the commands that run quick.
SMALL = {name: ["--radius", "8"] for name in ("match", "flow", "warp", "align", "bulk", "evaluate", "scores")}


def is_run(words: list[str]) -> bool:
    return words[0] not in ONLY_PARSED and not any(map(NEEDED.search, words))


ALL_COMMANDS = [(page.name, words) for page in PAGES for words in commands(page)]


@pytest.mark.parametrize(("page", "words"), ALL_COMMANDS, ids=[f"{n}: {shlex.join(w)}" for n, w in ALL_COMMANDS])
def test_every_command_of_the_pages_can_be_parsed(page: str, words: list[str]) -> None:
    group: Any = typer.main.get_command(app)
    group.commands[words[0]].make_context(words[0], words[1:])  # raises what the user would see
    settings = [word for word in words[2:] if re.match(r"[\w.]+=", word)]
    if words[0] == "train" and not any(mark in word for word in words for mark in ("…", "$", ".toml")):
        read_config(words[1], settings)


@pytest.fixture(scope="module")
def miniatures(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the files that the pages speak of, all of them small."""
    folder = tmp_path_factory.mktemp("pages")
    demo = files("deepmatching") / "data" / "demo"
    for n in (0, 1):
        image = cv2.imread(str(demo / f"bunny_{n}.jpg"))
        assert image is not None
        small = cv2.resize(image[80:464, 160:], (80, 64), interpolation=cv2.INTER_AREA)
        for name in (f"bunny_{n}.jpg", f"{'ab'[n]}.png"):
            cv2.imwrite(str(folder / name), small)
        cv2.imwrite(str(folder / f"{'ab'[n]}_mask.png"), np.tri(*small.shape[:2], 40, dtype=np.uint8))
    shutil.copy(folder / "bunny_1.jpg", folder / "turned.jpg")  # a page makes it in Python
    write_image(folder / "frame.png", texture())
    for n in range(3):
        write_image(folder / "photos" / f"{n}.png", moved(texture(), n))
        write_image(folder / "photographs" / f"{n}.png", draw_photo(n))
    (folder / "mine.txt").write_text("40 32\n10.5 20.25\n")
    (folder / "pairs.txt").write_text("0.png 1.png\n1.png 2.png\n")
    for name in ("pairs.json", "others.json", "manifest.json"):
        (folder / name).write_bytes(write_pairs(folder, count=1).read_bytes())
    write_sintel(folder / "MPI-Sintel", {"alley_1": 2})
    write_vgg(folder / "vgg16.npz")
    matcher = dm.DeepMatcher.from_pretrained(device="cpu")
    (folder / "runs" / "mine").mkdir(parents=True)
    matcher.save(folder / "runs" / "mine" / "best.safetensors")
    matcher.match(folder / "a.png", folder / "b.png").save(folder / "ab.txt")
    return folder


@pytest.mark.slow
def test_the_commands_of_the_pages_that_need_no_more_than_two_pictures_run(
    miniatures: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(miniatures)
    ran: dict[str, list[str]] = {}
    for _, words in ALL_COMMANDS:
        points = [re.sub(r"^\d+,\d+$", "40,32", word) for word in words]  # the pictures are small
        if is_run(words) and shlex.join(points) not in ran:
            if words[0] == "bulk":  # with other settings than before
                shutil.rmtree("run", ignore_errors=True)
            extra = [] if {"--radius", "--matches"} & set(words) else SMALL.get(words[0], [])
            run_here(monkeypatch, *points, *extra)
            ran[shlex.join(points)] = points
    assert {words[0] for words in ran.values()} == {
        "match",
        "flow",
        "warp",
        "align",
        "bulk",
        "evaluate",
        "scores",
        "export",
    }


#: All pages with Python but onnx.md, which test_onnx_export.py runs.
PYTHON_PAGES = [page for page in PAGES if page.name != "onnx.md" and blocks(page, "python")]


@pytest.mark.slow
@pytest.mark.parametrize("page", PYTHON_PAGES, ids=[page.name for page in PYTHON_PAGES])
def test_the_python_of_a_page_runs_from_top_to_bottom(
    page: Path, miniatures: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(miniatures)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)  # the pictures are on the CPU
    shutil.rmtree("run", ignore_errors=True)  # another page's
    pictures = [torch.from_numpy(moved(texture(), n)).permute(2, 0, 1) / 255 for n in range(2)]
    images = {f"image{n}": pictures[n][None].requires_grad_() for n in (0, 1)}
    names = {"dm": dm, "matcher": dm.DeepMatcher.from_pretrained(device="cpu"), "a": "a.png", "b": "b.png"}
    names |= {"pairs": [("a.png", "b.png")], "frames": ["a.png", "b.png"], "rows": SIZE[0], "columns": SIZE[1]} | images
    code = "\n".join(blocks(page, "python")).replace('device="cuda"', 'device="cpu"')
    exec(compile(code, str(page), "exec"), names)
