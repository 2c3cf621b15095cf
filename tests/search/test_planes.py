"""Planes of sparse features."""

import cv2
import numpy as np
import pytest

from deepmatching.geometry.homographies import apply, centre, resizing, similarity
from deepmatching.search.planes import planes, sparse_matches
from deepmatching.search.verification import on_planes
from helpers.synthetic_pictures import draw_photo

SIZE = (320, 416)


def photo(seed: int) -> np.ndarray:
    return draw_photo(seed, *SIZE).astype(np.float32) / 255


@pytest.mark.parametrize("side", [0, 1])
def test_a_squeezed_and_turned_image_has_matching_features_whichever_of_the_two_it_is(side: int) -> None:
    picture, narrow = photo(3), (SIZE[0], SIZE[1] // 3)
    squeezed = cv2.resize(picture, narrow[::-1], interpolation=cv2.INTER_AREA)
    squeezed, turn = np.ascontiguousarray(np.rot90(squeezed, -1)), similarity(90, 1, np.zeros(2), np.array([319.0, 0]))
    images, matrix = (picture, squeezed), turn @ resizing(SIZE, narrow)
    if side == 0:
        images, matrix = images[::-1], np.linalg.inv(matrix)
    points0, points1 = sparse_matches(images)
    found, follows = next(planes(points0, points1, 5.0))
    assert len(follows) > 0.8 * len(points0)
    ends = points0[follows]
    assert np.median(np.hypot(*(apply(found, ends) - apply(matrix, ends)).T)) < 1.5


def test_unrelated_and_empty_images_have_no_common_plane() -> None:
    for second in (photo(5), np.full((*SIZE, 3), 0.5, np.float32)):
        assert not list(planes(*sparse_matches((photo(4), second)), 5.0))


def test_images_that_are_too_small_for_features_have_no_candidate() -> None:
    images = np.zeros((1, 1, 3)), np.zeros((1, 40, 3))
    assert on_planes(images, images) == []


def test_a_plane_is_in_the_pixels_of_the_reduced_images_though_only_the_originals_show_its_features() -> None:
    turn, small = similarity(40, 1, centre(SIZE), centre(SIZE)), (SIZE[0] // 8, SIZE[1] // 8)
    originals = photo(3), cv2.warpPerspective(photo(3), turn, SIZE[::-1])
    images = cv2.resize(originals[0], (208, 160)), cv2.resize(originals[1], small[::-1], interpolation=cv2.INTER_AREA)
    assert not on_planes(images, images)
    (found, *_) = on_planes(images, originals)
    truth = resizing(SIZE, small) @ turn @ np.linalg.inv(resizing(SIZE, (160, 208)))
    assert np.median(np.hypot(*(apply(truth, found.points0) - found.points1).T)) < 0.25


def test_each_plane_is_found_among_the_matches_that_the_ones_before_leave(rng: np.random.Generator) -> None:
    points0 = rng.uniform(0, 300, (90, 2))
    large, small = similarity(30, 1.2, np.zeros(2), np.array([50.0, 0])), similarity(-60, 0.8, np.zeros(2), np.ones(2))
    points1 = np.concatenate([apply(large, points0[:50]), apply(small, points0[50:80]), rng.uniform(0, 300, (10, 2))])
    (first, of_first), (second, of_second) = planes(points0, points1, 2.0)
    assert set(range(50)) <= set(of_first) and set(range(50, 80)) - set(of_first) <= set(of_second)
    assert np.allclose(first, large, atol=1e-3) and np.allclose(second, small, atol=1e-3)


def test_a_mirrored_plane_is_left_out(rng: np.random.Generator) -> None:
    points = rng.uniform(0, 300, (60, 2))
    assert not list(planes(points, points * (-1, 1), 2.0))
