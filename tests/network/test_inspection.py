"""The maps, the path and the quadtree of one point agree with the volumes of the whole pair."""

from itertools import pairwise, product

import numpy as np
import pytest
import torch
from torch import Tensor

from deepmatching.errors import DeepMatchingError, OutOfMemoryError
from deepmatching.geometry.discretization import CORNERS, Geometry
from deepmatching.network.descriptors import HOG
from deepmatching.network.inspection import NO_PATCH, Inspection, Trace, trace_bytes
from deepmatching.network.network import Network, Pyramid
from deepmatching.network.operators.decoding import decode

#: radius, levels, size of the first and the second image
CASES = [
    (16, None, (72, 104), (72, 104)),
    (12, 2, (40, 56), (64, 48)),
    (None, None, (72, 104), (64, 96)),
    (None, 1, (40, 40), (56, 40)),
    (8, 0, (32, 40), (32, 40)),
]


def pair_of(size0: tuple[int, int], size1: tuple[int, int]) -> tuple[Tensor, Tensor]:
    """Return a noise picture and a part of it, moved and disturbed."""
    whole = torch.rand(1, 1, 120, 140)
    other = torch.roll(whole, (3, -5), (2, 3)) * 0.8 + 0.2 * torch.rand(1, 1, 120, 140)
    return whole[:, :, : size0[0], : size0[1]], other[:, :, : size1[0], : size1[1]]


@pytest.fixture(params=CASES, ids=str)
def looked_at(request: pytest.FixtureRequest) -> tuple[Pyramid, Trace]:
    """Return the volumes of a pair, and its trace."""
    radius, levels, size0, size1 = request.param
    network = Network(HOG(), radius, levels)
    images = pair_of(size0, size1)
    with torch.no_grad():
        pyramid = network(*images)
        assert pyramid.cells is not None
        return pyramid, Trace(network, *pyramid.cells, pyramid.geometry)


def inspections(trace: Trace) -> list[Inspection]:
    """Every third point of the grid, and its corners."""
    rows, columns = trace.geometry.grid(0)
    points = [*[divmod(n, columns) for n in range(0, rows * columns, 3)], (0, columns - 1), (rows - 1, columns - 1)]
    return [trace.inspect(*index) for index in points]


def test_the_maps_are_those_of_the_volumes(looked_at: tuple[Pyramid, Trace]) -> None:
    pyramid, trace = looked_at
    for inspection in inspections(trace):
        assert [item.level for item in inspection.maps] == list(range(pyramid.geometry.L + 1))
        for step, item in zip(inspection.path, inspection.maps, strict=True):
            for volumes, found in ((pyramid.S, item.S), (pyramid.Q, item.Q)):
                np.testing.assert_allclose(found, volumes[item.level][0][step.index].numpy(), rtol=1e-5, atol=1e-6)


def test_a_map_says_where_its_cells_lie(looked_at: tuple[Pyramid, Trace]) -> None:
    pyramid, trace = looked_at
    geometry = pyramid.geometry
    inspection = trace.inspect(1, 2)
    for step, item in zip(inspection.path, inspection.maps, strict=True):
        ys, xs = geometry.target_points(item.level)
        row, column = step.index if geometry.relative else (0, 0)
        x, y = item.first
        assert (x, y) == (float(xs[column][0]), float(ys[row][0]))
        assert x + item.step * (item.S.shape[1] - 1) == float(xs[column][-1])


def test_the_path_ends_at_the_match_and_its_scores_add_up(looked_at: tuple[Pyramid, Trace]) -> None:
    pyramid, trace = looked_at
    decoded = decode(pyramid.Q[0].clone(), pyramid.geometry, "none")
    for inspection in inspections(trace):
        path, index = inspection.path, inspection.index
        assert [step.level for step in path] == list(range(pyramid.geometry.L + 1))
        assert path[0].q == tuple(decoded.points1[0][index].tolist())
        assert pytest.approx(float(decoded.scores[0][index]), rel=1e-5) == path[0].Q
        for n, step in enumerate(path):
            assert pytest.approx(sum(above.S for above in path[n:]), rel=1e-5) == step.Q


def test_each_patch_of_the_path_is_a_child_of_the_next_and_moves_by_one_cell_at_most(
    looked_at: tuple[Pyramid, Trace],
) -> None:
    geometry = looked_at[0].geometry
    for inspection in inspections(looked_at[1]):
        for child, parent in pairwise(inspection.path):
            half = 2**child.level * geometry.delta / 2
            assert [abs(a - b) for a, b in zip(child.p, parent.p, strict=True)] == [half, half]
            for axis in (0, 1):
                moved = (child.q[axis] - child.p[axis]) - (parent.q[axis] - parent.p[axis])
                assert abs(moved) <= 2**child.level * geometry.eta


