"""The flow on a GPU: it equals that of the CPU, the first time and when it is replayed."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import deepmatching as dm
from deepmatching.errors import DeepMatchingError
from deepmatching.flow import PRESETS

cuda = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
Pictures = tuple[np.ndarray, np.ndarray]


@cuda
@pytest.mark.parametrize(
    ("name", "model"),
    [*((name, "hog") for name in sorted(PRESETS)), ("default", "compact"), ("interpolated", "compact")],
)
def test_the_flow_is_nearly_that_of_the_cpu(pair: Pictures, name: str, model: str) -> None:
    expected = dm.DeepMatcher.from_pretrained(model, radius=16, device="cpu").flow(*pair, name)
    matcher = dm.DeepMatcher.from_pretrained(model, radius=16, device="cuda")
    for _ in range(4):  # eager, recorded, replayed
        result = matcher.flow(*pair, name)
        assert result.tensors is not None and result.tensors.flow.is_cuda
        assert abs(result.matches - expected.matches) <= 2
        assert np.abs(result.flow - expected.flow).mean() < 0.01
        assert np.abs(result.confidence - expected.confidence).mean() < 0.01
        assert result.agreement == pytest.approx(expected.agreement, abs=0.02)
        assert set(result.seconds) == {"matching", "dense flow"}


@cuda
def test_results_of_earlier_pairs_stay_as_they_were(pair: Pictures) -> None:
    matcher = dm.DeepMatcher.from_pretrained("hog", radius=16, device="cuda")
    first = [matcher.flow(*pair) for _ in range(3)][-1]
    second = matcher.flow(pair[1], pair[0])
    assert np.array_equal(first.flow, matcher.flow(*pair).flow)
    assert np.array_equal(second.flow, matcher.flow(pair[1], pair[0]).flow)
    assert not np.array_equal(first.flow, second.flow)


@cuda
def test_given_edges_and_matches_are_used(pair: Pictures) -> None:
    matcher = dm.DeepMatcher.from_pretrained("hog", radius=16, device="cuda")
    edges = np.random.default_rng(0).uniform(0, 1, (64, 96)).astype(np.float32)
    for _ in range(3):
        assert not np.array_equal(matcher.flow(*pair, edges=edges).flow, matcher.flow(*pair).flow)
    start = torch.tensor([[20.0, 20.0], [70.0, 20.0], [20.0, 50.0], [70.0, 50.0]])
    matches = dm.Matches(start, start + torch.tensor([1.0, 3.0]), torch.ones(4))
    still = np.zeros_like(pair[0])
    result = matcher.flow(still, still, matches=matches, edges=np.zeros((64, 96), np.float32))
    np.testing.assert_allclose(result.flow, np.broadcast_to(np.float32((1, 3)), (64, 96, 2)), atol=1e-4)
    assert result.matches == 4


@cuda
def test_a_pair_without_matches_says_so() -> None:
    matcher = dm.DeepMatcher.from_pretrained("hog", radius=16, device="cuda")
    points = torch.full((3, 2), float("nan"))
    still = np.zeros((64, 96, 3), np.uint8)
    with pytest.raises(DeepMatchingError, match="matches"):
        assert matcher.flow(still, still, matches=dm.Matches(points, points, torch.ones(3))).flow is None
