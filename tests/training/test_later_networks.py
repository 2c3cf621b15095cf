"""Training the confidence network and the dense network, alone and with the descriptor."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from deepmatching.errors import DeepMatchingError
from deepmatching.models import load_network
from deepmatching.training import read_config, train
from deepmatching.training.config import Config
from deepmatching.training.model import build_model
from helpers.recorder import Recorder

ALONE = ("model.init=compact", "model.descriptor=", "model.learn=confidence", "validation.criterion=auc")
FROM_COMPACT = ("steps=3", "log_every=1", "optimizer.lr=1e-3", "model.init=compact")


def small(manifest: Path, out: Path, *changes: str) -> Config:
    return read_config(
        "quickstart",
        [
            f"data.train={manifest}", f"out={out}", "data.crop=[64,96]", "data.flips=false", "model.radius=8",
            "validation.radius=8", "steps=8", "log_every=2", "optimizer.lr=3e-3", "optimizer.warmup=0", *changes,
        ],
    )  # fmt: skip


@pytest.mark.slow
def test_the_confidence_alone_learns_and_leaves_the_matcher_as_it_was(manifest: Path, tmp_path: Path) -> None:
    outcome = train(small(manifest, tmp_path / "run", *ALONE, "steps=20"), torch.device("cpu"))
    rows = (tmp_path / "run" / "log.csv").read_text().splitlines()
    name = rows[0].split(",").index("loss")
    losses = [float(row.split(",")[name]) for row in rows[1:] if row.split(",")[name]]
    assert losses[-1] < 0.7 * losses[0]
    before, after = load_network("compact"), load_network(outcome.folder / "last.safetensors")
    assert after.confidence is not None
    for key, tensor in before.state_dict().items():
        if not key.startswith("confidence."):
            assert torch.equal(tensor, after.state_dict()[key]), key


@pytest.mark.slow
def test_an_interrupted_run_of_the_confidence_ends_with_the_same_weights(manifest: Path, tmp_path: Path) -> None:
    train(small(manifest, tmp_path / "parts", *ALONE, "steps=4", "optimizer.schedule=constant"), torch.device("cpu"))
    train(small(manifest, tmp_path / "whole", *ALONE, "optimizer.schedule=constant"), torch.device("cpu"))
    changed = small(manifest, tmp_path / "parts", *ALONE, "optimizer.schedule=constant")
    train(changed, torch.device("cpu"), resume=True)
    one, other = (load_network(tmp_path / name / "last.safetensors").state_dict() for name in ("whole", "parts"))
    assert all(torch.equal(one[key], other[key]) for key in one)


@pytest.mark.slow
def test_descriptor_and_confidence_are_trained_together(manifest: Path, tmp_path: Path) -> None:
    outcome = train(small(manifest, tmp_path / "run", "loss.confidence=0.2", "steps=3"), torch.device("cpu"))
    before, after = load_network("compact"), load_network(outcome.folder / "last.safetensors")
    assert after.confidence is not None
    assert not torch.equal(before.descriptor.head.weight, after.descriptor.head.weight)  # type: ignore[union-attr]
    header = (tmp_path / "run" / "log.csv").read_text().splitlines()[0].split(",")
    assert {"Q0", "confidence", "right", "judged", "auc"} <= set(header)


def test_a_descriptor_that_learns_keeps_the_later_networks_as_they_were_and_the_run_says_so(
    manifest: Path, tmp_path: Path
) -> None:
    watcher = Recorder()
    outcome = train(
        small(manifest, tmp_path, "steps=1", "log_every=1", "validation.limit=1"), torch.device("cpu"), False, [watcher]
    )
    assert sum("confidence and the dense network stay as in compact" in event for event in watcher.events) == 1
    before, after = (load_network(m).state_dict() for m in ("compact", outcome.folder / "last.safetensors"))
    changed = {key.split(".")[0] for key in before if not torch.equal(before[key], after[key])}
    assert before.keys() == after.keys() and not changed & {"confidence", "dense"} and "descriptor" in changed
    assert "auc" in columns(tmp_path) and "flow@3" not in columns(tmp_path)  # the flow would take longer


def columns(out: Path) -> set[str]:
    return set((out / "log.csv").read_text().splitlines()[0].split(","))


@pytest.mark.slow
def test_the_dense_network_alone_is_trained_and_nothing_else(manifest: Path, tmp_path: Path) -> None:
    config = small(
        manifest, tmp_path, *FROM_COMPACT, "model.descriptor=", "model.learn=flow", "validation.criterion=flow@3"
    )
    outcome = train(config, torch.device("cpu"))
    before, after = (load_network(m).state_dict() for m in ("compact", outcome.folder / "last.safetensors"))
    changed = {key.split(".")[0] for key in before if not torch.equal(before[key], after[key])}
    assert changed == {"dense"}
    assert {"filled", "likelihood", "flow@3"} <= columns(tmp_path)


@pytest.mark.slow
def test_the_error_of_the_interpolated_flow_reaches_the_descriptor(manifest: Path, tmp_path: Path) -> None:
    config = small(manifest, tmp_path, *FROM_COMPACT, "loss.flow=0.1")
    assert build_model(config.model, config.loss).network.confidence is not None
    outcome = train(config, torch.device("cpu"))
    before, after = (load_network(m) for m in ("compact", outcome.folder / "last.safetensors"))
    assert not torch.equal(before.descriptor.head.weight, after.descriptor.head.weight)  # type: ignore[union-attr]
    assert "interpolated" in columns(tmp_path)


@pytest.mark.parametrize("change", ["model.learn=flow", "loss.flow=0.1"])
def test_training_on_the_flow_needs_a_confidence(manifest: Path, tmp_path: Path, change: str) -> None:
    config = small(manifest, tmp_path, *FROM_COMPACT, "model.descriptor=", "model.init=hog", "loss.subpixel=0", change)
    with pytest.raises(DeepMatchingError, match="needs a confidence: run `deepmatching train confidence` first"):
        build_model(config.model, config.loss)


def test_training_through_the_interpolation_needs_matches_between_cells(manifest: Path, tmp_path: Path) -> None:
    config = small(manifest, tmp_path, *FROM_COMPACT, "loss.flow=0.1", "loss.subpixel=0", "model.subpixel=0")
    with pytest.raises(DeepMatchingError, match=r"loss\.flow needs a network that refines its matches"):
        build_model(config.model, config.loss)
