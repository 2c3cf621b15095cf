"""Training on the flow: the dense network alone, and the descriptor through the interpolation."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from deepmatching.errors import DeepMatchingError
from deepmatching.models import load_network
from deepmatching.training import read_config, train
from deepmatching.training.config import Config
from deepmatching.training.model import build_model
from helpers.small_training import manifest  # noqa: F401 - a fixture


def small(manifest: Path, out: Path, *changes: str) -> Config:  # noqa: F811
    return read_config(
        "quickstart",
        [
            f"data.train={manifest}", f"out={out}", "data.crop=[64,96]", "data.flips=false", "model.radius=8",
            "validation.radius=8", "steps=3", "log_every=1", "optimizer.warmup=0", "model.init=compact", *changes,
        ],
    )  # fmt: skip


def columns(out: Path) -> set[str]:
    return set((out / "log.csv").read_text().splitlines()[0].split(","))


@pytest.mark.slow
def test_the_dense_network_alone_is_trained_and_nothing_else(manifest: Path, tmp_path: Path) -> None:  # noqa: F811
    config = small(manifest, tmp_path, "model.descriptor=", "model.learn=flow", "validation.criterion=flow@3")
    outcome = train(config, torch.device("cpu"))
    before, after = (load_network(m).state_dict() for m in ("compact", outcome.folder / "last.safetensors"))
    changed = {key.split(".")[0] for key in before if not torch.equal(before[key], after[key])}
    assert changed == {"dense"}
    assert {"filled", "likelihood", "flow@3"} <= columns(tmp_path)


@pytest.mark.slow
def test_the_error_of_the_interpolated_flow_reaches_the_descriptor(manifest: Path, tmp_path: Path) -> None:  # noqa: F811
    config = small(manifest, tmp_path, "loss.flow=0.1")
    assert build_model(config.model, config.loss).network.confidence is not None
    outcome = train(config, torch.device("cpu"))
    before, after = (load_network(m) for m in ("compact", outcome.folder / "last.safetensors"))
    assert not torch.equal(before.descriptor.head.weight, after.descriptor.head.weight)  # type: ignore[union-attr]
    assert "interpolated" in columns(tmp_path)


@pytest.mark.parametrize("change", ["model.learn=flow", "loss.flow=0.1"])
def test_training_on_the_flow_needs_a_confidence(manifest: Path, tmp_path: Path, change: str) -> None:  # noqa: F811
    config = small(manifest, tmp_path, "model.descriptor=", "model.init=hog", "loss.subpixel=0", change)
    with pytest.raises(DeepMatchingError, match="needs a confidence: run `deepmatching train confidence` first"):
        build_model(config.model, config.loss)


def test_the_dense_network_needs_a_trained_model(manifest: Path, tmp_path: Path) -> None:  # noqa: F811
    with pytest.raises(DeepMatchingError, match=r"model\.learn=flow needs a trained model: set model\.init"):
        small(manifest, tmp_path, "model.learn=flow", "model.init=")


def test_training_through_the_interpolation_needs_matches_between_cells(manifest: Path, tmp_path: Path) -> None:  # noqa: F811
    config = small(manifest, tmp_path, "loss.flow=0.1", "loss.subpixel=0", "model.subpixel=0")
    with pytest.raises(DeepMatchingError, match=r"loss\.flow needs a network that refines its matches"):
        build_model(config.model, config.loss)
