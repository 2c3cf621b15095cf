"""Aligned pictures, and one picture of all."""

import numpy as np
import pytest

import deepmatching as dm
from deepmatching.alignment import align, stack
from deepmatching.errors import DeepMatchingError
from helpers.synthetic_pictures import draw_photo

PHOTO = draw_photo(5, 120, 150)


def burst() -> list[np.ndarray]:
    """Return three pictures of one scene whose camera moves, the last of another size."""
    return [PHOTO[20:84, 20:116], PHOTO[24:88, 14:110], PHOTO[16:100, 17:130]]


def opaque(picture: np.ndarray) -> np.ndarray:
    return np.dstack([picture, np.full(picture.shape[:2], 255, np.uint8)])


@pytest.mark.parametrize("by", ["flow", "homography"])
def test_each_picture_becomes_what_the_first_one_shows(by: str) -> None:
    matcher = dm.DeepMatcher.from_pretrained(radius=16, device="cpu")
    found = list(align(burst(), matcher, by))  # type: ignore[arg-type]
    np.testing.assert_array_equal(found[0].picture, opaque(burst()[0]))
    for aligned in found[1:]:
        assert aligned.picture.shape == (64, 96, 4) and aligned.agreement > 0.5
        seen = aligned.picture[..., 3] > 0
        assert seen.mean() > 0.8
        assert np.abs(aligned.picture[seen, :3].astype(int) - burst()[0][seen]).mean() < 4
    assert not found[1].picture[:2, :, 3].any() and not found[1].picture[:, -4:, 3].any()  # the camera left these


def test_pictures_are_read_one_at_a_time() -> None:
    images = iter(burst())
    next(align(images, dm.DeepMatcher.from_pretrained("hog", radius=16, device="cpu")))
    assert len(list(images)) == 2


def test_the_median_ignores_what_passes_by_and_what_is_transparent() -> None:
    pictures = [opaque(np.full((70, 8, 3), value, np.uint8)) for value in (100, 104, 110, 30)]
    pictures[3][..., 3] = 0
    pictures[1][5, 5, :3] = 255  # a bird
    pictures[0][60, 2, 3] = pictures[1][60, 2, 3] = pictures[2][60, 2, 3] = 0
    found = stack(pictures)
    assert (found[5, 5] == 110).all() and (found[0, 0] == 104).all()
    assert (found[60, 2] == 100).all()  # no picture shows it: the colour of the first one


def test_fused_exposures_have_what_each_one_shows_best() -> None:
    scene = np.linspace(0, 400, 64)
    dark, light = (np.clip(values, 0, 255) for values in (scene - 145, scene))
    exposures = [
        opaque(np.repeat(np.tile(values, (64, 1))[..., None], 3, axis=2).astype(np.uint8)) for values in (dark, light)
    ]
    row = stack(exposures, "fused")[32, :, 0].astype(int)
    assert row[12] > 10 + dark[12] and row[56] < light[56] - 4  # neither black nor white
    exposures[1][..., 3] = 0
    np.testing.assert_allclose(stack(exposures, "fused"), stack([exposures[0]] * 2, "fused"), atol=1)


def test_what_cannot_be_aligned_or_stacked_is_refused() -> None:
    with pytest.raises(DeepMatchingError, match="'planes'"):
        next(align(burst(), by="planes"))  # type: ignore[arg-type]
    for pictures, words in (([], "none"), (burst(), r"\(64, 96, 3\)"), ([opaque(p) for p in burst()], "84, 113, 4")):
        with pytest.raises(DeepMatchingError, match=words):
            stack(pictures)
    with pytest.raises(DeepMatchingError, match="'mean'"):
        stack([opaque(PHOTO)], "mean")  # type: ignore[arg-type]
