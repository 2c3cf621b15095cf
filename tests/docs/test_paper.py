"""The commands of docs/paper.md, on miniatures of the published data sets."""

import re
from importlib.resources import files
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch

from deepmatching.data.datasets.published import MINI_TRAIN, MINI_VAL
from deepmatching.evaluation.paper_tables import NOT_OURS, PAPER
from deepmatching.models import load_network
from helpers.fake_datasets import write_chairs, write_kitti, write_sintel
from helpers.pages import ROOT, commands, run_here, write_vgg

COMMANDS = commands(ROOT / "docs" / "paper.md")


@pytest.fixture
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the folders and files that the page asks for, with edges that take no time."""
    write_sintel(tmp_path / "DATA" / "sintel", dict.fromkeys((*MINI_TRAIN, *MINI_VAL), 2))
    write_kitti(tmp_path / "DATA" / "kitti2012", count=1)
    write_chairs(tmp_path / "DATA" / "chairs")
    (tmp_path / "model.yml.gz").touch()
    for name in ("bunny_0.jpg", "bunny_1.jpg"):
        (tmp_path / name).write_bytes((files("deepmatching") / "data" / "demo" / name).read_bytes())
    write_vgg(tmp_path / "vgg16.npz")

    def no_edges(image: torch.Tensor, model: Path) -> np.ndarray:
        return np.zeros(tuple(image.shape[1:]), np.float32)

    monkeypatch.setattr("deepmatching.flow.edges.structured_forest_edges", no_edges)
    monkeypatch.setattr("deepmatching.flow.edges.detect_edges", lambda image: no_edges(image, Path()))
    monkeypatch.chdir(tmp_path)
    return tmp_path


#: Arguments for miniatures: one step, one pair, a small radius.
SMALL = {
    "train": "steps=1 model.radius=8 model.levels=1 data.workers=0 validation.limit=1 device=cpu",
    "reproduce": "--limit 1 --radius 8 --device cpu",
    "evaluate": "--limit 1 --radius 8 --device cpu",
    "scores": "--radius 8 --device cpu",
}


@pytest.mark.slow
def test_every_command_of_the_page_runs_in_order(
    data: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for arguments in COMMANDS:
        words = [word.replace("=download", "=vgg16.npz") for word in arguments]
        run_here(monkeypatch, *words, *SMALL[words[0]].split())
        output = capsys.readouterr().out
        if arguments[0] == "reproduce":
            ours = [line for line in output.splitlines() if re.search(r"\bours +[\d–]", line)]
            assert ours and not any(re.search(r"ours +–", line) for line in ours), arguments
    assert Path("figure1.png").is_file()
    exponents = {row: load_network(f"runs/{row}/last.safetensors").exponents for row in "bdefg"}
    assert all(nu[0] == torch.tensor(1.4) for nu in exponents.values())
    assert (exponents["e"] == torch.tensor(1.4)).all() and exponents["f"][1] != torch.tensor(1.4)


def test_the_page_has_every_row_of_both_tables() -> None:
    listed = {
        (words[1], dict(pairwise(words)).get("--datasets", "sintelmini"), row)
        for words in COMMANDS
        if words[0] == "reproduce" and "--rows" in words
        for row in words[words.index("--rows") + 1].split(",")
    }
    published = {(table, name, row) for table, names in PAPER.items() for name, rows in names.items() for row in rows}
    assert listed == {(table, name, row) for table, name, row in published if row not in NOT_OURS}
