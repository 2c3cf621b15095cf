"""The training loop as a whole, on pairs so small that a step takes milliseconds."""

import math
import signal
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import cv2
import numpy as np
import pytest
import torch
from safetensors.torch import load_file

import deepmatching as dm
from deepmatching.data.datasets import open_dataset
from deepmatching.errors import DeepMatchingError
from deepmatching.evaluation import match_metrics
from deepmatching.network.descriptors import VGG
from deepmatching.network.losses import Objective
from deepmatching.training import loop, model, train, validation
from deepmatching.training.config import Config
from deepmatching.training.data import Samples
from deepmatching.training.log import read_log
from deepmatching.training.model import build_model
from helpers.recorder import Recorder

CPU = torch.device("cpu")
NO_PAIR = DeepMatchingError("No pair.")
SAMPLE = Samples.__getitem__
Configs = Callable[..., Config]


def same_weights(first: Path, second: Path, name: str = "last") -> bool:
    a, b = (load_file(folder / f"{name}.safetensors") for folder in (first, second))
    return a.keys() == b.keys() and all(torch.equal(a[n], b[n]) for n in a)


def same_run(first: Path, second: Path) -> bool:
    """Whether two runs have the same weights to the last bit, and the same log but for times."""
    timeless = [
        [{n: v for n, v in row.items() if n not in ("seconds", "steps_per_s")} for row in read_log(f / "log.csv")]
        for f in (first, second)
    ]
    return timeless[0] == timeless[1] and same_weights(first, second) and same_weights(first, second, "best")


def test_a_run_in_order(config_of: Configs, tmp_path: Path) -> None:
    watcher = Recorder()
    outcome = train(config_of(), CPU, watchers=[watcher])
    assert watcher.events == [
        *("started 0", "validated 0", "step 1", "step 2", "logged 2", "step 3", "validated 3", "step 4", "logged 4"),
        *("step 5", "step 6", "logged 6", "validated 6", "stopped"),
    ]
    assert outcome.progress.step == 6 and outcome.signal == 0
    assert outcome.best == max(sum(row[f"acc@{t}"] for t in (2, 5, 10)) for row, _ in watcher.validations)
    names = {"best.safetensors", "config.toml", "last.safetensors", "last.state.safetensors", "log.csv"}
    assert {file.name for file in outcome.folder.iterdir()} == names
    row = next(row for row in read_log(outcome.folder / "log.csv") if row["step"] == 2)
    assert {"loss", "lr", "Q0", "reachable", "gradient", "skipped", "steps_per_s", "nu_0"} <= set(row)


@pytest.mark.slow
def test_overfitting_learns(config_of: Configs) -> None:
    watcher = Recorder()
    train(config_of("data.overfit=2", "steps=40", "validation.every=40", "ema=0.5"), CPU, watchers=[watcher])
    losses = [row["loss"] for row in read_log(Path(config_of().out) / "log.csv") if "loss" in row]
    assert losses[-1] < 0.8 * losses[0]
    first, last = watcher.validations[0][0], watcher.validations[-1][0]
    assert last["acc@2"] > first["acc@2"] + 20


@pytest.mark.slow
@pytest.mark.parametrize(
    "changes",
    [("model.learn_nu0=false",), ("ema=0.9", "accumulate=2", "data.batch=2"), ("optimizer.name=sgd", "amp=bf16")],
)
def test_a_resumed_run_is_as_if_it_never_stopped(config_of: Configs, tmp_path: Path, changes: tuple[str, ...]) -> None:
    train(config_of(*changes, f"out={tmp_path / 'whole'}"), CPU)
    config = config_of(*changes)
    for stop_at in (1, 4):
        assert train(config, CPU, stop_at > 1, [Recorder(stop_at)]).signal == signal.SIGINT
    outcome = train(config, CPU, resume=True)
    assert outcome.progress.step == 6 and same_run(tmp_path / "whole", outcome.folder)


