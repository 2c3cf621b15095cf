"""Pooling as a component: a user's own one is honoured wherever the network is used."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import deepmatching as dm
from deepmatching.errors import DeepMatchingError
from deepmatching.geometry.discretization import Geometry
from deepmatching.models import build_network
from deepmatching.network.descriptors import HOG
from deepmatching.network.inference import Decoding
from deepmatching.network.memory import Work
from deepmatching.network.network import Network
from deepmatching.network.operators.decoding import decode
from deepmatching.network.operators.pooling import HardPooling
from deepmatching.settings import Settings


class MeanPooling:
    """The mean of each window on the way up; on the way down, each cell gets the best of its windows."""

    def pool(self, scores: Tensor, geometry: Geometry, l: int) -> tuple[Tensor, None]:
        windows, counts = (self._sums(values, geometry, l) for values in (scores, torch.ones_like(scores)))
        return windows / counts.clamp(min=1), None

    def unpool(self, scores: Tensor, kept: None, fine: Tensor, geometry: Geometry, l: int) -> Tensor:
        maps = F.interpolate(scores.flatten(0, 2)[:, None], scale_factor=2.0)[:, 0]
        before = max(0, -geometry.pool_offset(l))
        h, w = fine.shape[-2:]
        maps = F.pad(maps[:, before:, before:], (0, w, 0, h), mode="constant", value=-torch.inf)
        return maps[:, :h, :w].reshape(fine.shape)

    def _sums(self, values: Tensor, geometry: Geometry, l: int) -> Tensor:
        rows, columns = geometry.window(l + 1)
        reach, offset = geometry.pool_reach, geometry.pool_offset(l)
        first = reach - offset  # where the first window starts, beyond the border
        size = [2 * (n - 1) + 2 * reach + 1 for n in (rows, columns)]
        maps = values.flatten(0, 2)[:, None]
        after = [n - first - m for n, m in zip(size, maps.shape[-2:], strict=True)]
        padded = F.pad(maps, (first, after[1], first, after[0]))
        return F.avg_pool2d(padded, 2 * reach + 1, 2, divisor_override=1).view(*values.shape[:3], rows, columns)


class LearnedPooling(HardPooling, nn.Module):
    """Max pooling of scores that a parameter scales."""

    def __init__(self) -> None:
        nn.Module.__init__(self)
        self.scale = nn.Parameter(torch.tensor(0.5))

    def pool(self, scores: Tensor, geometry: Geometry, l: int) -> tuple[Tensor, Tensor]:
        return super().pool(self.scale * scores, geometry, l)


class Overriding(Network):
    """A subclass with a stage of its own."""

    def coarse_to_fine(self, S: list[Tensor], kept: list[Tensor], geometry: Geometry) -> list[Tensor]:
        return super().coarse_to_fine([S[0], *(0 * scores for scores in S[1:])], kept, geometry)


MAKERS: list[Callable[[int | None], Network]] = [
    lambda radius: Network(HOG(), radius, levels=2, pooling=MeanPooling()),
    lambda radius: Network(HOG(), radius, levels=2, pooling="soft"),
    lambda radius: Overriding(HOG(), radius, levels=2),
]


@pytest.mark.parametrize("radius", [None, 10])
@pytest.mark.parametrize("make", MAKERS)
@pytest.mark.parametrize("reciprocal", ["bins", "exact", "none"])
@torch.no_grad()
def test_what_is_matched_is_what_is_trained(make: Callable[..., Network], radius: int | None, reciprocal: str) -> None:
    network, images = make(radius), (torch.rand(2, 3, 40, 48), torch.rand(2, 3, 48, 40))
    pyramid = network(*images)
    expected = decode(pyramid.Q[0], pyramid.geometry, reciprocal)  # type: ignore[arg-type]
    found = network.decode(*images, Decoding(reciprocal))  # type: ignore[arg-type]
    assert torch.isfinite(expected.scores).any()
    for name in ("points1", "scores", "cells", "verified"):
        assert torch.equal(getattr(found, name), getattr(expected, name)), name
    assert not torch.equal(found.scores, Network(HOG(), radius, levels=2).decode(*images).scores)


def test_a_matcher_uses_it_and_plans_for_all_volumes(pair: tuple[np.ndarray, np.ndarray]) -> None:
    matcher = dm.DeepMatcher(build_network("hog", radius=16), Settings(device="cpu"))
    hard = matcher.match(*pair)
    planned = matcher.plan((64, 64), (64, 64)).needed
    matcher.network.use_pooling(MeanPooling())
    own = matcher.match(*pair)
    assert len(own) > 0 and own.scores.tolist() != hard.scores.tolist()
    assert matcher.plan((64, 64), (64, 64)).needed > planned
    work = Work.of(matcher.network, matcher.geometry((64, 64), (64, 64)), "cpu")
    assert work == Work(work.geometry, work.descriptor, pooling="other")


def test_its_parameters_are_the_networks() -> None:
    network = Network(HOG(), 8, levels=1, pooling=LearnedPooling())
    assert isinstance(network.pooling, LearnedPooling) and "own_pooling.scale" in network.state_dict()
    scores = network(*torch.rand(2, 1, 3, 24, 24)).Q[0]
    (gradient,) = torch.autograd.grad(scores[torch.isfinite(scores)].sum(), network.pooling.scale)
    assert gradient > 0
    network.use_pooling("hard")
    assert network.pooling == "hard" and "own_pooling.scale" not in network.state_dict() and network.is_fusable


@pytest.mark.parametrize(
    ("pooling", "temperature"), [(object(), 1.0), ("mean", 1.0), ("soft", 0.0), ("soft", float("nan"))]
)
def test_wrong_pooling_is_refused(pooling: Any, temperature: float) -> None:
    with pytest.raises(DeepMatchingError, match="must be"):
        Network(HOG(), 8, pooling=pooling, temperature=temperature)
