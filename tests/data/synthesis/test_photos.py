"""Pictures for synthetic scenes: the files that are read, and their layout in the buffer."""

from pathlib import Path

import cv2
import numpy as np
import pytest

from deepmatching.data.synthesis import Photos
from deepmatching.data.synthesis.photos import LEVELS, draw_shapes
from deepmatching.errors import DeepMatchingError
from helpers.synthetic_pictures import draw_cutout, draw_photo


def picture_of(photos: Photos, index: int, level: int = 0) -> np.ndarray:
    offset, height, width = photos.table[index, level]
    return photos.texels[offset : offset + height * width].numpy().view(np.uint8).reshape(height, width, 4)


def write(path: Path, picture: np.ndarray) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    order = {2: None, 3: [2, 1, 0], 4: [2, 1, 0, 3]}[picture.ndim if picture.ndim == 2 else picture.shape[2]]
    cv2.imwrite(str(path), picture if order is None else picture[:, :, order])


def test_a_photograph_lies_in_the_buffer_as_it_is_and_a_cutout_multiplied_by_its_alpha() -> None:
    photo, cutout = draw_photo(0), draw_cutout(1)
    photos = Photos([photo], [cutout])
    np.testing.assert_array_equal(picture_of(photos, 0)[:, :, :3], photo)
    assert (picture_of(photos, 0)[:, :, 3] == 255).all()
    stored = picture_of(photos, 1)[2:-2, 2:-2]
    np.testing.assert_array_equal(stored[:, :, 3], cutout[:, :, 3])
    np.testing.assert_allclose(stored[:, :, :3], cutout[:, :, :3] * (cutout[:, :, 3:] / 255.0), atol=0.51)


def test_cutouts_and_shapes_are_transparent_along_their_border_at_every_level() -> None:
    photos = Photos([draw_photo(0)], [np.full((99, 77, 4), 255, np.uint8)])
    for index in range(photos.photograph_count, photos.white):
        for level in range(LEVELS):
            picture = picture_of(photos, index, level)
            assert not picture[[0, -1]].any() and not picture[:, [0, -1]].any()


def test_every_level_halves_the_one_before() -> None:
    photos = Photos([draw_photo(0, 200, 300)])
    assert [tuple(size) for size in photos.table[0, :, 1:]] == [(200, 300), (100, 150), (50, 75), (25, 37)]
    fine, coarse = picture_of(photos, 0, 0).astype(float), picture_of(photos, 0, 1)
    assert np.abs(fine.reshape(100, 2, 150, 2, 4).mean((1, 3)) - coarse).max() <= 1


def test_shapes_are_the_same_every_time_and_not_empty() -> None:
    shapes = draw_shapes(28, 96)
    assert all((one == other).all() for one, other in zip(shapes, draw_shapes(28, 96), strict=True))
    covered = np.array([(shape > 127).mean() for shape in shapes])
    assert covered.min() > 0.002 and covered.max() < 0.9
    assert len({shape.tobytes() for shape in shapes}) == 28


def test_a_folder_is_searched_with_its_subfolders_and_masks_are_left_out(tmp_path: Path) -> None:
    write(tmp_path / "a" / "photo.png", draw_photo(0))
    write(tmp_path / "b" / "large.jpg", draw_photo(1, 900, 1300))
    write(tmp_path / "b" / "cutout.PNG", draw_cutout(2))
    write(tmp_path / "b" / "opaque.webp", np.dstack([draw_photo(3), np.full((240, 300), 255, np.uint8)]))
    write(tmp_path / "labels" / "mask.png", draw_photo(4)[:, :, 0])
    write(tmp_path / "icon.png", draw_photo(5, 16, 16))
    (tmp_path / "notes.txt").write_text("no picture")
    photos = Photos.load(tmp_path, split="all")
    assert (photos.photograph_count, photos.cutout_count) == (3, 1)
    assert photos.table[: photos.photograph_count, 0, 1:].max() == 640


def test_the_split_goes_by_the_name_and_shares_nothing(tmp_path: Path) -> None:
    for number in range(120):
        write(tmp_path / "png" / f"{number}.png", draw_photo(0, 32, 40 + number))  # the width tells which one it is
    loaded = {split: Photos.load(tmp_path, split=split) for split in ("train", "val", "all")}
    seen = {split: photos.table[: photos.photograph_count, 0, 2] for split, photos in loaded.items()}
    assert len(seen["all"]) == 120
    assert sorted([*seen["train"], *seen["val"]]) == sorted(seen["all"])
    assert 1 <= len(seen["val"]) <= 20


def test_of_too_many_pictures_evenly_spaced_ones_are_read(tmp_path: Path) -> None:
    for number in range(10):
        write(tmp_path / f"{number}.png", draw_photo(0, 32, 40 + number))
    few = Photos.load(tmp_path, split="all", most=4)
    assert few.photograph_count == 4
    assert list(few.table[:4, 0, 2]) == [40, 43, 46, 49]


def test_a_bad_folder_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(DeepMatchingError, match="no folder of photographs"):
        Photos.load(tmp_path / "missing")
    with pytest.raises(DeepMatchingError, match="no pictures"):
        Photos.load(tmp_path)
    write(tmp_path / "cutout.png", draw_cutout(0))
    with pytest.raises(DeepMatchingError, match="no colour photographs"):
        Photos.load(tmp_path, split="all")
    with pytest.raises(DeepMatchingError, match="split must be 'train', 'val' or 'all', not 'test'"):
        Photos.load(tmp_path, split="test")
    (tmp_path / "broken.jpg").write_bytes(b"\xff\xd8\xff\xe0 cut short")
    with pytest.raises(DeepMatchingError, match=r"broken\.jpg"):
        Photos.load(tmp_path, split="all")
