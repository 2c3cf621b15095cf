"""Fits of transformations to matches that are partly wrong, and images seen through a transformation."""

import cv2
import numpy as np
import pytest
import torch

from deepmatching.geometry.homographies import apply, centre, similarity
from deepmatching.search.settings import SETTINGS
from deepmatching.search.transformations import fit, pixels_of, resized, tensor_of, visible_box, warped

PLANE = np.array([[0.8, -0.3, 90.0], [0.25, 0.7, 20.0], [4e-4, -3e-4, 1.0]])
GRID = np.stack(np.meshgrid(np.arange(8.0, 300, 16), np.arange(8.0, 200, 16)), axis=2).reshape(-1, 2)


def matches_of(matrix: np.ndarray, wrong: float) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the grid, where a transformation takes it (a share of its points anywhere), and which are right."""
    generator = np.random.default_rng(0)
    ends = apply(matrix, GRID) + generator.normal(0, 0.2, GRID.shape)
    is_right = generator.random(len(GRID)) >= wrong
    ends[~is_right] = generator.uniform(0, 400, (int((~is_right).sum()), 2))
    return GRID, ends, is_right


@pytest.mark.parametrize("matrix", [similarity(130, 0.4, np.zeros(2), np.array([200.0, 90.0])), PLANE])
def test_a_fit_ignores_wrong_matches(matrix: np.ndarray) -> None:
    start, end, _ = matches_of(matrix, wrong=0.4)
    found = fit(start, end, within=1.0)
    assert found is not None
    assert np.abs(apply(found, GRID) - apply(matrix, GRID)).max() < 1


def test_an_affinity_is_all_that_few_points_can_tell() -> None:
    start, end, _ = matches_of(PLANE, wrong=0)
    found = fit(start[:20], end[:20], within=2.0)
    assert found is not None and found[2].tolist() == [0, 0, 1]


def test_too_few_matches_and_mirrored_ones_have_no_transformation() -> None:
    start, end, _ = matches_of(PLANE, wrong=0)
    assert fit(start[:5], end[:5], within=2.0) is None
    assert fit(start, start * (-1.0, 1.0), within=2.0) is None


def test_the_visible_part_is_the_box_of_all_points_that_stay_in_the_image() -> None:
    matrix = similarity(30, 2, np.array([100.0, 80.0]), np.array([60.0, 50.0]))
    box = visible_box(matrix, (200, 300), (110, 130))
    assert box is not None
    points = np.stack(np.meshgrid(np.arange(300.0), np.arange(200.0)), axis=2).reshape(-1, 2)
    ends = apply(matrix, points)
    seen = points[((ends >= 0) & (ends <= (129, 109))).all(axis=1)]
    top, left, bottom, right = box
    assert (seen >= (left - 8, top - 8)).all() and (seen < (right + 8, bottom + 8)).all()
    assert top >= seen[:, 1].min() - 8 and left >= seen[:, 0].min() - 8
    assert all(side % 8 == 0 for side in (top, left))


def test_a_transformation_out_of_the_image_shows_nothing() -> None:
    assert visible_box(similarity(0, 1, np.zeros(2), np.array([900.0, 0.0])), (100, 100), (100, 100)) is None


def blob(size: tuple[int, int], x: float, y: float) -> np.ndarray:
    rows, columns = np.mgrid[: size[0], : size[1]]
    return np.exp(-((columns - x) ** 2 + (rows - y) ** 2) / 18)[..., None].astype(np.float32)


def place_of(pixels: np.ndarray) -> tuple[float, float]:
    rows, columns = np.mgrid[: pixels.shape[0], : pixels.shape[1]]
    weights = pixels[..., 0] / pixels[..., 0].sum()
    return float((columns * weights).sum()), float((rows * weights).sum())


def test_a_warped_image_shows_a_point_where_the_transformation_takes_it() -> None:
    matrix = similarity(35, 1.2, np.array([30.0, 20.0]), np.array([45.0, 50.0]))
    seen = warped(blob((60, 80), 34.25, 27.5), matrix, (90, 100)) - 0
    seen[cv2.warpPerspective(np.ones((60, 80), np.float32), matrix, (100, 90)) < 1] = 0
    assert place_of(seen) == pytest.approx(apply(matrix, np.array([[34.25, 27.5]]))[0], abs=0.05)


def test_a_smaller_image_shows_a_point_where_its_transformation_takes_it() -> None:
    smaller, frame = resized(blob((60, 80), 34.25, 27.5), 0.5)
    assert smaller.shape == (30, 40, 1)
    assert place_of(smaller) == pytest.approx(apply(frame, np.array([[34.25, 27.5]]))[0], abs=0.02)


def test_what_lies_beyond_the_image_is_grey() -> None:
    turned = warped(np.zeros((20, 20, 3), np.float32), similarity(45, 1, centre((20, 20)), centre((30, 30))), (30, 30))
    assert turned.shape == (30, 30, 3)
    assert (turned[0, 0] == SETTINGS.beyond).all() and (turned[15, 15] == 0).all()


@pytest.mark.parametrize("channels", [1, 3])
def test_an_image_becomes_pixels_and_back(channels: int) -> None:
    image = torch.rand(channels, 5, 7)
    assert pixels_of(image).shape == (5, 7, channels)
    assert torch.equal(tensor_of(pixels_of(image)), image)
