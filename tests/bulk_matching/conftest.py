"""A folder of small overlapping photographs, as awkward as real ones: grey, turned, of two sizes, with odd names."""

from pathlib import Path

import numpy as np
import pytest
from PIL import Image


def scene() -> np.ndarray:
    """Draw a smooth random picture of 160×240."""
    picture = np.kron(np.random.default_rng(0).uniform(0, 255, (54, 80, 3)), np.ones((3, 3, 1)))[:160, :240]
    for axis in (0, 1):
        picture = (picture + np.roll(picture, 1, axis) + np.roll(picture, -1, axis)) / 3
    return picture.astype(np.uint8)


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    """Five photographs of one scene, each 6 px further to the right."""
    folder = tmp_path / "photos"
    (folder / "left side").mkdir(parents=True)
    whole = scene()
    views = [whole[20 : 20 + 48, 20 + 6 * n : 20 + 6 * n + 64] for n in range(5)]
    Image.fromarray(views[0]).save(folder / "photo 1.png")
    Image.fromarray(views[1]).save(folder / "photo 2.jpg", quality=98)
    Image.fromarray(views[2]).convert("L").save(folder / "left side" / "grey.png")
    exif = Image.Exif()
    exif[0x0112] = 6  # stored turned by a quarter
    Image.fromarray(np.rot90(views[3])).save(folder / "photo_10.png", exif=exif)
    Image.fromarray(whole[16 : 16 + 56, 44 : 44 + 72]).save(folder / "wide.png")
    return folder
