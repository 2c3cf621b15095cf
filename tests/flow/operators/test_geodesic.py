"""Geodesic distances: the kernels against the definitions, the definitions against what can be said without them."""

from contextlib import nullcontext
from types import ModuleType

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.sparse import csr_matrix
from scipy.sparse.csgraph import dijkstra
from torch import Tensor

from deepmatching.flow.operators.geodesic import FLOOR, cell_graph, distance_transform, nearest_seeds
from deepmatching.geometry.seeds import Graph
from deepmatching.kernels.registry import plain_operators
from helpers.threads import threads

quick = settings(max_examples=25)
sides = st.integers(1, 40) | st.sampled_from([63, 64, 65, 130])  # strips of 64 rows are swept together


def scene(seed: int, height: int, width: int, seeds: int) -> tuple[Tensor, Tensor]:
    """Costs between 0.05 and 1, and different pixels (column, row)."""
    generator = np.random.default_rng(seed)
    cost = generator.uniform(0.05, 1, (height, width)).astype(np.float32)
    pixels = generator.choice(height * width, min(seeds, height * width), replace=False)
    return torch.from_numpy(cost), torch.from_numpy(np.stack([pixels % width, pixels // width], axis=1))


def matrix_of(graph: Graph, seeds: int) -> csr_matrix:
    """Return the graph as a sparse matrix, without the entries that do not count."""
    starts, others, lengths = (tensor.cpu().numpy() for tensor in graph)
    number = int(starts[-1])
    return csr_matrix((lengths[:number], others[:number], starts), shape=(seeds, seeds))


@quick
@given(st.integers(0, 2**31), sides, sides, st.integers(1, 30))
def test_the_kernel_finds_the_distances_of_the_definition(seed: int, height: int, width: int, seeds: int) -> None:
    cost, pixels = scene(seed, height, width, seeds)
    distance, label = distance_transform(cost, pixels)
    with plain_operators():
        expected, expected_label = distance_transform(cost, pixels)
    np.testing.assert_allclose(distance, expected, atol=2e-3)
    assert (label == expected_label).float().mean() > 0.97  # where two seeds are equally far, either is right
    assert (distance[pixels[:, 1], pixels[:, 0]] <= cost[pixels[:, 1], pixels[:, 0]]).all()


@quick
@given(st.integers(0, 2**31), st.integers(2, 80))
def test_along_a_line_distances_are_sums(seed: int, width: int) -> None:
    cost, pixels = scene(seed, 1, width, 1)
    distance, label = distance_transform(cost, pixels)
    at = int(pixels[0, 0])
    sums = [cost[0, min(x, at) : max(x, at) + 1].sum() for x in range(width)]
    np.testing.assert_allclose(distance[0], sums, rtol=1e-5)
    assert (label == 0).all()


def test_on_even_ground_distances_are_nearly_euclidean() -> None:
    cost = torch.full((101, 101), 0.01)
    distance, _ = distance_transform(cost, torch.tensor([[50, 50]]))
    y, x = np.mgrid[:101, :101] - 50
    np.testing.assert_allclose(distance / 0.01, 1 + np.hypot(x, y), atol=2.5)


def test_an_edge_keeps_cells_apart() -> None:
    cost = torch.full((40, 60), FLOOR)
    cost[:, 30] += 1
    pixels = torch.tensor([[2, 20], [32, 20]])  # the second is nearer to most of the left half
    distance, label = distance_transform(cost, pixels)
    assert (label[:, :30] == 0).all()
    assert (label[:, 31:] == 1).all()
    starts, others, lengths = cell_graph(distance, label, len(pixels))
    assert starts.tolist() == [0, 1, 2] and others[:2].tolist() == [1, 0]
    assert float(lengths[0]) == float(lengths[1]) == pytest.approx(1 + FLOOR * 31, rel=0.01)


def test_the_number_of_threads_does_not_matter() -> None:
    given = scene(3, 300, 200, 100)
    with threads(1):
        expected = distance_transform(*given)
    with threads(3):
        assert all(map(torch.equal, distance_transform(*given), expected))


@quick
@given(st.integers(0, 2**31), sides, sides, st.integers(1, 40))
def test_graph_and_nearest_seeds(seed: int, height: int, width: int, seeds: int) -> None:
    cost, pixels = scene(seed, height, width, seeds)
    distance, label = distance_transform(cost, pixels)
    graph = cell_graph(distance, label, len(pixels))
    with plain_operators():
        expected = cell_graph(distance, label, len(pixels))
    assert len(expected[1]) == len(expected[2]) == 6 * len(pixels)  # whatever the distances are
    matrix = matrix_of(graph, len(pixels))
    np.testing.assert_array_equal(matrix.toarray(), matrix_of(expected, len(pixels)).toarray())

    number = min(7, len(pixels))
    index, near = (tensor.numpy() for tensor in nearest_seeds(graph, 7))
    with plain_operators():
        np.testing.assert_array_equal(nearest_seeds(graph, 7).distances, near)
    every = np.sort(dijkstra(matrix), axis=1)[:, :number]
    np.testing.assert_allclose(near, every, rtol=1e-5)
    reached = index >= 0  # a seed that lost its own pixel to a neighbour has no cell, and reaches none
    assert (np.isinf(near) == ~reached).all()
    along = np.take_along_axis(dijkstra(matrix), index.astype(int), axis=1)
    np.testing.assert_allclose(along[reached], near[reached], rtol=1e-5)
    assert (index[:, 0] == np.arange(len(pixels))).all()


def test_a_seed_on_an_edge_may_lose_its_pixel() -> None:
    """Two cheap ways that meet cost less than the pixel itself; the seed has no cell then, but nothing breaks."""
    cost = torch.full((9, 9), 0.001)
    cost[4, 4] = 1
    _, label = distance_transform(cost, torch.tensor([[4, 4], [0, 0]]))
    assert (label == 1).all()


@pytest.mark.parametrize("plain", [False, True])
def test_seeds_that_do_not_count_change_nothing(plain: bool) -> None:
    cost, pixels = scene(7, 20, 30, 12)
    counts = torch.arange(12) % 3 > 0
    with plain_operators() if plain else nullcontext():
        distance, label = distance_transform(cost, pixels, counts)
        expected, expected_label = distance_transform(cost, pixels[counts])
        assert torch.equal(distance, expected)
        assert torch.equal(label, torch.arange(12, dtype=torch.int32)[counts][expected_label.long()])
        index, _ = nearest_seeds(cell_graph(distance, label, 12), 12)
    alone = ~counts[:, None].expand(12, 11)
    assert (index[:, 0] == torch.arange(12)).all() and (index[:, 1:][alone] == -1).all()
    assert counts[index[counts][:, :8].long()].all() and (index[counts][:, 8:] == -1).all()


@pytest.mark.parametrize("plain", [False, True])
def test_an_infinite_length_is_no_way(plain: bool) -> None:
    graph = torch.tensor([0, 2, 4, 6]), torch.tensor([1, 2, 0, 2, 0, 1]).int(), torch.full((6,), torch.inf)
    graph[2][[0, 2]] = 1.5
    with plain_operators() if plain else nullcontext():
        index, distance = nearest_seeds(graph, 3)
    assert index.tolist() == [[0, 1, -1], [1, 0, -1], [2, -1, -1]]
    assert distance[:, 1].tolist() == [1.5, 1.5, float("inf")]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("height", "width", "seeds", "counting"), [(20, 24, 9, 1.0), (40, 35, 4, 0.7), (1, 7, 2, 1.0), (33, 3, 1, 1.0)]
)
def test_the_gpu_kernels_agree(
    height: int, width: int, seeds: int, counting: float, gpu: ModuleType, gpu_device: str
) -> None:
    """Distances in several tiles, then the nearest seeds, with fewer places than seeds that are seen."""
    cost, pixels = scene(seeds, height, width, seeds)
    cost = cost**4 + 0.001  # as edges are: little costs much
    counts = torch.rand(seeds) <= counting
    counts[0] = True
    on_device = [tensor.to(gpu_device) for tensor in (cost, pixels, counts)]
    distance, label = gpu.distance_transform(*on_device)
    expected, expected_label = distance_transform.definition(cost, pixels, counts)
    torch.testing.assert_close(distance.cpu(), expected, rtol=0, atol=2e-3)
    assert (label.cpu() == expected_label).float().mean() > 0.97
    graph = gpu.cell_graph(distance, label, seeds)
    expected_graph, entries = cell_graph.definition(distance, label, seeds), int(graph[0][-1])
    assert torch.equal(graph[0], expected_graph[0])
    assert all(torch.equal(a[:entries], b[:entries]) for a, b in zip(graph[1:], expected_graph[1:], strict=True))
    for number in (1, 5, 50):
        assert all(map(torch.equal, gpu.nearest_seeds(graph, number), nearest_seeds.definition(graph, number)))


@pytest.mark.slow
def test_the_gpu_search_is_exact_when_its_places_are_full(gpu: ModuleType, gpu_device: str) -> None:
    """A star: a search from any seed sees 40 others at once, and has 32 places."""
    lengths = 1 + torch.randperm(40).float()
    starts = torch.cat([torch.tensor([0, 40]), 40 + torch.arange(1, 41)])
    others = torch.cat([torch.arange(1, 41), torch.zeros(40, dtype=torch.int64)]).int()
    graph = starts, others, torch.cat([lengths, lengths])
    found = (t.cpu() for t in gpu.nearest_seeds(tuple(t.to(gpu_device) for t in graph), 10))
    assert all(map(torch.equal, found, nearest_seeds.definition(graph, 10)))


@pytest.mark.slow
def test_on_the_gpu_a_path_may_wind_through_many_tiles(gpu: ModuleType, gpu_device: str) -> None:
    """Walls with a gap at alternating ends; only from one corner."""
    cost = torch.full((70, 70), 0.001)
    for n, row in enumerate(range(10, 70, 20)):
        cost[row] = 100
        cost[row, 0 if n % 2 else 69] = 0.001
    pixels = torch.tensor([[0, 0]])
    distance, label = gpu.distance_transform(cost.to(gpu_device), pixels.to(gpu_device))
    expected, _ = distance_transform(cost, pixels)
    torch.testing.assert_close(distance.cpu(), expected, rtol=1e-3, atol=2e-3)
    assert not label.any()
