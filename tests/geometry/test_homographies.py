"""Transformations of the plane, and the weighted affine fit."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from deepmatching.geometry import homographies
from deepmatching.geometry.homographies import apply, centre, inside, jacobians, resizing, rotation_and_zoom, similarity

PERSPECTIVE = np.array([[0.9, -0.2, 30.0], [0.1, 1.1, -12.0], [2e-4, -1e-4, 1.0]])
POINTS = np.array([[0.0, 0.0], [100.0, 40.0], [17.5, 220.25]])


def test_a_point_is_divided_by_its_third_coordinate() -> None:
    x, y, w = PERSPECTIVE @ (100.0, 40.0, 1.0)
    assert apply(PERSPECTIVE, POINTS)[1] == pytest.approx((x / w, y / w))


def test_points_beyond_the_horizon_go_nowhere() -> None:
    assert np.isnan(apply(np.array([[1, 0, 0], [0, 1, 0], [-0.01, 0, 1.0]]), np.array([[150.0, 0.0]]))).all()


def test_the_derivative_is_that_of_finite_differences() -> None:
    step = 1e-4
    for axis in (0, 1):
        move = np.eye(2)[axis] * step
        numeric = (apply(PERSPECTIVE, POINTS + move) - apply(PERSPECTIVE, POINTS - move)) / (2 * step)
        assert jacobians(PERSPECTIVE, POINTS)[:, :, axis] == pytest.approx(numeric, abs=1e-6)


@pytest.mark.parametrize(("rotation", "zoom"), [(0, 1), (40, 1.5), (-150, 0.25), (180, 2)])
def test_a_similarity_has_its_rotation_and_zoom_and_keeps_its_centre(rotation: float, zoom: float) -> None:
    matrix = similarity(rotation, zoom, np.array([3.0, 4.0]), np.array([50.0, 60.0]))
    radians = math.radians(rotation)  # from x to y
    expected = np.array([[50, 60], [50 + zoom * math.cos(radians), 60 + zoom * math.sin(radians)]])
    assert apply(matrix, np.array([[3.0, 4.0], [4.0, 4.0]])) == pytest.approx(expected)
    turned, zoomed = rotation_and_zoom(matrix[:2, :2])
    assert zoomed == pytest.approx(zoom)
    assert math.cos(math.radians(turned - rotation)) == pytest.approx(1)


def test_a_resized_image_keeps_its_corners() -> None:
    corners = np.array([[-0.5, -0.5], [19.5, 9.5]])
    assert apply(resizing((10, 20), (5, 60)), corners) == pytest.approx(np.array([[-0.5, -0.5], [59.5, 4.5]]))


def test_an_image_covers_half_a_pixel_around_the_centres() -> None:
    points = np.array([[-0.5, -0.5], [-0.6, 0], [7.4, 3.4], [7.5, 3.4], [np.nan, 0]])
    assert inside(points, (4, 8)).tolist() == [True, False, True, False, False]
    assert centre((4, 8)) == pytest.approx((3.5, 1.5))


def test_an_affine_fit_has_gradients() -> None:
    offsets, values = torch.randn(2, 3, 6, 2, dtype=torch.float64).requires_grad_()
    weights = torch.rand(3, 6, dtype=torch.float64).requires_grad_()
    assert torch.autograd.gradcheck(lambda *tensors: homographies.affine_fit(*tensors, 0.1), (offsets, values, weights))


@settings(max_examples=25)
@given(st.integers(0, 2**31), st.integers(4, 9), st.floats(0, 10))
def test_an_affine_fit_is_the_least_squares_solution(seed: int, number: int, ridge: float) -> None:
    generator = np.random.default_rng(seed)
    offsets, values = generator.normal(size=(number, 2)), generator.normal(size=(number, 3))
    weights = generator.uniform(0.1, 1, number)
    rows = np.concatenate([offsets, np.ones((number, 1))], axis=1) * weights[:, None]
    rows = np.concatenate([rows, np.sqrt(ridge) * np.eye(3)[:2]])
    right = np.concatenate([values * weights[:, None], np.zeros((2, 3))])
    found = homographies.affine_fit(*(torch.from_numpy(a) for a in (offsets, values, weights)), ridge)
    np.testing.assert_allclose(found, np.linalg.lstsq(rows, right, rcond=None)[0], atol=1e-6)


def test_points_without_weight_do_not_count() -> None:
    offsets, values = torch.randn(2, 5, 2)
    weights = torch.tensor([1.0, 2.0, 0.0, 1.0, 1.0])
    some = weights > 0
    expected = homographies.affine_fit(offsets[some], values[some], weights[some])
    torch.testing.assert_close(homographies.affine_fit(offsets, values, weights), expected)
