"""Pictures of points."""

import numpy as np

from deepmatching.drawing.points import draw_points, draw_tracks

GREY = np.full((600, 640, 3), 90, np.uint8)


def colour_of(picture: np.ndarray, x: int, y: int) -> list[int]:
    return picture[y, x].tolist()  # type: ignore[no-any-return]


def test_a_point_has_one_colour_in_both_images_and_a_hidden_one_is_a_ring() -> None:
    points0, points1 = np.float32([[100, 50], [200, 80]]), np.float32([[120, 60], [220, 90]])
    picture = draw_points(GREY, GREY[:580], points0, points1, np.array([True, False]))
    assert picture.shape == (600, 1280, 3)
    assert colour_of(picture, 100, 50) == colour_of(picture, 640 + 120, 60) != [90] * 3
    assert colour_of(picture, 200, 80) not in ([90] * 3, colour_of(picture, 100, 50))
    assert colour_of(picture, 640 + 220, 90) == [90] * 3  # the middle of the ring
    assert colour_of(picture, 640 + 225, 90) != [90] * 3
    assert colour_of(picture, 640, 599) == [222] * 3  # below the shorter image


def test_a_track_is_a_line_with_gaps_and_may_lie_far_outside() -> None:
    trails = np.array([[[100, 100], [9, 9]], [[140, 100], [1e9, -1e9]], [[np.nan, 0], [8, 8]], [[200, 100], [8, 8]]])
    picture = draw_tracks(GREY, trails, np.array([True, True]))
    assert colour_of(picture, 120, 100) == colour_of(picture, 200, 100) != [90] * 3
    assert colour_of(picture, 170, 100) == [90] * 3


def test_a_small_image_is_enlarged_and_the_points_with_it() -> None:
    picture = draw_tracks(GREY[:70, :80], np.array([[[20.0, 30.0]]]), np.array([True]))
    assert picture.shape == (490, 560, 3)
    assert colour_of(picture, 143, 213) != [90] * 3  # the centre of the pixel that is 7 times as large
