"""Pictures as arrays and as files."""

from pathlib import Path

import cv2
import numpy as np
import pytest
import torch

from deepmatching.drawing.pictures import check_picture_path, drawing_scale, resize, to_uint8_rgb, write_image
from deepmatching.errors import DeepMatchingError


def test_to_uint8_rgb_inverts_the_loading_and_copies(rng: np.random.Generator) -> None:
    rgb = rng.integers(0, 256, (5, 6, 3), np.uint8)
    tensor = torch.from_numpy(rgb).permute(2, 0, 1).float() / 255
    np.testing.assert_array_equal(to_uint8_rgb(tensor), rgb)
    np.testing.assert_array_equal(to_uint8_rgb(tensor[:1]), rgb[:, :, [0, 0, 0]])
    np.testing.assert_array_equal(to_uint8_rgb(rgb[:, :, 1]), rgb[:, :, [1, 1, 1]])
    to_uint8_rgb(rgb)[:] = 0
    assert rgb.any()
    assert to_uint8_rgb(torch.tensor([[[-0.2, 1.3]]])).tolist() == [[[0] * 3, [255] * 3]]


@pytest.mark.parametrize("bad", [np.zeros((3, 4, 5), np.uint8), np.zeros((4, 4, 3)), torch.zeros(4, 4, 3)])
def test_to_uint8_rgb_refuses_others(bad: np.ndarray | torch.Tensor) -> None:
    with pytest.raises(DeepMatchingError, match="To be drawn"):
        to_uint8_rgb(bad)


@pytest.mark.parametrize("suffix", [".png", ".PPM", ".bmp", ".tiff"])
def test_write_image_keeps_the_pixels(tmp_path: Path, suffix: str, rng: np.random.Generator) -> None:
    rgb = rng.integers(0, 256, (7, 9, 3), np.uint8)
    path = tmp_path / f"größe{suffix}"
    write_image(path, rgb)
    read = cv2.imdecode(np.fromfile(path, np.uint8), cv2.IMREAD_COLOR)
    np.testing.assert_array_equal(read[:, :, ::-1], rgb)


def test_write_image_refuses_what_it_cannot_write_and_leaves_no_file(tmp_path: Path) -> None:
    rgb = np.zeros((2, 2, 3), np.uint8)
    for refuse in (lambda: write_image(tmp_path / "a.doc", rgb), lambda: check_picture_path(tmp_path / "a.doc")):
        with pytest.raises(DeepMatchingError, match="image format"):
            refuse()
    with pytest.raises(DeepMatchingError, match="no folder"):
        write_image(tmp_path / "no" / "a.png", rgb)
    with pytest.raises(DeepMatchingError, match="cannot write"):
        write_image(tmp_path / "a.webp", np.zeros((2, 20000, 3), np.uint8))  # more than WebP can hold
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("side", [1, 5, 300, 559, 560, 1000, 1280, 1281, 5000])
def test_images_are_drawn_with_a_longer_side_of_560_to_1280(side: int) -> None:
    scale = drawing_scale(side, max(1, side // 2))
    assert 560 <= len(resize(np.zeros((side, max(1, side // 2), 3), np.uint8), scale)) <= 1280
    assert scale <= 1 or scale == int(scale)  # enlarged pixels stay square
