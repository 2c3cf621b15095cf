"""The network that judges matches."""

from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

import deepmatching as dm
from deepmatching.data.datasets import open_dataset
from deepmatching.errors import DeepMatchingError
from deepmatching.geometry.discretization import Geometry
from deepmatching.kernels.registry import plain_operators
from deepmatching.models import build_confidence, build_network
from deepmatching.network.confidence import ConfidenceNetwork
from deepmatching.network.inference import Decoding
from deepmatching.network.network import Network
from deepmatching.network.operators.correlation import full_precision
from deepmatching.network.operators.evidence import channels_of_evidence, gather_evidence
from deepmatching.network.operators.subpixel import scores_around
from helpers.volumes import assert_identical


def judging(name: str = "compact", radius: int | None = 16, levels: int = 2) -> Network:
    """Return a network with a confidence network of random weights, whose answers vary."""
    network = build_network(name, radius=radius, levels=levels, sharpness=10.0)
    network.confidence = build_confidence(network.descriptor, width=16, scales=3, context=16)
    torch.nn.init.normal_(network.confidence.exit.weight)
    return network.eval()


@settings(max_examples=15, deadline=None)
@given(st.integers(1, 9), st.integers(1, 9), st.sampled_from([1, 4]), st.integers(1, 4))
def test_there_are_two_logits_for_every_reference_point(rows: int, columns: int, patch: int, scales: int) -> None:
    geometry = Geometry((8 * rows, 8 * columns), (8 * rows, 8 * columns), levels=0)
    network = ConfidenceNetwork(8, patch, 4, width=8, scales=scales, context=16)
    cells = torch.rand(1, 8, 4 * rows + (patch == 1), 4 * columns + (patch == 1))
    evidence = torch.rand(1, channels_of_evidence(patch), rows, columns)
    points = torch.rand(1, rows, columns, 2) * 8 * columns
    logits = network(evidence, points, cells, cells, geometry)
    assert logits.shape == (1, 2, rows, columns) and torch.isfinite(logits).all()


@pytest.mark.parametrize("name", ["compact", "vgg"])
def test_it_is_small(name: str) -> None:
    network = build_confidence(build_network(name).descriptor)
    assert sum(parameter.numel() for parameter in network.parameters()) <= 500_000


@pytest.mark.parametrize("name", ["hog", "compact", "vgg"])
@pytest.mark.parametrize("radius", [16, None])
def test_the_confidence_does_not_depend_on_how_matches_are_verified(name: str, radius: int | None) -> None:
    network, images = judging(name, radius), torch.rand(2, 2, 3, 64, 64)
    expected = network.decode(*images, Decoding("bins"))
    assert expected.confidence is not None and expected.occluded is not None
    assert expected.confidence.shape == expected.scores.shape and expected.confidence.std() > 0
    for reciprocal in ("exact", "none"):
        found = network.decode(*images, Decoding(reciprocal))
        assert torch.equal(found.confidence, expected.confidence) and torch.equal(found.occluded, expected.occluded)
        assert torch.equal(found.points1, expected.points1)
    plain = network.decode(*images, Decoding("bins", confidence=False))
    assert_identical((plain, expected._replace(confidence=None, occluded=None)))


def parts_of(network: Network, images: tuple[Tensor, Tensor]) -> tuple[Any, ...]:
    """Return what the confidence network is given for a pair."""
    geometry, patch = network.geometry_of(*images), network.descriptor.patch
    cells = network.describe(*images, geometry)
    decoded = network.decode_descriptors(*cells, geometry, Decoding(confidence=False))
    around = scores_around(decoded, *cells, geometry, patch, float(network.exponents[0]))
    return gather_evidence(decoded, around, *cells, geometry, patch), decoded.points1, *cells, geometry


@torch.no_grad()
@pytest.mark.parametrize("name", ["compact", "vgg"])
@pytest.mark.parametrize("size1", [(48, 64), (40, 80)])
def test_converted_weights_give_the_same_answer(name: str, size1: tuple[int, int]) -> None:
    network = judging(name)
    assert network.confidence is not None
    torch.nn.init.normal_(network.confidence.down[0].second.weight, std=0.1)  # type: ignore[union-attr,arg-type]
    parts = parts_of(network, (torch.rand(2, 3, 48, 64), torch.rand(2, 3, *size1)))
    expected = network.confidence(*parts)
    torch.testing.assert_close(network.confidence(*parts, torch.float32), expected, atol=1e-4, rtol=1e-4)
    half = network.confidence(*parts, torch.float16)
    assert half.dtype == torch.float32 and not torch.equal(half, expected)
    torch.testing.assert_close(half, expected, atol=0.1, rtol=0.02)


@torch.no_grad()
@pytest.mark.slow
@pytest.mark.parametrize("name", ["compact", "vgg"])
def test_half_precision_changes_no_probability_by_more_than_half_a_percent(name: str, shared: Path) -> None:
    network = dm.DeepMatcher.from_pretrained(name, radius=48).network
    assert network.confidence is not None
    pair = open_dataset(shared / "flow" / "manifest.json", masks=False)[0]
    images = tuple(image[None, :, :240, :320].to(network.exponents.device) for image in (pair.image0, pair.image1))
    parts = parts_of(network, images)  # type: ignore[arg-type]
    with plain_operators(), full_precision():
        expected = network.confidence(*parts, torch.float32).sigmoid()
    found = network.confidence(*parts, torch.float16).sigmoid()
    assert expected.std() > 0.1 and (found - expected).abs().max() < 0.005


def test_a_network_without_a_confidence_says_how_to_get_one() -> None:
    network = build_network("compact", radius=8, levels=0)
    decoded = network.decode(*torch.rand(2, 1, 3, 16, 16))
    assert decoded.confidence is None
    with pytest.raises(DeepMatchingError, match="train confidence"):
        network.estimate_confidence(decoded, *(torch.zeros(1),) * 3, network.geometry((16, 16), (16, 16)))
