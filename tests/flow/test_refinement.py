"""Refinement: motion that it must find, and motion that it must leave alone."""

import numpy as np
import pytest
import torch

from deepmatching.errors import DeepMatchingError
from deepmatching.flow import RefinementSettings
from deepmatching.flow.operators.refinement_step import warp
from deepmatching.flow.refinement import refine as refine_tensors
from deepmatching.flow.refinement import smooth


def texture(seed: int, height: int, width: int, channels: int = 3) -> np.ndarray:
    """Smooth noise, (H, W, C) in [0, 1]."""
    noise = torch.rand(channels, height, width, generator=torch.Generator().manual_seed(seed))
    noise = smooth(noise, 2.0)
    noise = (noise - noise.min()) / (noise.max() - noise.min())
    return noise.permute(1, 2, 0).numpy()


def refine(
    flow: np.ndarray, image0: np.ndarray, image1: np.ndarray, chosen: RefinementSettings | None = None
) -> np.ndarray:
    """Refinement of a flow between pictures (H, W, C)."""
    tensors = (torch.from_numpy(np.ascontiguousarray(image.transpose(2, 0, 1))).float() for image in (image0, image1))
    return refine_tensors(flow, *tensors, chosen or RefinementSettings()).numpy()


def moved(picture: np.ndarray, u: float, v: float) -> tuple[np.ndarray, np.ndarray]:
    """Two resampled views; the second is moved by (u, v)."""
    height, width = picture.shape[:2]
    planar = torch.from_numpy(picture).permute(2, 0, 1).contiguous()
    views = []
    for sign in (1, -1):
        flow = torch.empty(2, height, width)
        flow[0], flow[1] = sign * u / 2, sign * v / 2
        mean, difference, _ = warp(planar, planar, flow)
        views.append((mean + difference / 2)[:, 8:-8, 8:-8].permute(1, 2, 0).numpy())
    return views[0], views[1]


def test_equal_images_keep_a_flow_of_zero_and_no_steps_keep_any() -> None:
    picture = texture(0, 40, 50)
    assert not refine(np.zeros((40, 50, 2)), picture, picture).any()
    start = np.random.default_rng(0).normal(size=(40, 50, 2)).astype(np.float32)
    np.testing.assert_array_equal(refine(start, picture, picture, RefinementSettings(steps=0)), start)


def test_a_shift_by_whole_pixels_stays() -> None:
    picture = texture(1, 80, 100)
    flow = np.full((60, 80, 2), (4, -3), dtype=np.float32)
    found = refine(flow, picture[10:70, 10:90], picture[13:73, 6:86])
    np.testing.assert_allclose(found[12:-12, 12:-12], flow[12:-12, 12:-12], atol=0.02)


@pytest.mark.parametrize("channels", [1, 3])
def test_fractions_of_a_pixel_are_found(channels: int) -> None:
    first, second = moved(texture(2, 96, 112, channels), 1.4, -0.7)
    found = refine(np.full((80, 96, 2), (2, 0), dtype=np.float32), first, second, RefinementSettings(steps=8))
    error = np.hypot(*(found - (1.4, -0.7)).reshape(-1, 2).T)
    assert np.median(error) < 0.03  # of 0.92 before


def test_two_motions_keep_their_border() -> None:
    background, front = texture(3, 96, 128), texture(4, 96, 128) * 0.5
    first, second = background.copy(), background.copy()
    first[30:70, 40:90], second[30:70, 43:93] = front[30:70, 40:90], front[30:70, 40:90]
    start = np.zeros((96, 128, 2), dtype=np.float32)
    start[30:70, 40:90, 0] = 2
    found = refine(start, first, second)
    assert np.abs(found[34:66, 44:86] - (3, 0)).max() < 0.3
    assert np.abs(found[:24]).max() < 0.1


def test_a_grey_image_counts_as_three_equal_channels() -> None:
    grey, start = moved(texture(6, 64, 72, 1), 0.6, 0.3), np.zeros((48, 56, 2), dtype=np.float32)
    coloured = [np.repeat(image, 3, axis=2) for image in grey]
    expected = refine(start, *coloured)
    np.testing.assert_allclose(refine(start, *grey), expected, atol=1e-3)
    np.testing.assert_allclose(refine(start, grey[0], coloured[1]), expected, atol=1e-6)


def test_pixels_that_leave_the_image_are_held() -> None:
    """There, smoothness alone would flatten a slope."""
    picture = texture(7, 60, 80)
    y, x = np.mgrid[:60, :80].astype(np.float32)
    start = np.stack([100 + 0.3 * x, 0 * y], axis=2)
    held, loose = (refine(start, picture, picture, RefinementSettings(hold=hold)) for hold in (10.0, 0.0))
    assert np.abs(held - start).max() < 0.2 * np.abs(loose - start).max()


def test_smoothing_is_a_convolution_with_a_gaussian() -> None:
    image = torch.zeros(1, 21, 21)
    image[0, 10, 10] = 1
    taps = torch.exp(-torch.arange(-10.0, 11).square() / (2 * 1.5**2)) * (torch.arange(-10, 11).abs() <= 6)
    taps /= taps.sum()
    torch.testing.assert_close(smooth(image, 1.5)[0], taps[:, None] * taps)
    assert (smooth(torch.ones(3, 5, 5), 2.0) - 1).abs().max() < 1e-6


def test_errors_say_what_is_wrong() -> None:
    picture = texture(9, 20, 30)
    with pytest.raises(DeepMatchingError, match="both must have its size"):
        refine(np.zeros((20, 31, 2)), picture, picture)
    with pytest.raises(DeepMatchingError, match="NaN"):
        refine(np.full((20, 30, 2), np.nan), picture, picture)


def test_more_smoothness_is_smoother() -> None:
    first, second = moved(texture(10, 80, 80), 1.0, 0.0)
    start = np.random.default_rng(1).normal(0, 1, (64, 64, 2)).astype(np.float32)
    rough, even = (refine(start, first, second, RefinementSettings(alpha=alpha)) for alpha in (0.3, 30.0))
    assert np.abs(np.diff(even, axis=0)).mean() < 0.5 * np.abs(np.diff(rough, axis=0)).mean()
