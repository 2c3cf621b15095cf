"""Which matches the filters trust."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.sparse import csr_matrix
from scipy.sparse.csgraph import connected_components

from deepmatching.flow.filters import first_of_each_pixel, group_sizes, inconsistency, round_trip_errors, saliency
from deepmatching.flow.operators.geodesic import Neighbours, cells_of


def test_only_corners_are_salient() -> None:
    image = np.zeros((3, 40, 40), dtype=np.float32)
    image[:, 20:, 20:] = 1
    strength = saliency(image)
    assert strength[10, 10] == 0 and strength[30, 30] < 1e-3  # flat
    assert strength[20, 33] < 0.05 * strength[20, 20]  # along an edge nothing is known about the motion along it
    assert strength[20, 20] > 1
    np.testing.assert_array_equal(saliency(image[:1]), strength)  # grey


def test_the_best_match_of_a_pixel_is_kept() -> None:
    pixels = np.array([[1, 2], [3, 4], [1, 2], [3, 4], [5, 6]])
    assert first_of_each_pixel(pixels, None).tolist() == [True, True, False, False, True]
    assert first_of_each_pixel(pixels, np.array([1, 5, 2, 5, 0.0])).tolist() == [False, True, True, False, True]


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 2**31), st.integers(1, 60))
def test_groups_are_connected_components(seed: int, seeds: int) -> None:
    generator = np.random.default_rng(seed)
    pixels = generator.choice(30 * 30, seeds, replace=False)
    cells = cells_of(generator.random((30, 30)), np.stack([pixels % 30, pixels // 30], axis=1))
    graph = cells.graph
    displacements = generator.integers(0, 3, (seeds, 2)) * 2.0
    links = [
        (a, b)
        for a in range(seeds)
        for b in graph[1][graph[0][a] : graph[0][a + 1]]
        if np.hypot(*(displacements[a] - displacements[b])) < 2.5
    ]
    rows, columns = np.array(links, dtype=int).reshape(-1, 2).T
    group = connected_components(csr_matrix((np.ones(len(rows)), (rows, columns)), shape=(seeds, seeds)))[1]
    np.testing.assert_array_equal(group_sizes(cells, displacements, 2.5), np.bincount(group)[group])


def test_inconsistency_is_the_distance_from_the_mean() -> None:
    index = np.array([[0, 1, 2], [1, 0, -1], [2, 0, 1]], dtype=np.int32)
    distances = np.where(index >= 0, np.float32(0), np.float32(np.inf))
    displacements = np.array([[0.0, 0], [0, 0], [9, 0]])
    np.testing.assert_allclose(inconsistency(Neighbours(index, distances), displacements, 1.0), [3, 0, 6], atol=1e-6)
    voters = np.array([True, True, False])
    found = inconsistency(Neighbours(index, distances), displacements, 1.0, voters)
    np.testing.assert_allclose(found[:2], 0, atol=1e-6)


def test_the_round_trip_of_a_right_match_ends_where_it_started() -> None:
    start = np.array([[10.0, 10], [50, 10], [100, 80]])
    end = start + np.array([4, 2])
    there, back = end[:2] + 3, end[:2] + 3 - [[4, 2], [20, 2]]
    np.testing.assert_allclose(round_trip_errors(start, end, there, back), [0, 16, np.inf])
    empty = np.empty((0, 2))
    assert np.isinf(round_trip_errors(start, end, empty, empty)).all()
    assert round_trip_errors(empty, empty, there, back).shape == (0,)


def test_backward_matches_far_outside_the_image_are_allowed() -> None:
    start, end = np.array([[10.0, 10], [20, 20]]), np.array([[12.0, 10], [1e18, -3e9]])
    there, back = np.array([[12.0, 10], [1e12, 5], [-1e30, 0]]), np.array([[10.0, 10], [5, 5], [0, 0]])
    np.testing.assert_allclose(round_trip_errors(start, end, there, back), [0, np.inf])


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
    np.testing.assert_allclose(round_trip_errors(start, end, there, back), expected)
