"""Optimiser, schedule, running mean, loss scale."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from deepmatching.errors import DeepMatchingError
from deepmatching.training.config import Config, LossConfig, ModelConfig, OptimizerConfig
from deepmatching.training.loop import MOST_SKIPPED
from deepmatching.training.model import TrainedModel, build_model
from deepmatching.training.optimization import LossScale, RunningMean, build_optimizer, learning_rate

SMALL = ModelConfig(radius=8, levels=1, settings={"dimensions": 6})


def rates(schedule: str, count: int = 100, **changes: float) -> list[float]:
    config = replace(OptimizerConfig(), schedule=schedule, warmup=0, **changes)  # type: ignore[arg-type]
    return [learning_rate(config, step, step / count) for step in range(count + 1)]


def test_schedules_have_their_shapes() -> None:
    assert set(rates("constant")) == {1.0}
    cosine = rates("cosine", final=0.1)
    assert cosine[0] == 1 and cosine[50] == pytest.approx(0.55) and cosine[-1] == pytest.approx(0.1)
    assert cosine == sorted(cosine, reverse=True)
    cycle = rates("onecycle")
    assert cycle[0] == pytest.approx(1 / 25) and cycle[30] == pytest.approx(1) and cycle[-1] == pytest.approx(0)
    assert cycle[:31] == sorted(cycle[:31]) and cycle[30:] == sorted(cycle[30:], reverse=True)


@given(st.sampled_from(["constant", "cosine", "onecycle"]), st.integers(0, 500), st.floats(-1, 3), st.integers(0, 200))
def test_rates_stay_between_0_and_1_and_rise_in_the_warmup(schedule: str, step: int, share: float, warmup: int) -> None:
    config = replace(OptimizerConfig(), schedule=schedule, warmup=warmup)  # type: ignore[arg-type]
    rate = learning_rate(config, step, share)
    assert 0 <= rate <= 1
    if warmup:
        assert rate <= (step + 1) / warmup


def test_what_is_learned_is_what_was_asked_for() -> None:
    for learn, features, exponents in (("features", True, False), ("exponents", False, True), ("both", True, True)):
        model = build_model(replace(SMALL, learn=learn), LossConfig())  # type: ignore[arg-type]
        assert all(p.requires_grad == features for p in model.network.descriptor.parameters())
        assert model.network.exponents.requires_grad == exponents
        grouped = {p for g in build_optimizer(model, OptimizerConfig()).param_groups for p in g["params"]}
        assert grouped == {p for p in model.parameters() if p.requires_grad}


@pytest.mark.parametrize("name", ["adamw", "sgd"])
def test_decay_shrinks_the_descriptor_and_spares_the_exponents(name: str) -> None:
    model = build_model(SMALL, LossConfig())
    config = OptimizerConfig(name=name, lr=0.1, weight_decay=0.5, exponents_lr=3.0, loss_lr=7.0)  # type: ignore[arg-type]
    optimizer = build_optimizer(model, config)
    assert [group["lr"] for group in optimizer.param_groups] == pytest.approx([0.1, 0.3, 0.7])
    weight = next(model.network.descriptor.parameters())
    before = weight.detach().clone()
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    optimizer.step()
    assert torch.allclose(weight, 0.95 * before)
    assert (model.network.exponents == 1.4).all()


@given(st.integers(1, 20), st.floats(0.0, 0.99))
def test_the_running_mean_is_its_definition(steps: int, decay: float) -> None:
    network = nn.Linear(1, 1, bias=False).double()
    network.weight.data.fill_(3.0)
    mean, expected = RunningMean(network, decay), 3.0
    for step in range(steps):
        network.weight.data.fill_(math.sin(step))
        mean.update(step)
        d = min(decay, (1 + step) / (10 + step))
        expected = d * expected + (1 - d) * math.sin(step)
    assert mean.tensors["weight"].item() == pytest.approx(expected)
    with mean.inside():
        assert network.weight.item() == pytest.approx(expected)
    assert network.weight.item() == math.sin(steps - 1)


def test_the_running_mean_gives_the_weights_back_after_an_error() -> None:
    network = nn.Linear(1, 1)
    mean = RunningMean(network, 0.9)
    network.weight.data.fill_(7.0)
    with pytest.raises(KeyError), mean.inside():
        raise KeyError
    assert network.weight.item() == 7.0


def test_the_loss_scale_halves_and_doubles() -> None:
    scale = LossScale(8.0, grows=True)
    scale.update(False)
    assert scale.scale == 4
    for _ in range(LossScale.patience):
        scale.update(True)
    assert (scale.scale, scale.good) == (8, 0)
    constant = LossScale()
    constant.update(False)
    assert constant.scale == 1


def test_the_loss_scale_finds_its_way_down_before_a_run_gives_up() -> None:
    scale = LossScale(2.0**100, LossScale.patience, grows=True)
    scale.update(True)  # as large as it gets
    halvings = 0
    while scale.scale > 1:
        scale.update(False)
        halvings += 1
    assert 0 < halvings < MOST_SKIPPED


def test_a_scaled_gradient_is_the_gradient(config_of: Callable[..., Config]) -> None:
    parameter = nn.Parameter(torch.tensor([2.0, 3.0]))
    scale = LossScale(1024.0, grows=True)
    (parameter.square().sum() * scale.scale).backward()
    scale.undo([parameter])
    assert parameter.grad is not None and parameter.grad.tolist() == [4, 6]


def batch(model: TrainedModel) -> tuple[torch.Tensor, ...]:
    generator = torch.Generator().manual_seed(0)
    image = torch.rand(1, 3, 32, 48, generator=generator)
    return image, image, torch.zeros(1, 32, 48, 2), torch.zeros(1, 32, 48, dtype=torch.bool)


def test_mixed_precision_stays_inside_the_descriptor() -> None:
    torch.manual_seed(0)
    plain = build_model(SMALL, LossConfig())
    seen: list[torch.dtype] = []
    convolution = next(m for m in plain.network.descriptor.modules() if isinstance(m, nn.Conv2d))
    convolution.register_forward_hook(lambda module, inputs, output: seen.append(output.dtype))
    exact, _ = plain(*batch(plain))
    plain.precision = torch.bfloat16
    mixed, _ = plain(*batch(plain))
    assert set(seen[: len(seen) // 2]) == {torch.float32} and set(seen[len(seen) // 2 :]) == {torch.bfloat16}
    assert mixed.dtype == torch.float32
    assert mixed != exact and mixed.item() == pytest.approx(exact.item(), rel=0.1)
    assert "forward" not in vars(plain.network.descriptor)  # and nothing is left behind
    with pytest.raises(DeepMatchingError):
        plain(torch.rand(1, 3, 4, 4), *batch(plain)[1:])
    assert "forward" not in vars(plain.network.descriptor)
