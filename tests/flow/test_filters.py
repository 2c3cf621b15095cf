"""Which matches the filters trust."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.sparse import csr_matrix
from scipy.sparse.csgraph import connected_components
from torch import Tensor

from deepmatching.flow.filters import MatchTensors, in_groups, inconsistency, round_trip_errors
from deepmatching.flow.interpolation import sparse_to_dense
from deepmatching.flow.operators.geodesic import cell_graph, distance_transform
from deepmatching.geometry.seeds import Nearest
from deepmatching.geometry.targets import Decoded
from deepmatching.matches import Matches


def round_trips(start: np.ndarray, end: np.ndarray, there: np.ndarray, back: np.ndarray) -> Tensor:
    start, end, there, back = (torch.from_numpy(array) for array in (start, end, there, back))
    every = torch.ones(len(there), dtype=torch.bool)
    return round_trip_errors(start, end - start, MatchTensors(there, back, there[:, 0], every))


@pytest.mark.parametrize("fixed_shapes", [False, True])
def test_of_two_matches_in_a_pixel_the_better_counts_and_of_equals_the_first(fixed_shapes: bool) -> None:
    start = torch.tensor([[2.0, 2], [2.1, 2], [7, 7], [7.2, 7], [9, 9], [50, 2], [float("nan"), 1], [3, 1]])
    end = start + 1
    end[7] = 1e7
    scores = torch.tensor([1.0, 2, 5, 5, float("nan"), 1, 1, 1])
    matches = MatchTensors(start, end, scores, torch.ones(8, dtype=torch.bool))
    found = sparse_to_dense(matches, torch.zeros(12, 12), fixed_shapes=fixed_shapes)
    assert found.numbers[found.counts].tolist() == [1, 2]
    np.testing.assert_allclose(found.flow, 1, atol=1e-5)


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 2**31), st.integers(1, 60), st.integers(2, 6))
def test_groups_are_connected_components(seed: int, seeds: int, size: int) -> None:
    generator = np.random.default_rng(seed)
    place = generator.choice(30 * 30, seeds, replace=False)
    pixels = torch.from_numpy(np.stack([place % 30, place // 30], axis=1))
    cost = torch.from_numpy(generator.random((30, 30), np.float32)) + 0.001
    graph = cell_graph(*distance_transform(cost, pixels), seeds)
    displacements = generator.integers(0, 3, (seeds, 2)) * 2.0
    links = [
        (a, b)
        for a in range(seeds)
        for b in graph[1][graph[0][a] : graph[0][a + 1]].tolist()
        if np.hypot(*(displacements[a] - displacements[b])) < 2.5
    ]
    rows, columns = np.array(links, dtype=int).reshape(-1, 2).T
    group = connected_components(csr_matrix((np.ones(len(rows)), (rows, columns)), shape=(seeds, seeds)))[1]
    expected = np.bincount(group)[group] >= size
    np.testing.assert_array_equal(in_groups(graph, torch.from_numpy(displacements), 2.5, size), expected)


def test_inconsistency_is_the_distance_from_the_mean() -> None:
    index = torch.tensor([[0, 1, 2], [1, 0, -1], [2, 0, 1]], dtype=torch.int32)
    neighbours = Nearest(index, torch.where(index >= 0, 0.0, torch.inf))
    displacements = torch.tensor([[0.0, 0], [0, 0], [9, 0]], dtype=torch.float64)
    every = torch.ones(3, dtype=torch.bool)
    np.testing.assert_allclose(inconsistency(neighbours, displacements, 1.0, every), [3, 0, 6], atol=1e-6)
    found = inconsistency(neighbours, displacements, 1.0, torch.tensor([True, True, False]))
    np.testing.assert_allclose(found[:2], 0, atol=1e-6)


def test_the_round_trip_of_a_right_match_ends_where_it_started() -> None:
    start = np.array([[10.0, 10], [50, 10], [100, 80]])
    end = start + np.array([4, 2])
    there, back = end[:2] + 3, end[:2] + 3 - [[4, 2], [20, 2]]
    np.testing.assert_allclose(round_trips(start, end, there, back), [0, 16, np.inf])
    empty = np.empty((0, 2))
    assert round_trips(start, end, empty, empty).isinf().all()
    assert round_trips(empty, empty, there, back).shape == (0,)


def test_backward_matches_far_outside_the_image_are_allowed() -> None:
    start, end = np.array([[10.0, 10], [20, 20]]), np.array([[12.0, 10], [1e18, -3e9]])
    there, back = np.array([[12.0, 10], [1e12, 5], [-1e30, 0]]), np.array([[10.0, 10], [5, 5], [0, 0]])
    np.testing.assert_allclose(round_trips(start, end, there, back), [0, np.inf])


@pytest.mark.parametrize("seed", range(5))
def test_round_trip_errors_equal_brute_force(seed: int) -> None:
    generator = np.random.default_rng(seed)
    start, end, there, back = (generator.uniform(-20, 60, (n, 2)) for n in (30, 30, 40, 40))
    there[0] = 8 * np.floor(there[1] / 8) + 1  # in one bin: the later one counts
    expected = np.full(30, np.inf)
    latest = {tuple(np.floor(p / 8)): n for n, p in enumerate(there)}
    for n, target in enumerate(end):
        for bin, m in latest.items():
            if np.abs(np.floor(target / 8) - bin).max() <= 1:
                expected[n] = min(expected[n], np.hypot(*(target - start[n] + back[m] - there[m])))
    np.testing.assert_allclose(round_trips(start, end, there, back), expected)


def test_matches_of_a_network_are_measured_from_pixel_centres() -> None:
    points = torch.tensor([[[4.0, 4], [12, 4]]])
    ones = torch.ones(1, 1, 2)
    decoded = Decoded(points, points[None] + 2, ones, ones.long(), torch.tensor([[[True, False]]]))
    found, matches = MatchTensors.of_decoded(decoded), Matches.from_decoded(decoded)[0]
    assert torch.equal(found.points0[found.counts], matches.keypoints0)
    assert torch.equal(found.points1[found.counts], matches.keypoints1)
    other = MatchTensors.of(matches, torch.device("cpu"))
    assert other.counts.all() and torch.equal(other.points0, matches.keypoints0)
