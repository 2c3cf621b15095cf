"""Geodesic distances: the kernels against the definitions, the definitions against what can be said without them."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.sparse import csr_matrix
from scipy.sparse.csgraph import dijkstra

from deepmatching.operators.geodesic import FLOOR, cell_graph, cells_of, distance_transform, nearest_seeds
from deepmatching.operators.kernels import plain_operators

quick = settings(max_examples=25)
sides = st.integers(1, 40) | st.sampled_from([63, 64, 65, 130])  # strips of 64 rows are swept together


def scene(seed: int, height: int, width: int, seeds: int) -> tuple[np.ndarray, np.ndarray]:
    """Costs between 0.05 and 1, and different pixels (column, row)."""
    generator = np.random.default_rng(seed)
    cost = generator.uniform(0.05, 1, (height, width)).astype(np.float32)
    pixels = generator.choice(height * width, min(seeds, height * width), replace=False)
    return cost, np.stack([pixels % width, pixels // width], axis=1)


@quick
@given(st.integers(0, 2**31), sides, sides, st.integers(1, 30))
def test_the_kernel_finds_the_distances_of_the_definition(seed: int, height: int, width: int, seeds: int) -> None:
    cost, pixels = scene(seed, height, width, seeds)
    distance, label = distance_transform(cost, pixels)
    with plain_operators():
        expected, expected_label = distance_transform(cost, pixels)
    np.testing.assert_allclose(distance, expected, atol=2e-3)
    assert np.mean(label == expected_label) > 0.97  # where two seeds are equally far, either is right
    assert (distance[pixels[:, 1], pixels[:, 0]] <= cost[pixels[:, 1], pixels[:, 0]]).all()


@quick
@given(st.integers(0, 2**31), st.integers(2, 80))
def test_along_a_line_distances_are_sums(seed: int, width: int) -> None:
    cost, pixels = scene(seed, 1, width, 1)
    distance, label = distance_transform(cost, pixels)
    at = pixels[0, 0]
    sums = [cost[0, min(x, at) : max(x, at) + 1].sum() for x in range(width)]
    np.testing.assert_allclose(distance[0], sums, rtol=1e-5)
    assert (label == 0).all()


def test_on_even_ground_distances_are_nearly_euclidean() -> None:
    cost = np.full((101, 101), 0.01, dtype=np.float32)
    distance, _ = distance_transform(cost, np.array([[50, 50]]))
    y, x = np.mgrid[:101, :101] - 50
    np.testing.assert_allclose(distance / 0.01, 1 + np.hypot(x, y), atol=2.5)


def test_an_edge_keeps_cells_apart() -> None:
    edges = np.zeros((40, 60), dtype=np.float32)
    edges[:, 30] = 1
    cells = cells_of(edges, np.array([[2, 20], [32, 20]]))  # the second is nearer to most of the left half
    assert (cells.label[:, :30] == 0).all()
    assert (cells.label[:, 31:] == 1).all()
    starts, others, lengths = cells.graph
    assert starts.tolist() == [0, 1, 2] and others.tolist() == [1, 0]
    assert lengths[0] == lengths[1] == pytest.approx(1 + FLOOR * 31, rel=0.01)


def test_the_number_of_threads_does_not_matter() -> None:
    cost, pixels = scene(3, 300, 200, 100)
    threads = torch.get_num_threads()
    try:
        results = []
        for number in (1, 3):
            torch.set_num_threads(number)
            results.append(distance_transform(cost, pixels))
    finally:
        torch.set_num_threads(threads)
    for one, other in zip(*results, strict=True):
        np.testing.assert_array_equal(one, other)


@quick
@given(st.integers(0, 2**31), sides, sides, st.integers(1, 40))
def test_graph_and_nearest_seeds(seed: int, height: int, width: int, seeds: int) -> None:
    cost, pixels = scene(seed, height, width, seeds)
    distance, label = distance_transform(cost, pixels)
    starts, others, lengths = cell_graph(distance, label, len(pixels))
    with plain_operators():
        expected = cell_graph(distance, label, len(pixels))
    matrix = csr_matrix((lengths, others, starts), shape=(len(pixels),) * 2)
    np.testing.assert_array_equal(matrix.toarray(), csr_matrix(expected[::-1], shape=matrix.shape).toarray())

    number = min(7, len(pixels))
    index, near = nearest_seeds((starts, others, lengths), 7)
    with plain_operators():
        np.testing.assert_array_equal(nearest_seeds((starts, others, lengths), 7).distances, near)
    every = np.sort(dijkstra(matrix), axis=1)[:, :number]
    np.testing.assert_allclose(near, every, rtol=1e-5)
    reached = index >= 0  # a seed that lost its own pixel to a neighbour has no cell, and reaches none
    assert (np.isinf(near) == ~reached).all()
    along = np.take_along_axis(dijkstra(matrix), index.astype(int), axis=1)
    np.testing.assert_allclose(along[reached], near[reached], rtol=1e-5)
    assert (index[:, 0] == np.arange(len(pixels))).all()


def test_a_seed_on_an_edge_may_lose_its_pixel() -> None:
    """Two cheap ways that meet cost less than the pixel itself; the seed has no cell then, but nothing breaks."""
    cost = np.full((9, 9), 0.001, dtype=np.float32)
    cost[4, 4] = 1
    _, label = distance_transform(cost, np.array([[4, 4], [0, 0]]))
    assert (label == 1).all()


def test_one_seed_has_no_neighbours() -> None:
    cells = cells_of(np.zeros((5, 6), dtype=np.float32), np.array([[1, 2]]))
    assert len(cells.graph[1]) == 0
    assert nearest_seeds(cells.graph, 10).seeds.tolist() == [[0]]
