"""The models that ship with the package: small, offline, with a card, and as their page describes them."""

import re
import socket
import subprocess
import sys
from importlib.resources import files
from pathlib import Path

import numpy as np
import pytest
import torch

import deepmatching as dm
from deepmatching.errors import DeepMatchingError
from deepmatching.io.weights import read_safetensors, write_safetensors
from deepmatching.models import build_confidence, build_network, load_network, model_path, read_model, save_network
from deepmatching.network.descriptors import Compact
from deepmatching.settings import MODELS

TRAINED = tuple(name for name in MODELS if name != "hog")
PAGE = Path(__file__).resolve().parents[1] / "docs" / "models.md"


@pytest.fixture
def offline(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*arguments: object) -> None:
        raise AssertionError("a shipped model must not use the network")

    monkeypatch.setattr(socket.socket, "connect", refuse)


def test_loading_draws_no_random_numbers_and_imports_no_compiler() -> None:
    code = """
import sys
import torch
from deepmatching.flow.edges import load_edge_network
from deepmatching.models import load_network
before = torch.get_rng_state()
networks = load_network("compact"), load_network("vgg"), load_edge_network()
assert torch.equal(torch.get_rng_state(), before)
print(sorted({"torch._dynamo", "sympy"} & set(sys.modules)))
"""
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (result.returncode, result.stdout, result.stderr) == (0, "[]\n", "")


@pytest.mark.usefixtures("offline")
def test_the_default_model_is_compact(pair: tuple[np.ndarray, np.ndarray]) -> None:
    matcher = dm.DeepMatcher.from_pretrained(device="cpu", radius=16)
    assert isinstance(matcher.network.descriptor, Compact)
    keypoints0, keypoints1, _ = matcher.match(*pair).numpy()
    errors = np.linalg.norm(keypoints1 - keypoints0 - (6, -4), axis=1)
    assert len(errors) > 70 and np.median(errors) < 0.5  # between the cells of 2 pixels


@pytest.mark.usefixtures("offline")
@pytest.mark.parametrize("name", MODELS)
def test_a_saved_model_gives_the_same_matches(name: str, pair: tuple[np.ndarray, np.ndarray], tmp_path: Path) -> None:
    matcher = dm.DeepMatcher.from_pretrained(name, device="cpu", radius=16)
    matcher.save(tmp_path / "again.safetensors")
    again = dm.DeepMatcher.from_pretrained(tmp_path / "again.safetensors", device="cpu", radius=16)
    for one, other in zip(matcher.match(*pair).numpy(), again.match(*pair).numpy(), strict=True):
        np.testing.assert_array_equal(one, other)


def test_the_models_take_less_than_eight_megabytes_and_have_cards() -> None:
    weights = Path(str(files("deepmatching") / "weights"))
    assert sum(file.stat().st_size for file in weights.glob("*.safetensors")) < 8e6
    for name in TRAINED:
        card = read_model(model_path(name))[1]
        assert {"title", "license", "initialisation", "training_data", "recipe"} <= set(card)
    listed = re.findall(r"`(\w+\.safetensors)`", (weights / "README.md").read_text(encoding="utf-8"))
    assert sorted(listed) == sorted(file.name for file in weights.glob("*.safetensors"))


@pytest.mark.parametrize("name", TRAINED)
def test_the_page_states_the_sizes_and_exponents(name: str) -> None:
    page = PAGE.read_text(encoding="utf-8")
    network = load_network(name)
    size, count = re.search(rf"\| `{name}` \| (\d+) kB \| ([\d ]+)[:|]", page).groups()  # type: ignore[union-attr]
    assert int(size) == round(model_path(name).stat().st_size / 1000)
    assert int(count.replace(" ", "")) == sum(p.numel() for p in network.parameters())
    section = page[page.index(f"## {name}\n") :]
    learned = re.search(r"= ([\d., ]+); κ = ([\d.]+);", section)
    assert learned and network.sharpness is not None
    exponents = [float(value) for value in learned[1].split(",")]
    torch.testing.assert_close(network.exponents.detach()[: len(exponents)], torch.tensor(exponents), atol=6e-3, rtol=0)
    assert float(learned[2]) == pytest.approx(network.sharpness.item(), abs=0.06)


def changed(tmp_path: Path, **changes: str) -> Path:
    """Return a copy of the default model with other metadata."""
    tensors, metadata = read_safetensors(model_path("compact"))
    write_safetensors(tmp_path / "changed.safetensors", tensors, {**metadata, **changes})
    return tmp_path / "changed.safetensors"


@pytest.mark.parametrize(
    ("name", "value", "says"),
    [
        *(
            (name, float("nan"), f"NaN or infinite numbers in {name}")
            for name in ("exponents", "descriptor.head.weight")
        ),
        ("sharpness", float("inf"), "NaN or infinite numbers in sharpness"),
        ("sharpness", -1.0, "sharpness that is not positive"),
    ],
)
def test_a_model_with_impossible_numbers_is_refused(tmp_path: Path, name: str, value: float, says: str) -> None:
    tensors, metadata = read_safetensors(model_path("compact"))
    tensors[name].view(-1)[0] = value
    write_safetensors(tmp_path / "m.safetensors", tensors, metadata)
    with pytest.raises(DeepMatchingError, match=says):
        load_network(tmp_path / "m.safetensors")


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ('{"widths": [1000000, 1000000]}', "unexpected shapes"),
        ('{"widths": [1000000000000000000, 1000000000000000000]}', "do not fit"),
        ('{"layers": [1000000000, 2]}', "layers asks for more than"),
        ('{"dimensions": 1000000000000}', "unexpected shapes"),
        ('{"widths": 36}', "do not fit"),
        ('{"widths": ["a", "b"]}', "do not fit"),
        ('{"colour": 1}', "do not fit"),
        ("[1]", "do not fit"),
        ("[" * 100_000, "nested too deeply"),
    ],
)
def test_the_settings_of_a_model_are_checked_before_it_is_built(tmp_path: Path, settings: str, says: str) -> None:
    """The sizes are those of a network of up to 10¹⁸ numbers: building it would fail."""
    with pytest.raises(DeepMatchingError, match=says):
        load_network(changed(tmp_path, settings=settings))


def test_a_descriptor_that_is_unknown_here_is_named(tmp_path: Path) -> None:
    with pytest.raises(DeepMatchingError, match="unknown descriptor 'mine'"):
        load_network(changed(tmp_path, descriptor="mine"))


def test_a_saved_model_keeps_its_confidence_network_and_refuses_settings_that_do_not_fit_it(tmp_path: Path) -> None:
    network, path = build_network("compact", radius=8, levels=1), tmp_path / "judge.safetensors"
    network.confidence = build_confidence(network.descriptor, width=8, scales=2, context=16)
    torch.nn.init.normal_(network.confidence.exit.weight)
    save_network(network, path)
    again, images = load_network(path, 8, 1), torch.rand(2, 1, 3, 32, 32)
    expected, found = network.decode(*images).confidence, again.decode(*images).confidence
    assert expected is not None and found is not None and torch.equal(expected, found)
    tensors, metadata = read_safetensors(path)
    for settings in ('{"width": 9}', '{"scales": 1000000}', '{"wide": 8}', '{"width": -1}', "[]", "{"):
        write_safetensors(path, tensors, {**metadata, "confidence": settings})
        with pytest.raises(DeepMatchingError, match=r"judge.safetensors"):
            load_network(path)
