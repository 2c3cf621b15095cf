import itertools
import json
import os
import subprocess
import sys
from pathlib import Path

import cv2
import numpy as np
import pytest
import torch
from safetensors import safe_open

from deepmatching.flow.edges import load_edge_network
from edge_network import training
from edge_network.training import POSITIVE_WEIGHT, Trainer, boundary_loss, schedule

TOOLS = Path(training.__file__).parents[1]


def test_the_loss_is_the_mean_over_annotators() -> None:
    torch.manual_seed(0)
    logits = torch.randn(2, 1, 5, 6, dtype=torch.float64).float()
    annotators = (torch.rand(4, 2, 1, 5, 6) < 0.3).float()
    known = (torch.rand(2, 1, 5, 6) < 0.7).float()
    p = logits.sigmoid()
    losses = [-(POSITIVE_WEIGHT * y * p.log() + (1 - y) * (1 - p).log())[known == 1].mean() for y in annotators]
    torch.testing.assert_close(boundary_loss(logits, annotators.mean(dim=0), known), torch.stack(losses).mean())


def test_a_batch_without_known_pixels_has_no_loss() -> None:
    logits = torch.zeros(1, 1, 4, 4, requires_grad=True)
    loss = boundary_loss(logits, torch.zeros(1, 1, 4, 4), torch.zeros(1, 1, 4, 4))
    loss.backward()
    assert loss == 0 and logits.grad is not None and (logits.grad == 0).all()


def test_the_learning_rate_rises_and_falls() -> None:
    rates = [schedule(k / 100, 1.0) for k in range(101)]
    assert rates[0] == 0 and max(rates) == rates[2] == 1 and abs(rates[-1]) < 1e-9
    assert all(a >= b for a, b in itertools.pairwise(rates[2:]))


@pytest.mark.slow
def test_training_lowers_the_loss_and_finds_the_outline() -> None:
    torch.manual_seed(0)
    y, x = torch.meshgrid(torch.arange(96), torch.arange(128), indexing="ij")
    distance = ((y - 48) ** 2 + (x - 64) ** 2).float().sqrt()
    images = torch.where(distance < 30, 200, 60).to(torch.uint8).expand(2, 3, -1, -1)
    outline = (255 * ((distance - 30).abs() < 0.7)).to(torch.uint8).expand(2, 1, -1, -1)
    trainer = Trainer((images, outline), batch=4, size=64)
    losses = [trainer.step(3e-3, step / (step + 2)).item() for step in range(40)]
    assert np.mean(losses[-5:]) < 0.6 * np.mean(losses[:5])
    with torch.no_grad():
        edges = trainer.average.network.folded()(images[:1] / 255).sigmoid()[0, 0]
    assert edges[(distance - 30).abs() < 1].mean() > 2 * edges[(distance - 30).abs() > 8].mean()


@pytest.mark.slow
def test_the_command_writes_a_model_and_its_log(tmp_path: Path) -> None:
    for split in ("train", "val"):
        for folder in ("images", "boundaries"):
            (tmp_path / folder / split).mkdir(parents=True)
        for name, shape in (("1", (40, 60)), ("2", (60, 40))):  # one upright
            cv2.imwrite(str(tmp_path / f"images/{split}/{name}.png"), np.zeros((*shape, 3), np.uint8))
            cv2.imwrite(str(tmp_path / f"boundaries/{split}/{name}.png"), np.eye(*shape, dtype=np.uint8))
        (tmp_path / f"boundaries/{split}/annotators.txt").write_text("1 1\n2 1\n")
    out = tmp_path / "edges.safetensors"
    options = f"--data {tmp_path} --out {out} --steps 20 --batch 2 --size 32 --device cpu"
    command = [sys.executable, "-m", "edge_network.training", *options.split()]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join([str(TOOLS), *sys.path])}
    subprocess.run(command, check=True, env=environment)
    with safe_open(out, "pt") as file:
        assert file.metadata()["steps"] == "20"
        assert file.metadata()["training_data"] == "BSDS500 train and val"
    assert load_edge_network(out)(torch.rand(1, 3, 20, 20)).isfinite().all()
    log = json.loads(out.with_suffix(".json").read_text())
    assert log["settings"]["batch"] == 2 and log["log"][0]["step"] == 20


def test_a_missing_data_set_is_one_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["training", "--data", str(tmp_path / "nowhere"), "--out", str(tmp_path / "edges.safetensors")]
    monkeypatch.setattr(sys, "argv", arguments)
    with pytest.raises(SystemExit) as stopped:
        training.main()
    said = capsys.readouterr().err
    assert stopped.value.code == 2 and said.startswith("deepmatching: ") and said.count("\n") == 1