def test_resuming_repeats_an_interrupted_validation(config_of: Configs, tmp_path: Path, monkeypatch: Any) -> None:
    train(config_of(f"out={tmp_path / 'whole'}"), CPU)
    match, calls = validation._match, []

    def interrupting(*arguments: Any) -> Any:
        calls.append(1)
        if len(calls) == 6:  # the second pair of the second validation
            signal.raise_signal(signal.SIGINT)
        return match(*arguments)

    monkeypatch.setattr(validation, "_match", interrupting)
    outcome = train(config_of(), CPU)
    assert outcome.signal and (outcome.progress.step, outcome.progress.validated) == (3, 0)
    assert len(calls) == 6
    assert same_run(tmp_path / "whole", train(config_of(), CPU, resume=True).folder)


@pytest.mark.slow
def test_a_finished_run_is_left_alone_until_it_gets_more_steps(config_of: Configs, tmp_path: Path) -> None:
    train(config_of("optimizer.schedule=constant"), CPU)
    before = (tmp_path / "run" / "last.state.safetensors").read_bytes()
    watcher = Recorder()
    train(config_of("optimizer.schedule=constant"), CPU, resume=True, watchers=[watcher])
    assert watcher.events == ["started 6", "stopped"]
    assert (tmp_path / "run" / "last.state.safetensors").read_bytes() == before
    train(config_of("optimizer.schedule=constant", "steps=9"), CPU, resume=True)
    train(config_of("optimizer.schedule=constant", "steps=9", f"out={tmp_path / 'whole'}"), CPU)
    assert same_weights(tmp_path / "run", tmp_path / "whole")


