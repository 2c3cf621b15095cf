"""Decoding as a CUDA graph, and the matcher that uses it."""

import numpy as np
import pytest
import torch

import deepmatching as dm
from deepmatching.geometry.strips import Tiling
from deepmatching.kernels.cuda_graphs import Replayed
from deepmatching.network.descriptors import HOG
from deepmatching.network.inference import Decoding
from deepmatching.network.network import Network
from deepmatching.network.replay import GraphedDecode, GraphedDescribe
from helpers.volumes import assert_identical

cuda = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")


@cuda
@pytest.mark.parametrize("half", [False, True])
@pytest.mark.parametrize("radius", [16, None])
def test_replaying_equals_decoding(radius: int | None, half: bool) -> None:
    network = Network(HOG(), radius).cuda()
    graph, geometry = GraphedDecode(network), network.geometry((64, 96), (64, 80))
    for _ in range(3):
        image0, image1 = torch.rand(2, 3, 64, 96, device="cuda"), torch.rand(2, 3, 64, 80, device="cuda")
        found = graph(image0, image1, geometry, Decoding(half=half))
        assert_identical((found, network.decode(image0, image1, Decoding(half=half))))


@cuda
def test_the_matcher_gives_the_same_matches_every_time_and_sees_changes(pair: tuple[np.ndarray, np.ndarray]) -> None:
    matcher = dm.DeepMatcher.from_pretrained("hog", radius=16, device="cuda")
    on_cpu = dm.DeepMatcher.from_pretrained("hog", radius=16, device="cpu")

    def same(a: dm.Matches, b: dm.Matches) -> bool:
        close = len(a) == len(b) and torch.allclose(a.scores.cpu(), b.scores, atol=1e-4)
        return close and torch.equal(a.keypoints1.cpu(), b.keypoints1)

    for _ in range(3):  # eager, recorded, replayed
        assert same(matcher.match(*pair), on_cpu.match(*pair))
        assert same(matcher.match(pair[1], pair[0]), on_cpu.match(pair[1], pair[0]))
    for changed in (matcher, on_cpu):
        with torch.no_grad():
            changed.network.exponents.fill_(1.0)
        changed.network.radius = 12
    for _ in range(3):
        assert same(matcher.match(*pair), on_cpu.match(*pair))
    assert same(matcher.match(pair[0][:40], pair[1]), on_cpu.match(pair[0][:40], pair[1]))


@cuda
def test_strips_on_the_gpu_give_the_same_matches() -> None:
    network = Network(HOG(), 24).cuda()
    image0, image1 = torch.rand(1, 3, 96, 128, device="cuda"), torch.rand(1, 3, 96, 128, device="cuda")
    whole, cut = (network.decode(image0, image1, Decoding(tiling=Tiling(strips))) for strips in (1, 5))
    assert_identical((whole, cut))


@cuda
def test_a_replayed_function_sees_new_arguments_and_keeps_old_results() -> None:
    calls: list[int] = []

    def work(a: torch.Tensor, factor: int, b: torch.Tensor) -> tuple[torch.Tensor]:
        calls.append(factor)
        return (factor * a + b,)

    replayed = Replayed(work, patience=2)
    results = []
    for n in range(6):
        a, b = torch.full((4,), float(n), device="cuda"), torch.ones(4, device="cuda")
        results.append(replayed(a, 3, b)[0])
    assert [float(result[0]) for result in results] == [1, 4, 7, 10, 13, 16]
    assert len(calls) < 6 + 2  # two eager calls, and those of one recording
    assert float(replayed(a, 5, b)[0][0]) == 26  # another argument
    assert replayed(a[:2], 5, b[:2])[0].shape == (2,)  # another shape


def test_on_the_cpu_nothing_is_recorded_and_changes_are_seen() -> None:
    network = Network(HOG(), 8)
    images, geometry = torch.rand(2, 1, 3, 16, 24), network.geometry((16, 24), (16, 24))
    decode, describe = GraphedDecode(network), GraphedDescribe(network)
    for exponent in (1.4, 1.4, 1.4, 1.0):
        with torch.no_grad():
            network.exponents.fill_(exponent)
        expected = network.decode(*images)
        assert_identical((decode(*images, geometry, Decoding()), expected))
        cells = network.describe(*images, geometry)
        assert_identical((decode.of_descriptors(*cells, geometry, Decoding()), expected))
        assert torch.equal(describe(images[0], (16, 24)), cells[0])
