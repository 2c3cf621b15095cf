"""Images seen through a transformation."""

from __future__ import annotations

import cv2
import numpy as np
import pytest
import torch

from deepmatching.geometry.homographies import apply, centre, similarity
from deepmatching.search.warping import BEYOND, pixels_of, resized, tensor_of, warped


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
    assert (turned[0, 0] == BEYOND).all() and (turned[15, 15] == 0).all()


@pytest.mark.parametrize("channels", [1, 3])
def test_an_image_becomes_pixels_and_back(channels: int) -> None:
    image = torch.rand(channels, 5, 7)
    assert pixels_of(image).shape == (5, 7, channels)
    assert torch.equal(tensor_of(pixels_of(image)), image)