def test_time_can_be_the_limit(config_of: Configs, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter(range(0, 100000, 2))
    monkeypatch.setattr(loop, "time", SimpleNamespace(monotonic=lambda: float(next(clock))))
    outcome = train(config_of("steps=0", "minutes=1", "validation.data=[]"), CPU)
    assert 1 < outcome.progress.step < 30
    rates = [row["lr"] for row in read_log(outcome.folder / "log.csv")]
    assert rates == sorted(rates, reverse=True) and rates[-1] < 0.5 * rates[0]


def test_the_best_model_reproduces_the_metrics_that_chose_it(config_of: Configs, manifest: Path) -> None:
    watcher = Recorder()
    outcome = train(config_of("ema=0.5", "validation.limit=3"), CPU, watchers=[watcher])
    best = max((row for row, is_best in watcher.validations if is_best), key=lambda row: row["step"])
    matcher = dm.DeepMatcher.from_pretrained(outcome.folder / "best.safetensors", radius=8, device="cpu")
    pairs = [open_dataset(manifest)[n] for n in (0, 1, 2)]
    found = [match_metrics(matcher.match(p.image0, p.image1), p.flow.numpy())[0]["all"] for p in pairs]
    for name in ("acc@2", "acc@5", "acc@10", "epe", "coverage"):
        assert sum(metrics[name] for metrics in found) / 3 == pytest.approx(best[name])


class Diverging(Objective):
    """A loss that is NaN in some steps."""

    bad: frozenset[int] = frozenset()
    calls = 0

    def forward(self, *arguments: Any) -> Any:
        loss, metrics = super().forward(*arguments)
        type(self).calls += 1
        return (loss * math.nan if type(self).calls in type(self).bad else loss), metrics


@pytest.fixture
def diverging(monkeypatch: pytest.MonkeyPatch) -> type[Diverging]:
    monkeypatch.setattr(model, "Objective", Diverging)
    monkeypatch.setattr(Diverging, "calls", 0)
    return Diverging


@pytest.mark.slow
def test_some_steps_without_a_finite_gradient_are_skipped(config_of: Configs, diverging: type[Diverging]) -> None:
    diverging.bad = frozenset({2, 5, *range(7, 1000)})
    outcome = train(config_of("checkpoint_every=1"), CPU)
    assert (outcome.progress.step, outcome.progress.skipped, outcome.progress.skipped_in_a_row) == (6, 2, 0)
    assert all(math.isfinite(row["loss"]) for row in read_log(outcome.folder / "log.csv") if "loss" in row)
    with pytest.raises(DeepMatchingError, match=r"lower optimizer\.lr"):
        train(config_of("steps=100"), CPU, resume=True)
    assert all(torch.isfinite(t).all() for t in load_file(outcome.folder / "last.safetensors").values())


def without_sample(monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    """Let a sample be an error, as if its pair could not be read."""
    monkeypatch.setattr(Samples, "__getitem__", lambda self, n: NO_PAIR if n == number else SAMPLE(self, n))


def test_an_unreadable_pair_loses_nothing(config_of: Configs, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    without_sample(monkeypatch, 6)  # the batch after the last one may be bad
    assert train(config_of(f"out={tmp_path / 'whole'}"), CPU).progress.step == 6
    without_sample(monkeypatch, 5)
    config = config_of("checkpoint_every=1000", "validation.every=1000")
    with pytest.raises(DeepMatchingError, match="No pair"):
        train(config, CPU)
    monkeypatch.undo()
    assert same_weights(tmp_path / "whole", train(config, CPU, resume=True).folder)


def test_one_bad_batch_costs_no_step(config_of: Configs, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    config = config_of("accumulate=3", "steps=3", "checkpoint_every=1000", "validation.data=[]")
    whole = train(config.model_copy(update={"out": str(tmp_path / "whole")}), CPU)
    for n in (7, 6):  # the second and the first of the last step
        without_sample(monkeypatch, n)
        watcher = Recorder()
        with pytest.raises(DeepMatchingError, match="No pair"):
            train(config, CPU, resume=n == 6, watchers=[watcher])
        assert watcher.events[-1] == "failed"
    monkeypatch.undo()
    outcome = train(config, CPU, resume=True)
    assert outcome.progress.step == 3 and same_weights(whole.folder, outcome.folder)


def test_a_run_that_fails_before_its_first_step_leaves_no_trace(config_of: Configs, manifest: Path) -> None:
    flow = manifest.parent / "3.flo"
    whole = flow.read_bytes()
    flow.write_bytes(whole[:100])
    try:
        with pytest.raises(DeepMatchingError, match=r"3\.flo"):
            train(config_of(), CPU)
    finally:
        flow.write_bytes(whole)
    assert not Path(config_of().out).exists()
    assert train(config_of(), CPU).progress.step == 6  # the same command, when that is put right


def test_another_criterion_starts_a_new_contest(config_of: Configs) -> None:
    train(config_of(), CPU)
    watcher = Recorder()
    outcome = train(config_of("steps=9", "validation.criterion=acc@2"), CPU, resume=True, watchers=[watcher])
    assert watcher.validations[0][1] and outcome.best <= 100


@pytest.mark.parametrize("changes", [("amp=bf16",), ("model.learn=exponents",), ("model.learn=features",)])
def test_other_ways_to_train(config_of: Configs, changes: tuple[str, ...]) -> None:
    changes = (*changes, "validation.data=[]")
    outcome = train(config_of(*changes), CPU)
    before = train(config_of(*changes, "steps=1", f"out={outcome.folder}-1", "optimizer.lr=0"), CPU)
    old, new = load_file(before.folder / "last.safetensors"), load_file(outcome.folder / "last.safetensors")
    assert outcome.progress.skipped == 0
    moved = {name for name in new if not torch.equal(old[name], new[name])}
    assert ("exponents" in moved) == ("model.learn=features" not in changes)
    assert any(name.startswith("descriptor.") for name in moved) == ("model.learn=exponents" not in changes)


@pytest.mark.slow
@pytest.mark.parametrize("optimizer", ["adamw", "sgd"])
@pytest.mark.parametrize("learn", ["exponents", "both"])
def test_nu_0_stays_to_the_last_bit_if_it_is_not_learned(config_of: Configs, optimizer: str, learn: str) -> None:
    changes = (f"optimizer.name={optimizer}", "optimizer.weight_decay=0.5", "optimizer.momentum=0.9", "ema=0.5")
    config = config_of(*changes, f"model.learn={learn}", "model.learn_nu0=false")
    outcome = train(config, CPU)
    start = torch.tensor(1.4)
    for name in ("last", "best"):
        assert torch.equal(load_file(outcome.folder / f"{name}.safetensors")["exponents"][0], start)
    assert load_file(outcome.folder / "last.safetensors")["exponents"][1] != start
    mean = load_file(outcome.folder / "last.state.safetensors")["mean.exponents"]
    assert torch.equal(mean[0], start) and mean[1] != start
    exponents = build_model(config.model, config.loss).network.exponents
    (exponents * torch.tensor([torch.nan, *[2.0] * (len(exponents) - 1)])).sum().backward()
    assert exponents.grad is not None and exponents.grad[:3].tolist() == [0, 2, 2]  # its gradient does not matter
    free = train(config_of(*changes, f"model.learn={learn}", f"out={outcome.folder}-free"), CPU)
    assert load_file(free.folder / "last.safetensors")["exponents"][0] != start


def test_training_goes_on_from_a_model_and_with_hog(config_of: Configs, tmp_path: Path) -> None:
    first = train(config_of("validation.data=[]"), CPU)
    init = f"model.init={first.folder / 'last.safetensors'}"
    second = train(config_of("validation.data=[]", init, f"out={tmp_path / '2'}", "optimizer.lr=0"), CPU)
    assert same_weights(first.folder, second.folder)
    with pytest.raises(DeepMatchingError, match=r"another descriptor.*set model\.descriptor=compact"):
        train(config_of(init, "model.descriptor=hog", "model.settings={}", f"out={tmp_path / '3'}"), CPU)
    with pytest.raises(DeepMatchingError, match=r"only widths and scales can be added"):
        train(config_of(init, "model.settings.dimensions=7", f"out={tmp_path / '3'}"), CPU)
    hog = ("model.descriptor=hog", "model.settings={downscale=1}", f"out={tmp_path / '4'}")
    with pytest.raises(DeepMatchingError, match="no features"):
        train(config_of(*hog, "model.learn=features"), CPU)
    outcome = train(config_of(*hog), CPU)
    assert not (load_file(outcome.folder / "last.safetensors")["exponents"] == 1.4).all()


def test_published_weights_are_a_start_for_vgg(config_of: Configs, tmp_path: Path) -> None:
    tensors, path = {name: torch.rand_like(t) for name, t in VGG().state_dict().items()}, tmp_path / "vgg16.npz"
    np.savez(path, **{name: tensor.numpy() for name, tensor in tensors.items()})
    config = config_of("model.descriptor=vgg", "model.settings={}", f"model.init={path}")
    start = build_model(config.model, config.loss).network.descriptor.state_dict()
    assert all(torch.equal(start[name], tensors[name]) for name in tensors)
    with pytest.raises(DeepMatchingError, match=r"set model\.descriptor=vgg"):
        train(config_of("model.settings={}", f"model.init={path}"), CPU)


def test_what_a_run_started_from_may_be_gone_when_it_is_resumed(config_of: Configs, tmp_path: Path) -> None:
    first = train(config_of("validation.data=[]", "steps=1"), CPU)
    init = (first.folder / "last.safetensors").rename(tmp_path / "init.safetensors")
    second = (f"model.init={init}", "model.descriptor=''", "model.settings={}", f"out={tmp_path / '2'}")
    train(config_of(*second), CPU, watchers=[Recorder(stop_at=2)])
    init.unlink()
    assert train(config_of(*second), CPU, resume=True).progress.step == 6


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Enough photographs of noise that one in sixteen is a few."""
    folder = tmp_path_factory.mktemp("photos")
    for n in range(48):
        noise = np.random.default_rng(n).integers(0, 256, (12, 16, 3), np.uint8)
        cv2.imwrite(str(folder / f"{n}.png"), cv2.resize(noise, (96, 72), interpolation=cv2.INTER_CUBIC))
    return folder


@pytest.mark.slow
def test_synthetic_pairs_are_made_again_when_a_run_is_resumed(config_of: Configs, photos: Path, tmp_path: Path) -> None:
    synthetic = (
        *("data.train=synthetic", f"data.photos={photos}", "data.crop=[32, 48]", "data.batch=2"),
        *("data.synthesis={preset='chairs', max_displacement=6}", "validation.data=synthetic", "validation.limit=2"),
    )
    train(config_of(*synthetic, f"out={tmp_path / 'whole'}"), CPU)
    assert train(config_of(*synthetic), CPU, watchers=[Recorder(stop_at=4)]).signal
    outcome = train(config_of(*synthetic), CPU, resume=True)
    assert same_run(tmp_path / "whole", outcome.folder)
    for word in ("data.synthesis.preset=sofas", "data.synthesis.colours=3", "data.photos=nowhere"):
        with pytest.raises(DeepMatchingError, match=r"chairs|colours|nowhere"):
            train(config_of(*synthetic, word, f"out={tmp_path / 'other'}"), CPU)
