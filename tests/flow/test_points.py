"""Where a flow takes points."""

from pathlib import Path

import numpy as np
import pytest

from deepmatching.flow.points import PointMatches, points_through
from deepmatching.flow.result import FlowResult
from deepmatching.io.points import read_points


def affine_flow(rows: int = 12, columns: int = 16) -> np.ndarray:
    y, x = np.indices((rows, columns), dtype=np.float32)
    return np.stack([0.01 * x + 0.02 * y + 1, -0.03 * x + 2], axis=2)


def result(flow: np.ndarray, occlusion: np.ndarray | None = None) -> FlowResult:
    ramp = np.broadcast_to(np.linspace(0, 1, flow.shape[1], dtype=np.float32), flow.shape[:2])
    return FlowResult(flow, np.ascontiguousarray(ramp), occlusion=occlusion)


def test_between_pixels_an_affine_motion_is_exact(rng: np.random.Generator) -> None:
    points = rng.uniform(0, (15, 11), (50, 2))
    found = points_through(result(affine_flow()), points)
    x, y = points.T
    expected = points + np.stack([0.01 * x + 0.02 * y + 1, -0.03 * x + 2], axis=1)
    np.testing.assert_allclose(found.points, expected, atol=1e-5)
    np.testing.assert_allclose(found.confidence, x / 15, atol=1e-6)


def test_beyond_the_outermost_centres_a_point_moves_as_the_nearest_pixel() -> None:
    found = points_through(result(affine_flow()), np.array([[-0.5, -0.5], [15.5, 11.5]]))
    expected = affine_flow()[[0, 11], [0, 15]]
    np.testing.assert_allclose(found.points - found.points0, expected, atol=1e-5)


def test_at_the_edge_of_an_object_a_point_moves_with_its_side_and_not_with_the_mean() -> None:
    flow = np.zeros((8, 8, 2), np.float32)
    flow[:, 4:] = 10, 0
    found = points_through(result(flow), np.array([[3.4, 2.5], [3.6, 2.5]]), (8, 40))
    assert (found.points - found.points0).round(4).tolist() == [[0, 0], [10, 0]]


def test_a_point_is_hidden_where_it_leaves_the_image_or_the_flow_says_so() -> None:
    flow, occlusion = np.zeros((8, 8, 2), np.float32), np.zeros((8, 8), np.float32)
    flow[:, :3], occlusion[4:] = (-1, 0), 1
    places = np.array([[0.2, 1.0], [2, 1], [6, 1], [6, 6]])
    assert points_through(result(flow, occlusion), places).visible.tolist() == [False, True, True, False]
    assert points_through(result(flow), places).visible.tolist() == [False, True, True, True]
    assert points_through(result(flow), places, (8, 5)).visible.tolist() == [False, True, False, False]


@pytest.mark.parametrize("size", [(1, 1), (1, 5), (5, 1)])
def test_an_image_of_one_row_or_column_has_points_too(size: tuple[int, int]) -> None:
    found = points_through(result(np.ones((*size, 2), np.float32)), np.array([[0.25, -0.25]]))
    assert found.points.tolist() == [[1.25, 0.75]]


def test_a_file_holds_both_ends_the_confidence_and_whether_the_point_is_visible(tmp_path: Path) -> None:
    ends = np.float32([[5.5, 6], [7, 8]])
    found = PointMatches(np.float32([[1, 2], [3, 4]]), ends, np.float32([0.5, 1]), np.array([True, False]))
    assert found.as_text() == "1 2 5.5 6 0.5 1\n3 4 7 8 1 0\n"
    found.save(tmp_path / "p.csv")
    assert (tmp_path / "p.csv").read_text().startswith("x0,y0,x1,y1,confidence,visible\n1,2,5.5,6,0.5,1\n")
    found.save(tmp_path / "p.txt")
    assert read_points(tmp_path / "p.txt").tolist() == [[1, 2], [3, 4]]
    assert len(found) == 2 and "2 points, 1 of them visible" in repr(found)
