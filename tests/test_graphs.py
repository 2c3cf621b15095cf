"""Decoding as a CUDA graph, and the matcher that uses it."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import deepmatching as dm
from deepmatching.descriptors import HOG
from deepmatching.graphs import GraphedDecode
from deepmatching.inference import Decoding
from deepmatching.network import Network
from deepmatching.operators.strips import Pieces

cuda = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")


def test_a_graph_needs_a_cuda_device() -> None:
    with pytest.raises(ValueError, match="CUDA"):
        GraphedDecode(Network(HOG(), 8), (1, 3, 16, 16), (1, 3, 16, 16))


@cuda
@pytest.mark.parametrize("half", [False, True])
@pytest.mark.parametrize("radius", [16, None])
def test_replaying_equals_decoding(radius: int | None, half: bool) -> None:
    network = Network(HOG(), radius).cuda()
    graph = GraphedDecode(network, (2, 3, 64, 96), (2, 3, 64, 80), Decoding(half=half))
    for _ in range(2):
        image0, image1 = torch.rand(2, 3, 64, 96, device="cuda"), torch.rand(2, 3, 64, 80, device="cuda")
        for replayed, decoded in zip(
            graph(image0, image1), network.decode(image0, image1, Decoding(half=half)), strict=True
        ):
            assert torch.equal(replayed, decoded)


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
    whole, cut = (network.decode(image0, image1, Decoding(pieces=Pieces(strips))) for strips in (1, 5))
    for a, b in zip(whole, cut, strict=True):
        assert torch.equal(a, b)
