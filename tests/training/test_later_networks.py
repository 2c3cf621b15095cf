"""Training the confidence network, alone and with the descriptor, and through the interpolation."""

from pathlib import Path

import pytest
import torch

from deepmatching.errors import DeepMatchingError
from deepmatching.models import load_network
from deepmatching.training import Outcome, read_config, train
from deepmatching.training.config import Config
from deepmatching.training.log import read_log
from deepmatching.training.model import build_model
from helpers.recorder import Recorder

CPU = torch.device("cpu")
ALONE = ("model.init=compact", "model.descriptor=", "model.learn=confidence", "validation.criterion=auc")
FROM_COMPACT = ("steps=3", "log_every=1", "optimizer.lr=1e-3", "model.init=compact")


def columns(out: Path) -> set[str]:
    return {name for row in read_log(out / "log.csv") for name in row}


def changed_parts(outcome: Outcome) -> set[str]:
    """Return the parts of the network ``compact`` that a run has changed."""
    before, after = (load_network(m).state_dict() for m in ("compact", outcome.folder / "last.safetensors"))
    assert before.keys() == after.keys()
    return {key.split(".")[0] for key in before if not torch.equal(before[key], after[key])}


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
    outcome = train(small(manifest, tmp_path / "run", *ALONE, "steps=20"), CPU)
    losses = [row["loss"] for row in read_log(tmp_path / "run" / "log.csv") if "loss" in row]
    assert losses[-1] < 0.7 * losses[0]
    assert changed_parts(outcome) == {"confidence"}


@pytest.mark.slow
def test_an_interrupted_run_of_the_confidence_ends_with_the_same_weights(manifest: Path, tmp_path: Path) -> None:
    alone = (*ALONE, "optimizer.schedule=constant")
    train(small(manifest, tmp_path / "parts", *alone, "steps=4"), CPU)
    train(small(manifest, tmp_path / "whole", *alone), CPU)
    train(small(manifest, tmp_path / "parts", *alone), CPU, resume=True)
    one, other = (load_network(tmp_path / name / "last.safetensors").state_dict() for name in ("whole", "parts"))
    assert all(torch.equal(one[key], other[key]) for key in one)


@pytest.mark.slow
def test_descriptor_and_confidence_are_trained_together(manifest: Path, tmp_path: Path) -> None:
    outcome = train(small(manifest, tmp_path / "run", "loss.confidence=0.2", "steps=3"), CPU)
    assert changed_parts(outcome) >= {"descriptor", "confidence"}
    assert {"Q0", "confidence", "right", "judged", "auc"} <= columns(tmp_path / "run")


def test_a_run_that_leaves_the_confidence_as_it_was_says_so(manifest: Path, tmp_path: Path) -> None:
    watcher = Recorder()
    outcome = train(small(manifest, tmp_path, "steps=1", "log_every=1", "validation.limit=1"), CPU, False, [watcher])
    assert sum("The confidence stays as in compact" in event for event in watcher.events) == 1
    assert "confidence" not in changed_parts(outcome) and "descriptor" in changed_parts(outcome)
    assert "auc" in columns(tmp_path)


@pytest.mark.slow
def test_the_error_of_the_interpolated_flow_reaches_the_descriptor(manifest: Path, tmp_path: Path) -> None:
    config = small(manifest, tmp_path, *FROM_COMPACT, "loss.flow=0.1")
    assert build_model(config.model, config.loss).network.confidence is not None
    outcome = train(config, CPU)
    assert "descriptor" in changed_parts(outcome) and "interpolated" in columns(tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("positions", ["peak", "soft"])
def test_only_soft_positions_let_the_error_of_the_flow_reach_the_upper_exponents(
    manifest: Path, tmp_path: Path, positions: str
) -> None:
    """The one other loss is on S_0, which depends on ν_0 alone."""
    through_flow = ("loss.weights={S0=1}", "loss.flow=1", f"loss.flow_positions={positions}", "model.learn=exponents")
    outcome = train(small(manifest, tmp_path, *FROM_COMPACT, *through_flow, "steps=1", "validation.limit=1"), CPU)
    assert [row["interpolated"] > 0 for row in read_log(tmp_path / "log.csv") if "interpolated" in row] == [True]
    before, after = (load_network(m).exponents for m in ("compact", outcome.folder / "last.safetensors"))
    moved = (after != before).tolist()
    assert moved[0] and any(moved[1:]) == (positions == "soft")
    assert changed_parts(outcome) <= {"exponents", "sharpness"}


def test_training_on_the_flow_needs_a_confidence(manifest: Path, tmp_path: Path) -> None:
    from_hog = ("model.descriptor=", "model.init=hog", "loss.subpixel=0")
    config = small(manifest, tmp_path, *FROM_COMPACT, *from_hog, "loss.flow=0.1")
    with pytest.raises(DeepMatchingError, match="needs a confidence: run `deepmatching train confidence` first"):
        build_model(config.model, config.loss)


def test_training_through_the_interpolation_needs_matches_between_cells(manifest: Path, tmp_path: Path) -> None:
    config = small(manifest, tmp_path, *FROM_COMPACT, "loss.flow=0.1", "loss.subpixel=0", "model.subpixel=0")
    with pytest.raises(DeepMatchingError, match=r"loss\.flow needs a network that refines its matches"):
        build_model(config.model, config.loss)
