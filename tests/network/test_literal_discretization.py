"""The paper's discretisation to the letter: γ₀ = 1, α₀ = δ₀ = 8, β₀ = 4 pixels, descriptors at full resolution."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from deepmatching import DeepMatcher
from deepmatching.errors import DeepMatchingError
from deepmatching.geometry.strips import Tiling
from deepmatching.kernels.registry import plain_operators
from deepmatching.models import load_network, save_network
from deepmatching.network.descriptors import HOG
from deepmatching.network.inference import Decoding
from deepmatching.network.network import Network
from deepmatching.network.operators.decoding import decode
from deepmatching.settings import Settings
from helpers.fake_datasets import texture
from helpers.recursion import recursive_decoding


def literal(radius: int | None = 80, levels: int | None = None) -> Network:
    return Network(HOG(downscale=0, patch=8), radius, levels)


def test_it_is_that_of_the_papers_implementation_details() -> None:
    """Sect. 3: "R = 80 pixels, α₀ = δ = 8, β₀ = 4, γ₀ = 1"; Sect. 2.3: usually η₀ = γ₀."""
    geometry = literal().geometry((436, 1024), (436, 1024))
    assert (geometry.alpha, geometry.delta, geometry.beta, geometry.gamma, geometry.eta) == (8, 8, 4, 1, 1)
    assert [geometry.R(l) for l in range(7)] == [80, 40, 20, 10, 5, 3, 2]
    ours = Network(HOG()).geometry((436, 1024), (436, 1024))
    assert (ours.alpha, ours.delta, ours.beta, ours.gamma) == (8, 8, 4, 2)
    assert geometry.grid(0) == ours.grid(0)


@pytest.mark.slow
@torch.no_grad()
@pytest.mark.parametrize("radius", [6, 5, None])
def test_its_network_equals_the_recursion(radius: int | None) -> None:
    pyramid = literal(radius, levels=2).double()(*torch.rand(2, 1, 3, 32, 40, dtype=torch.float64))
    assert torch.equal(pyramid.Q[0][0], recursive_decoding([S[0] for S in pyramid.S], pyramid.geometry))


@torch.no_grad()
@pytest.mark.parametrize("radius", [16, 7, None])
@pytest.mark.parametrize("reciprocal", ["exact", "bins"])
def test_matches_with_and_without_kernels_are_the_maxima_of_Q_0(radius: int | None, reciprocal: str) -> None:
    network, images = literal(radius), torch.rand(2, 1, 3, 64, 80)
    decoding = Decoding(reciprocal)  # type: ignore[arg-type]
    fast, strips = (network.decode(*images, replace(decoding, tiling=tiling)) for tiling in (Tiling(), Tiling(3, 2)))
    with plain_operators():
        plain, pyramid = network.decode(*images, decoding), network(*images)
        slow = decode(pyramid.Q[0], pyramid.geometry, decoding.reciprocal)
    assert torch.equal(strips.cells, fast.cells) and torch.equal(strips.verified, fast.verified)
    for other in (plain, slow):
        assert torch.allclose(other.scores, fast.scores, rtol=1e-5)
        assert (other.cells == fast.cells).float().mean() > 0.98  # scores differ in the last digit


def test_patches_have_norm_1_and_eight_or_four_cells() -> None:
    patches = HOG(downscale=0, patch=8)(torch.rand(1, 3, 16, 16)).unfold(2, 8, 1).unfold(3, 8, 1)
    assert torch.allclose(patches.square().sum((1, 4, 5)), torch.ones(()), atol=1e-5)
    with pytest.raises(DeepMatchingError, match="not 6"):
        HOG(patch=6)


def test_odd_displacements_are_matched_exactly(tmp_path: Path) -> None:
    """Cells of 2 pixels cannot: their matches are off by one pixel. And a model file keeps the discretisation."""
    image = texture((96, 128))
    moved = np.roll(image, (-3, 5), axis=(0, 1))
    save_network(literal(), tmp_path / "literal.safetensors")
    matcher = DeepMatcher.from_pretrained(tmp_path / "literal.safetensors", radius=16, device="cpu")
    matches = matcher.match(image, moved)
    exact = (matches.displacements == torch.tensor([5.0, -3.0])).all(1)
    assert len(matches) > 120 and exact.float().mean() > 0.9
    again = load_network(tmp_path / "literal.safetensors").descriptor
    assert (again.patch, again.stride) == (8, 1) and again.settings() == {"downscale": 0, "patch": 8}
    coarse = DeepMatcher(Network(HOG(), 16), Settings(device="cpu")).match(image, moved)
    assert not (coarse.displacements == torch.tensor([5.0, -3.0])).all(1).any()


def test_gradients_reach_the_exponents() -> None:
    network = literal(4, levels=1)
    network(*torch.rand(2, 1, 3, 16, 24)).Q[0].nan_to_num(neginf=0).sum().backward()
    assert network.exponents.grad is not None and (network.exponents.grad[:2] != 0).all()
