"""``DeepMatcher.match_points`` and ``track``."""

import numpy as np
import pytest

import deepmatching as dm
from deepmatching.errors import DeepMatchingError

Pictures = tuple[np.ndarray, np.ndarray]


@pytest.fixture(scope="module")
def matcher() -> dm.DeepMatcher:
    return dm.DeepMatcher.from_pretrained(radius=16, device="cpu")


def test_points_between_pixels_go_where_the_picture_moved(matcher: dm.DeepMatcher, pair: Pictures) -> None:
    points = np.array([[30.25, 40.5], [50, 30], [61.75, 25.125], [1, 1]])
    found = matcher.match_points(*pair, points)
    assert np.abs(found.points[:3] - points[:3] - (6, -4)).max() < 0.2
    assert found.visible.tolist() == [True, True, True, False]  # the last one leaves the picture at the top
    assert found.confidence[:3].min() > 0.8
    np.testing.assert_array_equal(found.points0, points.astype(np.float32))


def test_the_images_may_differ_in_size(matcher: dm.DeepMatcher, pair: Pictures) -> None:
    first, second = pair
    points = np.array([[30.0, 40.0], [80, 30], [40, 58]])
    found = matcher.match_points(first, second[:50, :80], points)
    assert np.abs(found.points[0] - points[0] - (6, -4)).max() < 0.3
    assert found.visible.tolist() == [True, False, False]  # cut off at the right and at the bottom
    other = matcher.match_points(first[:50, :80], second, points[:1])
    assert np.abs(other.points[0] - points[0] - (6, -4)).max() < 0.3


def test_a_model_without_occlusion_has_points_too(pair: Pictures) -> None:
    found = dm.DeepMatcher.from_pretrained("hog", radius=16, device="cpu").match_points(*pair, [(40.0, 30.0)])
    assert np.abs(found.points - (46, 26)).max() < 1 and found.visible.all()


def test_a_point_that_starts_or_ends_in_a_mask_has_no_confidence(matcher: dm.DeepMatcher, pair: Pictures) -> None:
    points, mask0, mask1 = [(30.0, 40.0), (50, 30), (62, 40)], *np.ones((2, *pair[0].shape[:2]), bool)
    mask0[36:44, 26:34] = mask1[20:34, 50:64] = False
    found = matcher.match_points(*pair, points, mask0=mask0, mask1=mask1)
    assert (found.confidence > 0.5).tolist() == [False, False, True] and not found.confidence[:2].any()
    assert not found.visible[1] and found.visible[2]
    assert np.abs(found.points[[0, 2]] - np.array(points)[[0, 2]] - (6, -4)).max() < 0.5


def test_a_point_outside_the_first_image_is_refused(matcher: dm.DeepMatcher, pair: Pictures) -> None:
    with pytest.raises(DeepMatchingError, match=r"\(96, 3\) is not in the first image of 96x64 pixels"):
        matcher.match_points(*pair, [(3, 3), (96, 3)])


def clip(count: int) -> list[np.ndarray]:
    """Return frames of smooth noise of 64×96 that moves by (4, −2) pixels a frame; in frame 2 a grey bar covers it."""
    noise = np.random.default_rng(1).uniform(0, 255, (120, 160, 3))
    for axis in (0, 1):
        noise = (noise + np.roll(noise, 1, axis) + np.roll(noise, -1, axis)) / 3
    frames = [noise[20 + 2 * t : 84 + 2 * t, 40 - 4 * t : 136 - 4 * t].astype(np.uint8) for t in range(count)]
    frames[2][:, 30:60] = 128
    return frames


@pytest.mark.parametrize("settings", [{}, {"rotations": 1}], ids=["plain", "with a search"])
def test_points_are_tracked_through_frames_of_a_generator_and_found_again(settings: dict[str, int]) -> None:
    matcher = dm.DeepMatcher.from_pretrained(radius=16, device="cpu", **settings)
    points = np.array([[40.25, 40.5], [70, 30]])
    tracks = list(matcher.track(iter(clip(4)), points))
    assert len(tracks) == 4 and (tracks[0].points == points).all()
    assert [track.visible.tolist() for track in tracks] == [[True, True], [True, True], [False, True], [True, True]]
    for number in (1, 3):
        assert np.abs(tracks[number].points - points - (4 * number, -2 * number)).max() < 0.3


@pytest.mark.parametrize("settings", [{}, {"rotations": 1}], ids=["plain", "with a search"])
def test_frames_of_two_sizes_are_refused(settings: dict[str, int]) -> None:
    matcher, frames = dm.DeepMatcher.from_pretrained(radius=16, device="cpu", **settings), clip(3)
    with pytest.raises(DeepMatchingError, match="Frame 1 is 90x64 pixels"):
        list(matcher.track([frames[0], frames[1][:, :90]], [(30, 30)]))


def test_a_point_outside_the_first_frame_is_refused(matcher: dm.DeepMatcher) -> None:
    with pytest.raises(DeepMatchingError, match=r"\(99, 3\)"):
        next(matcher.track(clip(3), [(99, 3)]))
    with pytest.raises(DeepMatchingError, match="shape"):
        matcher.track(clip(3), [1, 2])
    with pytest.raises(DeepMatchingError, match="frames"):
        matcher.track(5, [(1, 2)])  # type: ignore[arg-type]