def test_the_second_peak_is_the_best_score_a_patch_away(looked_at: tuple[Pyramid, Trace]) -> None:
    pyramid, trace = looked_at
    for inspection in inspections(trace):
        best, scores, (left, top) = inspection.path[0], inspection.maps[0].Q, inspection.maps[0].first
        ys, xs = (start + 2 * np.arange(n) for start, n in zip((top, left), scores.shape, strict=True))
        near = (np.abs(ys - best.q[1]) < 8)[:, None] & (np.abs(xs - best.q[0]) < 8)[None]
        off = (ys >= pyramid.geometry.used1[0])[:, None] | (xs >= pyramid.geometry.used1[1])[None]
        expected = np.where(near | off, -np.inf, scores).max()
        assert (inspection.second.Q if inspection.second else -np.inf) == expected


def positions_of(inspection: Inspection, geometry: Geometry) -> list[list[tuple[float, ...] | None]]:
    """Of each level from the top down: centre and displacement (x, y, u, v) of the patches, as the page reads them."""
    top, codes = inspection.path[-1], iter(inspection.tree.tolist())
    levels: list[list[tuple[float, ...] | None]] = [[(*top.p, top.q[0] - top.p[0], top.q[1] - top.p[1])]]
    for l in reversed(range(top.level)):
        half, stride = 2**l * geometry.delta / 2, geometry.stride(l)
        levels.append([])
        for (x, y, u, v), (down, right) in product((node or [np.nan] * 4 for node in levels[-2]), CORNERS):
            dy, dx = divmod(code := next(codes), 3)
            moved = (x + right * half, y + down * half, u + stride * (dx - 1), v + stride * (dy - 1))
            assert code == NO_PATCH or np.isfinite(moved).all()
            levels[-1].append(None if code == NO_PATCH else moved)
    assert next(codes, None) is None
    return levels


def test_every_patch_of_the_quadtree_is_the_best_one_near_its_parent(looked_at: tuple[Pyramid, Trace]) -> None:
    """The oracle: among the cells within η₀ of where the parent puts the child, S_l is highest where the tree says."""
    pyramid, trace = looked_at
    geometry = pyramid.geometry
    inspection = trace.inspect(*(side // 2 for side in geometry.grid(0)))
    levels = positions_of(inspection, geometry)
    assert len(levels) == geometry.L + 1
    for depth, (parents, children) in enumerate(pairwise(levels)):
        l = geometry.L - 1 - depth
        ys, xs = (points.tolist() for points in geometry.reference_points(l))
        for n, child in enumerate(children):
            if child is None:
                continue
            x, y, u, v = child
            parent = parents[n // 4]
            assert parent is not None
            i, j = ys.index(y), xs.index(x)
            rows, columns = (
                points[at if geometry.relative else 0].tolist()
                for points, at in zip(geometry.target_points(l), (i, j), strict=True)
            )
            near = {
                (a, b): float(pyramid.S[l][0, i, j, a, b])
                for a, q in enumerate(rows)
                for b, r in enumerate(columns)
                if abs(q - y - parent[3]) <= geometry.stride(l) and abs(r - x - parent[2]) <= geometry.stride(l)
            }
            a, b = max(near, key=lambda cell: near[cell])
            assert (columns[b] - x, rows[a] - y) == pytest.approx((u, v))


def test_a_point_off_the_grid_is_refused(looked_at: tuple[Pyramid, Trace]) -> None:
    pyramid, trace = looked_at
    rows, columns = pyramid.geometry.grid(0)
    for index in ((-1, 0), (0, columns), (rows, 0)):
        with pytest.raises(DeepMatchingError, match="There is no reference point"):
            trace.inspect(*index)


def test_a_trace_that_does_not_fit_is_refused_before_anything_is_allocated() -> None:
    network, image = Network(HOG(), 16), torch.rand(1, 1, 64, 64)
    geometry = network.geometry_of(image, image)
    with pytest.raises(OutOfMemoryError):
        Trace(network, *network.describe(image, image, geometry), geometry, memory=1000)


def test_a_trace_takes_the_memory_that_is_predicted(looked_at: tuple[Pyramid, Trace]) -> None:
    pyramid, trace = looked_at
    described = sum(4 * cells.numel() for cells in (trace.cells0, trace.cells1))
    assert trace.bytes == trace_bytes(pyramid.geometry) + described
