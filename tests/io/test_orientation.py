"""Positions in upright photographs and in their stored pixels."""

from __future__ import annotations

from pathlib import Path

import cv2
import numpy as np
import pytest
from PIL import Image

from deepmatching.io.image_files import read_orientation, stored_size, to_stored
from deepmatching.io.images import load_image


def save(path: Path, pixels: np.ndarray, orientation: int) -> None:
    exif = Image.Exif()
    exif[0x0112] = orientation
    Image.fromarray(pixels).save(path, exif=exif)


@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize("suffix", ["png", "jpg", "webp"])
def test_the_pixel_at_a_stored_position_is_the_one_at_the_upright_position(
    orientation: int, suffix: str, tmp_path: Path
) -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (5, 7, 3), np.uint8)
    path = tmp_path / f"photo.{suffix}"
    save(path, pixels, orientation)
    upright = load_image(path).numpy()
    stored = cv2.imread(str(path), cv2.IMREAD_COLOR | cv2.IMREAD_IGNORE_ORIENTATION)[:, :, ::-1]
    size = (upright.shape[1], upright.shape[2])
    assert read_orientation(path) == orientation
    assert stored_size(size, orientation) == stored.shape[:2]
    points = np.array([(x, y) for y in range(size[0]) for x in range(size[1])], np.float32)
    moved = to_stored(points, size, orientation).astype(int)
    found = stored[moved[:, 1], moved[:, 0]]
    expected = upright[:, points[:, 1].astype(int), points[:, 0].astype(int)].T * 255
    np.testing.assert_array_equal(found, np.rint(expected))


def test_files_without_a_readable_orientation_are_upright(tmp_path: Path) -> None:
    assert read_orientation(tmp_path / "missing.jpg") == 1
    for number, data in enumerate((b"text", b"\xff\xd8\xff\xe1\x00\x10Exif\0\0II*\0", b"\xff\xd8\xff\xe1", b"II*\0")):
        path = tmp_path / f"{number}.jpg"
        path.write_bytes(data)
        assert read_orientation(path) == 1
