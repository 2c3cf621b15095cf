"""Homography, fundamental and essential matrix of matches whose geometry is known."""

import json
from collections.abc import Callable
from typing import Any

import cv2
import numpy as np
import pytest
import torch

from deepmatching.errors import DeepMatchingError
from deepmatching.geometry.homographies import apply
from deepmatching.geometry.two_view import find_essential, find_fundamental, find_homography
from deepmatching.matches import Matches

K0 = np.array([[700.0, 0, 320], [0, 710, 240], [0, 0, 1]])
K1 = np.array([[500.0, 0, 300], [0, 505, 200], [0, 0, 1]])
ROTATION = cv2.Rodrigues(np.array([0.1, -0.2, 0.05]))[0]
TRANSLATION = np.array([0.8, 0.1, -0.3])
HOMOGRAPHY = np.array([[0.9, -0.2, 30.0], [0.1, 1.1, -12.0], [2e-4, -1e-4, 1.0]])
RIGHT = 200  # the first matches are right

Points = tuple[np.ndarray, np.ndarray]


def with_wrong_ones(points0: np.ndarray, points1: np.ndarray, count: int = 150) -> Points:
    generator = np.random.default_rng(1)
    noise, wrong = generator.normal(0, 0.3, points1.shape), generator.uniform(0, 500, (2, count, 2))
    return np.concatenate([points0, wrong[0]]), np.concatenate([points1 + noise, wrong[1]])


@pytest.fixture
def planar() -> Points:
    start = np.random.default_rng(0).uniform(0, 500, (RIGHT, 2))
    return with_wrong_ones(start, apply(HOMOGRAPHY, start))


@pytest.fixture
def spatial() -> Points:
    points = np.random.default_rng(0).uniform((-2, -2, 4), (2, 2, 9), (RIGHT, 3))
    views = points @ K0.T, (points @ ROTATION.T + TRANSLATION) @ K1.T
    return with_wrong_ones(*(view[:, :2] / view[:, 2:] for view in views))


def angle(first: np.ndarray, second: np.ndarray) -> float:
    cosine = np.sum(first * second) / np.linalg.norm(first) / np.linalg.norm(second)
    return float(np.degrees(np.arccos(np.clip(cosine, -1, 1))))


def test_a_homography_is_found_among_wrong_matches(planar: Points) -> None:
    found = find_homography(*planar)
    corners = np.array([[0.0, 0], [500, 0], [0, 500], [500, 500]])
    assert np.abs(apply(found.matrix, corners) - apply(HOMOGRAPHY, corners)).max() < 1
    assert found.inliers[:RIGHT].mean() > 0.99 and found.inliers[RIGHT:].mean() < 0.05
    assert found.rotation is None and found.translation is None


def test_matches_fit_a_fundamental_matrix_if_they_lie_near_their_lines(spatial: Points) -> None:
    found = find_fundamental(*spatial)
    first, second = (np.hstack([points, np.ones((len(points), 1))]) for points in spatial)
    lines = first @ found.matrix.T
    distance = np.abs((second * lines).sum(axis=1)) / np.hypot(lines[:, 0], lines[:, 1])
    assert np.median(distance[:RIGHT]) < 0.5
    assert found.inliers[:RIGHT].mean() > 0.9 and found.inliers[RIGHT:].mean() < 0.1
    assert 1.5 * distance[found.inliers].max() < distance[~found.inliers].mean()


def test_the_essential_matrix_comes_with_the_motion_of_the_camera(spatial: Points) -> None:
    found = find_essential(*spatial, K0, K1)
    assert found.rotation is not None and found.translation is not None
    assert np.degrees(np.linalg.norm(cv2.Rodrigues(found.rotation.T @ ROTATION)[0])) < 0.5
    assert angle(found.translation, TRANSLATION) < 2
    x, y, z = found.translation
    expected = np.array([[0, -z, y], [z, 0, -x], [-y, x, 0]]) @ found.rotation
    assert min(angle(found.matrix, expected), angle(-found.matrix, expected)) < 0.01
    assert found.inliers[:RIGHT].mean() > 0.9 and found.inliers[RIGHT:].mean() < 0.1


def test_the_same_matches_always_give_the_same_result(planar: Points, spatial: Points) -> None:
    for find, points in ((find_homography, planar), (find_fundamental, spatial)):
        cv2.setRNGSeed(0)
        first = find(*points)
        cv2.setRNGSeed(1)
        second = find(*points)
        assert np.array_equal(first.matrix, second.matrix) and np.array_equal(first.inliers, second.inliers)


def test_a_larger_threshold_takes_more_matches(planar: Points) -> None:
    counts = [find_homography(*planar, threshold).inliers.sum() for threshold in (0.2, 3.0, 50.0)]
    assert counts[0] < counts[1] < counts[2]


def test_a_result_can_be_written_as_json(spatial: Points) -> None:
    found = find_essential(*spatial, K0, K1, 2.0)
    content, count = json.loads(json.dumps(found.to_json())), found.inliers.sum()
    assert np.array_equal(content["matrix"], found.matrix) and len(content["translation"]) == 3
    assert (content["inliers"], content["matches"], content["threshold"]) == (count, 350, 2.0)
    assert repr(found) == f"<essential: {count} of 350 matches fit within 2 px>"


@pytest.mark.parametrize(
    ("find", "fewest"),
    [(find_homography, 4), (find_fundamental, 8), (lambda *points: find_essential(*points, K0, K1), 6)],
)
def test_too_few_or_unfit_matches_are_one_sentence(find: Callable[..., Any], fewest: int, spatial: Points) -> None:
    first, second = spatial
    with pytest.raises(DeepMatchingError, match=f"at least {fewest}, not {fewest - 1}"):
        find(first[: fewest - 1], second[: fewest - 1])
    with pytest.raises(DeepMatchingError, match="at least"):
        find(np.zeros((0, 2)), np.zeros((0, 2)))
    for useless in (np.zeros((20, 2)), np.full((20, 2), np.nan)):
        with pytest.raises(DeepMatchingError, match="do not fit"):
            find(useless, useless)


@pytest.mark.parametrize("camera", [np.eye(2), np.zeros((3, 3)), np.full((3, 3), np.nan), [[1], "x"]])
def test_a_camera_matrix_must_be_one(camera: Any, spatial: Points) -> None:
    with pytest.raises(DeepMatchingError, match="K1"):
        find_essential(*spatial, K0, camera)


@pytest.mark.parametrize("threshold", [0, -1, float("nan"), "far"])
def test_a_threshold_must_be_above_zero(threshold: Any, planar: Points) -> None:
    with pytest.raises(DeepMatchingError, match="threshold"):
        find_homography(*planar, threshold)


def test_the_geometry_of_matches_marks_those_that_fit() -> None:
    start = torch.rand(60, 2, generator=torch.Generator().manual_seed(0)) * 300
    end = 1.1 * start + torch.tensor([5.0, -3.0])
    end[50:] += 40
    found = Matches(start, end, torch.ones(60))
    plane = found.homography()
    np.testing.assert_allclose(plane.matrix, [[1.1, 0, 5], [0, 1.1, -3], [0, 0, 1]], atol=1e-3)
    assert plane.inliers.tolist() == [True] * 50 + [False] * 10 and len(found[plane.inliers]) == 50
    assert found.fundamental(threshold=2).threshold == 2
    camera = np.array([[300.0, 0, 150], [0, 300, 150], [0, 0, 1]])
    assert found.essential(camera, camera).rotation.shape == (3, 3)  # type: ignore[union-attr]
    with pytest.raises(DeepMatchingError, match="at least 4"):
        found[:3].homography()
