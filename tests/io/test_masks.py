from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest
import torch
from PIL import Image

from deepmatching.errors import DeepMatchingError
from deepmatching.io.images import load_image
from deepmatching.io.masks import alpha_mask, draw_polygon, is_usable, load_mask, usable_share, with_mask

MASK = np.array([[1, 1, 0], [0, 1, 1]], bool)


@pytest.mark.parametrize(
    "mask",
    [
        MASK,
        MASK.astype(np.uint8) * 255,
        MASK.astype(np.int64),
        MASK[:, :, None],
        MASK * 0.25,
        MASK.tolist(),
        torch.from_numpy(MASK),
        torch.from_numpy(MASK)[None].float(),
        Image.fromarray(MASK),
        Image.fromarray(MASK.astype(np.uint8) * 7),
    ],
)
def test_all_kinds_of_mask_say_the_same(mask: Any) -> None:
    assert np.array_equal(load_mask(mask, (2, 3)), MASK)


def test_a_pixel_of_a_picture_is_masked_if_it_is_black(tmp_path: Path) -> None:
    colours = np.zeros((2, 3, 3), np.uint8)
    colours[MASK, [0, 1, 2, 0]] = 9
    cv2.imwrite(str(tmp_path / "m.png"), colours)
    assert np.array_equal(load_mask(tmp_path / "m.png", (2, 3)), MASK)


@pytest.mark.parametrize("mask", [MASK.T, np.ones((2, 3, 3)), np.array([["a"]]), np.ones(6), MASK * np.nan, None])
def test_what_is_no_mask_of_the_image_is_refused(mask: Any) -> None:
    with pytest.raises(DeepMatchingError, match="mask1"):
        load_mask(mask, (2, 3), "mask1")


def test_masked_pixels_take_the_nearest_colours_whatever_they_hold(rng: np.random.Generator) -> None:
    image = rng.uniform(size=(3, 8, 9)).astype(np.float32)
    mask = np.ones((8, 9), bool)
    mask[2:5, 3:] = False
    other = np.where(mask, image, rng.uniform(size=image.shape)).astype(np.float32)
    filled, same = (with_mask(load_image(torch.from_numpy(each)), mask) for each in (image, other))
    assert torch.equal(filled, same)
    assert torch.equal(filled[-1] == 1, torch.from_numpy(mask)) and torch.equal(filled[:3, mask], same[:3, mask])
    assert np.array_equal(filled[:3, 2, 5], image[:, 1, 5]) and np.array_equal(filled[:3, 4, 5], image[:, 5, 5])
    assert np.array_equal(filled[:3, mask], image[:, mask])


def test_a_second_mask_adds_to_the_first() -> None:
    image = load_image(np.ones((2, 3, 3), np.uint8))
    both = with_mask(with_mask(image, MASK), ~MASK)
    assert both.shape == (4, 2, 3) and not both[-1].any()
    assert usable_share(with_mask(image, MASK), with_mask(image, MASK)) == pytest.approx(4 / 6)
    assert usable_share(image, both) == 0 and usable_share(image, image) == 1


def test_a_point_is_usable_if_the_pixels_around_it_are() -> None:
    image = with_mask(load_image(np.ones((2, 3, 3), np.uint8)), MASK)
    points = torch.tensor([[0, 0], [0.5, 0], [1, 0.5], [1.5, 0], [0.5, 0.5], [-0.5, 0], [2.4, 1], [2, 0.1]])
    assert is_usable(image, points).tolist() == [True, True, True, False, False, True, True, False]


def test_a_polygon_is_its_inside_or_after_not_its_outside() -> None:
    inside = draw_polygon("1,1 4,1 4,3 1,3", (5, 6))
    assert inside is not None and np.argwhere(inside).min(axis=0).tolist() == [1, 1]
    assert np.argwhere(inside).max(axis=0).tolist() == [3, 4] and inside.sum() == 12
    outside = draw_polygon("not 1,1 4.0,1 4,3 1,3", (5, 6))
    assert outside is not None and np.array_equal(outside, ~inside)
    assert draw_polygon("mask.png", (5, 6)) is None and draw_polygon("not 1.png", (5, 6)) is None


@pytest.mark.parametrize("text", ["1,1 2,2", "not 1,1", "1,1 4,1 4", "1,1; 4,1; 4,3", "1, 1 4, 1 4, 3"])
def test_corners_that_make_no_polygon_are_not_taken_for_a_file(text: str) -> None:
    with pytest.raises(DeepMatchingError, match=f"'{text}'"):
        draw_polygon(text, (5, 6))


ALPHA = np.where(MASK, 128, 127).astype(np.uint8)  #: just opaque enough, or just not
RGBA = np.dstack([np.full((2, 3, 3), 90, np.uint8), ALPHA])


def palette() -> Image.Image:
    """Return a picture with a palette, whose second colour is transparent."""
    picture = Image.fromarray((~MASK).astype(np.uint8)).convert("P")
    picture.info["transparency"] = 1
    return picture


@pytest.mark.parametrize(
    "image",
    [
        RGBA,
        RGBA.astype(np.uint16) * 256,
        RGBA / np.float32(255),
        torch.from_numpy(RGBA).permute(2, 0, 1),
        torch.from_numpy(RGBA).permute(2, 0, 1)[None].bfloat16() / 255,
        Image.fromarray(RGBA),
        Image.fromarray(RGBA).convert("LA"),
        Image.fromarray(RGBA).convert("RGBa"),
        Image.fromarray(RGBA).convert("LA").convert("La"),
        palette(),
    ],
)
def test_pixels_with_an_alpha_below_one_half_are_masked(image: Any) -> None:
    usable = alpha_mask(image)
    assert usable is not None and np.array_equal(usable, MASK)


@pytest.mark.parametrize("kind", ["8 bits", "16 bits", "grey", "palette", "TIFF"])
def test_alpha_of_files(kind: str, tmp_path: Path) -> None:
    path = tmp_path / ("a.tif" if kind == "TIFF" else "a.png")
    if kind == "16 bits":
        cv2.imwrite(str(path), np.where(RGBA == 127, 32767, RGBA.astype(np.uint16) * 256).astype(np.uint16))
    else:
        picture = palette() if kind == "palette" else Image.fromarray(RGBA)
        (picture.convert("LA") if kind == "grey" else picture).save(path)
    usable = alpha_mask(path)
    assert usable is not None and np.array_equal(usable, MASK)


def test_images_without_alpha_or_all_opaque_have_no_mask_by_alpha() -> None:
    opaque = np.full((2, 3, 4), 255, np.uint8)
    for image in (opaque, opaque[..., :3], opaque[..., 0], Image.fromarray(opaque), Image.fromarray(opaque[..., 0])):
        assert alpha_mask(image) is None
    assert alpha_mask(with_mask(load_image(opaque), MASK)) is None  # its last channel is a mask, not alpha
