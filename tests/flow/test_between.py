"""The picture between two frames."""

import numpy as np
import pytest

from deepmatching.errors import DeepMatchingError
from deepmatching.flow import FlowResult, picture_between
from helpers.synthetic_pictures import draw_photo

Scene = tuple[np.ndarray, np.ndarray, FlowResult, FlowResult]


def result(flow: np.ndarray, hidden: np.ndarray | None = None) -> FlowResult:
    occlusion = None if hidden is None else hidden.astype(np.float32)
    return FlowResult(flow.astype(np.float32), np.ones(flow.shape[:2], np.float32), occlusion=occlusion)


def frame_at(left: int) -> np.ndarray:
    """Draw a square of 20 × 20 pixels over a background that does not move."""
    frame = draw_photo(0, 60, 80)
    frame[20:40, left : left + 20] = draw_photo(1, 20, 20)
    return frame


@pytest.fixture
def scene() -> Scene:
    """Return two frames between which the square moves by 12 pixels, with their true flows and occlusions."""
    flows, inside = [np.zeros((60, 80, 2)) for _ in range(2)], [np.zeros((60, 80), bool) for _ in range(2)]
    for n, (left, motion) in enumerate(((20, 12), (32, -12))):
        inside[n][20:40, left : left + 20] = True
        flows[n][inside[n], 0] = motion
    hidden = inside[1] & ~inside[0], inside[0] & ~inside[1]
    return frame_at(20), frame_at(32), result(flows[0], hidden[0]), result(flows[1], hidden[1])


def test_the_middle_picture_has_the_object_half_way_and_both_sides_of_the_background(scene: Scene) -> None:
    error = np.abs(picture_between(*scene).astype(int) - frame_at(26))
    assert error.mean() < 1 and np.median(error) == 0
    assert np.abs((scene[0].astype(int) + scene[1]) / 2 - frame_at(26)).mean() > 5 * error.mean()


def test_another_time_moves_the_object_further(scene: Scene) -> None:
    assert np.abs(picture_between(*scene, t=0.75).astype(int) - frame_at(29)).mean() < 1


def test_the_ends_are_the_frames(scene: Scene) -> None:
    for t, frame in ((0, scene[0]), (1, scene[1])):
        np.testing.assert_array_equal(picture_between(*scene, t=t), frame)


def test_a_pixel_that_none_reaches_moves_as_the_nearest_one_does() -> None:
    photo, flow = draw_photo(2, 40, 60), np.zeros((40, 60, 2))
    flow[:, 30:, 0] = 8  # the right half leaves columns 30 to 33 behind
    picture = picture_between(photo, photo, result(flow), result(np.full((40, 60, 2), 1000)))
    np.testing.assert_array_equal(picture[:, :32], photo[:, :32])
    np.testing.assert_allclose(picture[:, 32:34], (photo[:, 28:30] / 2 + photo[:, 36:38] / 2), atol=1)


def test_grey_frames_give_three_channels_and_what_does_not_fit_is_refused(scene: Scene) -> None:
    first, second, there, back = scene
    assert picture_between(first[..., 0], second[..., 0], there, back).shape == (60, 80, 3)
    with pytest.raises(DeepMatchingError, match=r"\(50, 80\).*\(60, 80\)"):
        picture_between(first, second[:50], there, back)
    for t in (-0.1, 1.5, float("nan")):
        with pytest.raises(DeepMatchingError, match="t must be"):
            picture_between(*scene, t=t)
