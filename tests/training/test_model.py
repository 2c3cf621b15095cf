"""The network at the start of a run, and which sizes suit it."""

import math
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from deepmatching.errors import DeepMatchingError
from deepmatching.models import DESCRIPTORS, build_network, load_network, save_network
from deepmatching.network.descriptors import Compact
from deepmatching.settings import TEMPERATURE
from deepmatching.training import train
from deepmatching.training.config import Config
from deepmatching.training.log import read_log
from deepmatching.training.model import FIRST_SHARPNESS, build_model

Configs = Callable[..., Config]


def kappa(config: Config) -> float | None:
    sharpness = build_model(config.model, config.loss).network.sharpness
    return None if sharpness is None else sharpness.item()


@pytest.mark.parametrize("start", [None, 7.0])
def test_kappa_is_as_asked_or_as_at_the_start(config_of: Configs, tmp_path: Path, start: float | None) -> None:
    save_network(build_network("compact", sharpness=start, dimensions=6), tmp_path / "start.safetensors")
    assert kappa(config_of("loss.subpixel=0.3")) == FIRST_SHARPNESS and kappa(config_of()) is None
    init = f"model.init={tmp_path / 'start.safetensors'}"
    assert kappa(config_of(init, "model.subpixel=0")) is None
    assert kappa(config_of(init, "model.subpixel=5")) == 5
    assert kappa(config_of(init)) == start
    assert kappa(config_of(init, "loss.subpixel=0.3")) == (start or FIRST_SHARPNESS)


def test_nu_0_is_what_is_asked_for(config_of: Configs) -> None:
    def exponents(*changes: str) -> list[float]:
        config = config_of(*changes)
        return build_model(config.model, config.loss).network.exponents.tolist()

    assert exponents("model.nu0=1") == [1.0, *exponents()[1:]]


def test_what_an_author_has_frozen_stays_frozen(config_of: Configs, monkeypatch: pytest.MonkeyPatch) -> None:
    class HalfFrozen(Compact):
        def __init__(self) -> None:
            super().__init__(dimensions=6)
            self.requires_grad_(False).head.requires_grad_(True)

    monkeypatch.setitem(DESCRIPTORS, "half-frozen", HalfFrozen)
    for learn in ("features", "both"):
        config = config_of("model.descriptor=half-frozen", "model.settings={}", f"model.learn={learn}")
        descriptor = build_model(config.model, config.loss).network.descriptor
        assert {name.split(".")[0] for name, p in descriptor.named_parameters() if p.requires_grad} == {"head"}


BAD = [
    ("model.radius=1", r"model\.radius=1 cannot be used.* at least 2 pixels"),
    ("model.radius=9", r"model\.radius=9 cannot be used.* 8 would do"),
    ("validation.radius=7", r"validation\.radius=7 cannot be used"),
    ("model.levels=9", r"data\.crop=\[32, 48\], model\.levels=9 .* at most"),
    ("data.crop=[1, 1]", r"data\.crop=\[1, 1\] .* at least \[8, 8\]"),
    ("loss.weights.Q7=1", r"loss\.weights\.Q7 .* model\.levels=1 the last one is 1"),
]


@pytest.mark.parametrize(("word", "says"), BAD, ids=[word for word, _ in BAD])
def test_sizes_that_cannot_work_are_found_before_anything_is_read(config_of: Configs, word: str, says: str) -> None:
    with pytest.raises(DeepMatchingError, match=says) as raised:
        train(config_of(word, "data.train=missing.json"), torch.device("cpu"))
    assert "\n" not in str(raised.value)


def test_whole_images_may_have_any_levels(config_of: Configs) -> None:
    with pytest.raises(DeepMatchingError, match=r"missing\.json"):
        train(config_of("model.levels=9", "data.crop=[0, 0]", "data.train=missing.json"), torch.device("cpu"))


def test_pooling_is_what_is_asked_for_and_else_that_of_the_start(config_of: Configs, tmp_path: Path) -> None:
    start = build_network("compact", dimensions=6)
    start.use_pooling("soft", 7.0)
    save_network(start, tmp_path / "soft.safetensors")

    def first_temperature(*changes: str) -> float | None:
        config = config_of(*changes)
        temperatures = build_model(config.model, config.loss).network.log_temperatures
        return None if temperatures is None else temperatures[0].exp().item()

    init = f"model.init={tmp_path / 'soft.safetensors'}"
    assert first_temperature() is None and first_temperature("model.pooling=hard") is None
    assert first_temperature("model.pooling=soft", "model.temperature=9") == pytest.approx(9)
    assert first_temperature(init) == first_temperature(init, "model.pooling=soft") == pytest.approx(7)
    assert first_temperature(init, "model.pooling=hard") is None
    for word in ("model.pooling=mean", "model.temperature=0"):
        with pytest.raises(DeepMatchingError, match=word.split("=")[0]):
            config_of(word)


@pytest.mark.parametrize("learn", ["both", "features"])
def test_temperatures_are_learned_with_the_exponents(config_of: Configs, learn: str) -> None:
    soft = ("model.pooling=soft", f"model.learn={learn}", "validation.every=100")
    outcome = train(config_of(*soft, "steps=4"), torch.device("cpu"))
    network = load_network(outcome.folder / "last.safetensors")
    assert network.pooling == "soft" and network.log_temperatures is not None
    moved = (network.log_temperatures[0] - math.log(TEMPERATURE)).abs() > 1e-5
    assert moved == (learn == "both")
    logged = [row for row in read_log(outcome.folder / "log.csv") if "beta_7" in row][-1]
    assert logged["beta_0"] == pytest.approx(network.log_temperatures[0].exp().item(), rel=1e-5)
    assert train(config_of(*soft, "steps=6"), torch.device("cpu"), resume=True).progress.step == 6
