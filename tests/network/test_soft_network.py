"""The network with soft pooling: explicit sums over paths, gradients, and the hard network as its limit."""

from pathlib import Path

import numpy as np
import pytest
import torch
from torch.autograd import gradcheck

import deepmatching as dm
from deepmatching.errors import DeepMatchingError
from deepmatching.geometry.discretization import Geometry
from deepmatching.io.weights import read_safetensors, write_safetensors
from deepmatching.models import build_network, load_network, save_network
from deepmatching.network.descriptors import HOG
from deepmatching.network.network import Network
from deepmatching.settings import Settings
from helpers.brute_force import brute_aggregation, brute_soft_pooling
from helpers.recursion import recursive_decoding
from helpers.volumes import TINY, random_volume

TEMPERATURES = [5.0, 30.0]


def soft_network(radius: int | None, levels: int, temperature: float = 20.0) -> Network:
    return Network(HOG(), radius, levels, pooling="soft", temperature=temperature).double()


def images(*sizes: tuple[int, int]) -> list[torch.Tensor]:
    return [torch.rand(1, 3, *size, dtype=torch.float64) for size in sizes]


@pytest.mark.slow
@pytest.mark.parametrize("geometry", TINY)
@torch.no_grad()
def test_q0_is_the_best_of_all_paths_less_the_price_of_leaving_the_maxima(geometry: Geometry) -> None:
    network = soft_network(geometry.radius, geometry.L)
    assert network.log_temperatures is not None
    network.log_temperatures[:2] = torch.tensor(TEMPERATURES, dtype=torch.float64).log()
    S_0 = random_volume(geometry, 0)
    S, maxima = network.fine_to_coarse(S_0, geometry)
    expected = [S_0[0]]
    for l, temperature in enumerate(TEMPERATURES):
        pooled = brute_soft_pooling(expected[l], geometry, l, temperature)
        expected.append(brute_aggregation(pooled, geometry, l) ** 1.4)
    for found, explicit in zip(S, expected, strict=True):
        torch.testing.assert_close(found[0], explicit, rtol=1e-6, atol=1e-6)  # exponents are 1.4 in float32
    paths = recursive_decoding(expected, geometry, TEMPERATURES)
    torch.testing.assert_close(network.coarse_to_fine(S, maxima, geometry)[0][0], paths, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("radius", [None, 8])
def test_as_the_temperature_rises_it_becomes_the_hard_network(radius: int | None) -> None:
    """Q_0 and its gradient down to the pixels. The error of a sum of L + 1 scores is at most (L + 1) log(9) / β."""
    image0, image1 = images((32, 40), (32, 32))
    image0.requires_grad_()
    hard = Network(HOG(), radius, 2).double()(image0, image1).Q[0]
    soft = soft_network(radius, 2, temperature=1e8)(image0, image1).Q[0]
    reached = torch.isfinite(hard)
    torch.testing.assert_close(soft[reached], hard[reached], rtol=0, atol=3e-7)
    assert (soft[~reached] < -10).all()
    upstream = torch.randn(int(reached.sum()), dtype=torch.float64)
    gradients = [torch.autograd.grad(Q[reached], image0, upstream)[0] for Q in (soft, hard)]
    torch.testing.assert_close(*gradients, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("radius", [None, 6])
def test_gradient_through_the_whole_network(radius: int | None) -> None:
    """From S and Q to the pixels and the temperatures, by finite differences."""
    network = soft_network(radius, 2)
    image0, image1 = (image[:, :1].requires_grad_() for image in images((16, 16), (16, 16)))

    def refined(image0: torch.Tensor, image1: torch.Tensor, temperatures: torch.Tensor) -> torch.Tensor:
        pyramid = torch.func.functional_call(network, {"log_temperatures": temperatures}, (image0, image1))
        return torch.cat([scores[torch.isfinite(scores)] for scores in (*pyramid.S, *pyramid.Q)])

    temperatures = torch.full((8,), 2.0, dtype=torch.float64, requires_grad=True)
    assert gradcheck(refined, (image0, image1, temperatures), atol=1e-4, fast_mode=True)


@pytest.mark.parametrize("radius", [None, 8])
def test_every_cell_on_the_image_has_a_score_and_a_gradient(radius: int | None) -> None:
    network = soft_network(radius, 2)
    image0, image1 = images((32, 40), (32, 32))
    geometry = network.geometry_of(image0, image1)
    S_0 = network.first_scores(*network.describe(image0, image1, geometry), geometry).detach().requires_grad_()
    Q_0 = network.coarse_to_fine(*network.fine_to_coarse(S_0, geometry), geometry)[0]
    rows, columns = geometry.on_target()
    on_image = (rows[:, None, :, None] & columns[None, :, None, :]).expand(Q_0.shape[1:])
    assert torch.equal(torch.isfinite(Q_0[0]), on_image)
    for index in (0, Q_0.numel() // 2):
        cell = torch.where(on_image.flatten())[0][index % int(on_image.sum())]
        (gradient,) = torch.autograd.grad(Q_0.flatten()[cell], S_0, retain_graph=True)
        assert gradient.flatten()[cell] > 0 and torch.isfinite(gradient).all()


def test_a_model_keeps_its_pooling_and_its_temperatures(tmp_path: Path) -> None:
    network = build_network("compact", dimensions=6)
    network.use_pooling("soft", 7.0)
    assert network.log_temperatures is not None
    network.log_temperatures.data[1] = 3.0
    path = tmp_path / "soft.safetensors"
    save_network(network, path)
    again = load_network(path)
    assert again.pooling == "soft" and again.log_temperatures is not None
    assert again.log_temperatures.exp()[:2].tolist() == pytest.approx([7.0, np.exp(3.0)])
    assert load_network(path, pooling="soft").log_temperatures is not None
    hard = load_network(path, pooling="hard")
    assert hard.pooling == "hard" and "log_temperatures" not in hard.state_dict()
    assert load_network("hog", pooling="soft").pooling == "soft"


def test_a_model_file_with_another_pooling_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "soft.safetensors"
    save_network(build_network("compact", dimensions=6), path)
    tensors, metadata = read_safetensors(path)
    for pooling, words in (("mean", "pooling in .* must be"), ("soft", "another architecture .* log_temperatures")):
        write_safetensors(path, tensors, {**metadata, "pooling": pooling})
        with pytest.raises(DeepMatchingError, match=words):
            load_network(path)


def test_a_matcher_pools_as_it_is_told(pair: tuple[np.ndarray, np.ndarray], tmp_path: Path) -> None:
    options = {"device": "cpu", "radius": 16}
    soft = dm.DeepMatcher.from_pretrained("compact", pooling="soft", **options)
    assert soft.network.pooling == "soft" and soft.describe()["pooling"] == "soft"
    errors = (soft.match(*pair).displacements - torch.tensor((6.0, -4.0))).norm(dim=1)
    assert len(errors) > 70 and errors.median() < 0.5
    soft.save(tmp_path / "soft.safetensors")
    assert dm.DeepMatcher.from_pretrained(tmp_path / "soft.safetensors", **options).network.pooling == "soft"
    hard = dm.DeepMatcher.from_pretrained(tmp_path / "soft.safetensors", pooling="hard", **options)
    plain = dm.DeepMatcher.from_pretrained("compact", **options)
    assert "pooling" not in plain.describe()
    np.testing.assert_equal(hard.match(*pair).numpy(), plain.match(*pair).numpy())
    with pytest.raises(DeepMatchingError, match="pooling must be"):
        dm.DeepMatcher.from_pretrained("compact", pooling="mean")


def test_half_precision_is_for_hard_pooling() -> None:
    settings = Settings(device="cpu")
    object.__setattr__(settings, "half", True)  # the settings refuse it without a GPU
    with pytest.raises(DeepMatchingError, match="Half precision is for hard pooling"):
        dm.DeepMatcher(Network(HOG(), 8, pooling="soft"), settings)
