"""Warps and their views."""

from pathlib import Path

import cv2
import numpy as np
import pytest

from deepmatching.drawing import view_warp, warp, write_image
from deepmatching.drawing.warping import GREY
from deepmatching.errors import DeepMatchingError
from deepmatching.geometry.homographies import displacements


def test_a_warp_samples_the_second_image_and_is_transparent_where_the_flow_leaves_it(rng: np.random.Generator) -> None:
    second = rng.integers(0, 256, (30, 50, 3), np.uint8)
    warped = warp(second, np.full((20, 40, 2), (13, -4), np.float32))
    seen = np.zeros((20, 40), bool)
    seen[4:, :37] = True
    np.testing.assert_array_equal(warped[..., 3], 255 * seen)
    np.testing.assert_array_equal(warped[4:, :37, :3], second[:16, 13:])
    assert (warped[~seen, :3] == GREY).all()


def test_hidden_and_unknown_pixels_are_transparent_and_others_lie_between_pixels(rng: np.random.Generator) -> None:
    second, flow, hidden = rng.integers(0, 256, (8, 9), np.uint8), np.zeros((8, 9, 2), np.float32), np.eye(8, 9) > 0
    flow[3, 7], flow[5, 2] = np.nan, (0.5, 0)
    warped = warp(second, flow, hidden)
    assert (warped[..., 3] == 0).sum() == 9 and warped[3, 7, 3] == 0
    assert abs(warped[5, 2, 1] - second[5, 2:4].mean()) <= 1


def test_a_homography_warps_as_opencv_does(rng: np.random.Generator) -> None:
    second = cv2.GaussianBlur(rng.integers(0, 256, (60, 80, 3), np.uint8), (0, 0), 3)
    matrix = np.array([[0.9, 0.1, 3], [-0.05, 1.1, 2], [1e-3, 2e-4, 1]])
    warped = warp(second, displacements(matrix, (50, 70)))
    theirs = cv2.warpPerspective(second, matrix, (70, 50), flags=cv2.INTER_LINEAR | cv2.WARP_INVERSE_MAP)
    inner = cv2.erode(warped[..., 3], np.ones((5, 5)), borderValue=0) > 0
    assert inner.mean() > 0.5
    np.testing.assert_allclose(warped[inner, :3].astype(int), theirs[inner], atol=2)


def test_nothing_beyond_the_horizon_is_shown() -> None:
    moved = displacements(np.array([[1, 0, 0], [0, 1, 0], [-0.1, 0, 1]]), (4, 20))
    assert np.isnan(moved[:, 10:]).all() and np.isfinite(moved[:, :10]).all()
    assert not warp(np.zeros((4, 20), np.uint8), moved)[:, 10:, 3].any()


def test_views_mix_both_images_where_the_warp_shows_something() -> None:
    first = np.full((16, 32, 3), 40, np.uint8)
    warped = np.full((16, 32, 4), (100, 100, 100, 255), np.uint8)
    warped[:, 20:, 3] = 0
    blend, squares, difference = (view_warp(first, warped, view) for view in ("blend", "checkerboard", "difference"))
    assert (blend[:, :20] == 70).all() and (blend[:, 20:] == 40).all()
    assert squares[0, ::4, 0].tolist() == [40, 100, 40, 100, 40, 40, 40, 40] and squares[4, 0, 0] == 100
    assert (difference[:, :20] == 60).all() and (difference[:, 20:] == GREY).all()
    assert view_warp(first, warped, "warp") is warped


def test_what_cannot_be_shown_is_refused() -> None:
    first, warped = np.zeros((4, 5), np.uint8), np.zeros((4, 6, 4), np.uint8)
    with pytest.raises(DeepMatchingError, match="'both'"):
        view_warp(first, warped, "both")  # type: ignore[arg-type]
    with pytest.raises(DeepMatchingError, match=r"\(4, 6\).*\(4, 5\)"):
        view_warp(first, warped, "blend")
    with pytest.raises(DeepMatchingError, match="32766"):
        warp(np.zeros((1, 2**15), np.uint8), np.zeros((1, 5, 2), np.float32))


@pytest.mark.parametrize("suffix", [".png", ".webp", ".tif", ".jpg", ".bmp"])
def test_transparency_is_written_in_formats_that_have_it(suffix: str, tmp_path: Path) -> None:
    picture = np.full((16, 16, 4), (200, 100, 50, 255), np.uint8)
    picture[:8, :, 3] = 0
    write_image(tmp_path / f"a{suffix}", picture)
    read = cv2.imread(str(tmp_path / f"a{suffix}"), cv2.IMREAD_UNCHANGED)
    assert read is not None
    if suffix in (".jpg", ".bmp"):
        assert read.shape == (16, 16, 3)
    else:
        assert not read[:8, :, 3].any() and (read[8:, :, 3] == 255).all()
    np.testing.assert_allclose(read[12, 8, :3], (50, 100, 200), atol=6)
