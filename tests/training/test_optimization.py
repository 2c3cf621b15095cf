"""Optimizer, schedule, moving average, mixed precision."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from deepmatching.errors import DeepMatchingError
from deepmatching.training.config import LossConfig, ModelConfig, OptimizerConfig
from deepmatching.training.model import TrainedModel, build_model
from deepmatching.training.optimization import MovingAverage, build_optimizer, ema_decay, learning_rate_factor

SMALL = ModelConfig(radius=8, levels=1, settings={"dimensions": 6})


def rates(schedule: str, count: int = 100, **changes: float) -> list[float]:
    config = OptimizerConfig(schedule=schedule, warmup=0, **changes)  # type: ignore[arg-type]
    return [learning_rate_factor(config, step, step / count) for step in range(count + 1)]


def test_schedules_have_their_shapes() -> None:
    assert set(rates("constant")) == {1.0}
    cosine = rates("cosine", final=0.1)
    assert cosine[0] == 1 and cosine[50] == pytest.approx(0.55) and cosine[-1] == pytest.approx(0.1)
    assert cosine == sorted(cosine, reverse=True)


@given(st.sampled_from(["constant", "cosine"]), st.integers(0, 500), st.floats(-1, 3), st.integers(0, 200))
def test_rates_stay_between_0_and_1_and_rise_in_the_warmup(schedule: str, step: int, t: float, warmup: int) -> None:
    config = OptimizerConfig(schedule=schedule, warmup=warmup)  # type: ignore[arg-type]
    rate = learning_rate_factor(config, step, t)
    assert 0 <= rate <= 1
    if warmup:
        assert rate <= (step + 1) / warmup


@pytest.mark.parametrize("name", ["adamw", "sgd"])
@pytest.mark.parametrize(("decay", "keep_nu0"), [(0.0, False), (0.5, True), (0.5, False)])
def test_decay_shrinks_what_is_learned_and_exponents_if_asked(name: str, decay: float, keep_nu0: bool) -> None:
    model = build_model(SMALL, LossConfig())
    rates = {"lr": 0.1, "exponents_lr": 2.0, "loss_lr": 7.0}
    config = OptimizerConfig(name=name, weight_decay=0.5, exponents_decay=decay, **rates)  # type: ignore[arg-type]
    optimizer = build_optimizer(model, config, keep_nu0)
    assert [group["lr"] for group in optimizer.param_groups] == pytest.approx([0.1, 0.2, 0.7])
    weight = next(model.network.descriptor.parameters())
    before = weight.detach().clone()
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    optimizer.step()
    assert torch.allclose(weight, 0.95 * before)
    shrunk = 1.4 * (1 - 0.2 * decay)
    assert model.network.exponents.tolist() == pytest.approx([1.4 if keep_nu0 else shrunk] + [shrunk] * 7)


@given(st.integers(1, 20), st.floats(0.0, 0.99))
def test_the_moving_average_is_its_definition(steps: int, largest: float) -> None:
    network = nn.Linear(1, 1, bias=False).double()
    network.weight.data.fill_(3.0)
    average, expected = MovingAverage(network), 3.0
    for step in range(steps):
        network.weight.data.fill_(math.sin(step))
        average.update(ema_decay(largest, step))
        d = min(largest, (1 + step) / (10 + step))
        expected = d * expected + (1 - d) * math.sin(step)
    assert average.network.weight.item() == pytest.approx(expected)
    assert network.weight.item() == math.sin(steps - 1)


def test_the_moving_average_leaves_counters_alone() -> None:
    network = nn.BatchNorm1d(2)
    average = MovingAverage(network)
    network.running_mean.fill_(1.0)  # type: ignore[union-attr]
    network.num_batches_tracked.fill_(8)  # type: ignore[union-attr]
    average.update(0.25)
    assert average.network.running_mean.tolist() == [0.75, 0.75]  # type: ignore[union-attr]
    assert average.network.num_batches_tracked == 0


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
    exact, _ = plain.loss(*batch(plain))
    plain.amp = "bf16"
    mixed, _ = plain.loss(*batch(plain))
    assert set(seen[: len(seen) // 2]) == {torch.float32} and set(seen[len(seen) // 2 :]) == {torch.bfloat16}
    assert mixed.dtype == torch.float32
    assert mixed != exact and mixed.item() == pytest.approx(exact.item(), rel=0.1)
    assert "forward" not in vars(plain.network.descriptor)  # and nothing is left behind
    with pytest.raises(DeepMatchingError):
        plain.loss(torch.rand(1, 3, 4, 4), *batch(plain)[1:])
    assert "forward" not in vars(plain.network.descriptor)
