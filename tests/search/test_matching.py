"""Matches of turned and zoomed images, in the original pixels."""

from dataclasses import replace
from functools import cache

import cv2
import numpy as np
import pytest
import torch

from deepmatching import DeepMatcher, Matches
from deepmatching.geometry.homographies import apply, centre, inside, rotation_and_zoom, similarity
from deepmatching.search import matching
from deepmatching.search.matching import merge
from deepmatching.search.settings import SETTINGS
from deepmatching.search.transformations import Transformation, tensor_of
from helpers.synthetic_pictures import draw_photo

SIZE = (160, 208)


@cache
def matcher(**settings: object) -> DeepMatcher:
    return DeepMatcher.from_pretrained(device="cpu", **settings)


def photo(seed: int, size: tuple[int, int] = SIZE) -> np.ndarray:
    return draw_photo(seed, *size).astype(np.float32) / 255


def seen(picture: np.ndarray, matrix: np.ndarray, size: tuple[int, int] = SIZE, back: float = 0.5) -> np.ndarray:
    sharp = cv2.warpPerspective(picture, matrix, size[::-1], flags=cv2.INTER_CUBIC, borderValue=(back,) * 4)
    return np.clip(sharp, 0, 1)


def errors(matches: Matches, matrix: np.ndarray) -> np.ndarray:
    start, end, _ = matches.numpy()
    return np.hypot(*(apply(matrix, start) - end).T)


def both(first: np.ndarray, second: np.ndarray) -> tuple[torch.Tensor, torch.Tensor]:
    return tensor_of(first), tensor_of(second)


def test_a_quarter_turn_is_found_and_matches_are_in_the_original_pixels() -> None:
    picture = photo(1)
    matrix = similarity(90, 1, centre(SIZE), centre(SIZE[::-1]))
    second = np.ascontiguousarray(np.rot90(picture, -1))
    matches = matcher(rotations=4).match(*both(picture, second))
    assert (matches.size0, matches.size1) == (SIZE, SIZE[::-1])
    assert len(matches) > 0.9 * SIZE[0] * SIZE[1] / 64
    assert np.median(errors(matches, matrix)) < 0.3 and (errors(matches, matrix) < 1).mean() > 0.97
    assert matches.transformations is not None and len(matches.transformations) == 1
    assert rotation_and_zoom(matches.derivatives[0].numpy()) == pytest.approx((90, 1), abs=0.5)


@pytest.mark.slow
@pytest.mark.parametrize(("rotation", "zoom"), [(40, 1.5), (-130, 0.6)])
def test_a_turn_and_a_zoom_between_those_that_are_tried_are_found(rotation: float, zoom: float) -> None:
    size = (240, 300)
    picture, matrix = photo(2, size), similarity(rotation, zoom, centre(size), centre(size))
    matches = matcher(search=True).match(*both(picture, seen(picture, matrix, size)))
    start = matches.keypoints0.numpy()
    visible = inside(apply(matrix, start), size)
    assert visible.mean() > 0.9
    off = errors(matches, matrix)[visible]
    assert np.median(off) < 0.5 and (off < 2).mean() > 0.95
    found = rotation_and_zoom(matches.derivatives.mean(dim=0).numpy())
    assert found == (pytest.approx(rotation, abs=1), pytest.approx(zoom, rel=0.02))


def test_an_upright_pair_has_the_matches_of_plain_matching_to_the_bit() -> None:
    picture = photo(3)
    images = both(picture, np.roll(picture, (3, -5), (0, 1)))
    plain, searched = matcher().match(*images), matcher(rotations=4).match(*images)
    for name in ("keypoints0", "keypoints1", "scores", "confidence"):
        assert torch.equal(getattr(plain, name), getattr(searched, name))
    assert searched.transformations is not None and searched.transformation is not None
    assert torch.equal(searched.transformations, torch.eye(3)[None]) and not searched.transformation.any()
    assert plain.transformation is None


def test_unrelated_images_have_the_matches_of_plain_matching() -> None:
    images = both(photo(4), photo(5))
    plain, searched = matcher().match(*images), matcher(rotations=4).match(*images)
    assert torch.equal(plain.keypoints1, searched.keypoints1)


@pytest.mark.slow
def test_a_plane_that_is_turned_zoomed_and_seen_from_the_side_is_found() -> None:
    size = (320, 416)
    squeeze = np.diag([1 / 3, 1.0, 1.0])  # turned by more than 45 degrees, and squeezed by more than twice
    matrix = similarity(70, 1.2, np.array([69.0, 160.0]), centre(size)) @ squeeze
    picture = photo(11, size)
    wide = cv2.GaussianBlur(picture, (0, 0), sigmaX=1.3, sigmaY=0.01)
    matches = matcher(search=True).match(*both(picture, seen(wide, matrix, size)))
    visible = inside(apply(matrix, matches.keypoints0.numpy()), size)
    assert visible.mean() > 0.9 and (errors(matches, matrix)[visible] < 2).mean() > 0.8


def test_doubtful_matches_are_matched_again_near_the_plane_in_which_they_lie(monkeypatch: pytest.MonkeyPatch) -> None:
    picture, matrix = photo(14), similarity(25, 1.4, centre(SIZE), centre(SIZE))
    images = both(picture, seen(picture, matrix))
    network, plain = matcher().network, matcher()._plain_match
    monkeypatch.setattr(matching, "find", lambda *_: [])
    monkeypatch.setattr(matching, "SETTINGS", replace(SETTINGS, doubtful=1.0))
    before, after = plain(*images), matching.search(*images, network, plain, [])
    assert after.confidence.sum() > 1.3 * before.confidence.sum()
    assert (errors(before, matrix) < 1).sum() < 10 and (errors(after, matrix) < 1).sum() > 200


@pytest.mark.parametrize(("radius", "share"), [(80, 0.1), (None, 0.076)])
def test_a_plane_that_chance_explains_is_not_matched_again(
    monkeypatch: pytest.MonkeyPatch, radius: int | None, share: float
) -> None:
    size = (176, 192)  # a radius of 80 leaves 160 x 160 of these pixels
    images = both(photo(4, size), photo(5, size))
    network, plain = matcher().network.at_radius(radius), matcher()._plain_match
    count, looks = len(plain(*images)), []
    monkeypatch.setattr(matching, "find", lambda *_: [])
    monkeypatch.setattr(matching, "_looked_closer", lambda *_: looks.append(1))
    for held in (np.arange(round((share - 0.01) * count)), np.arange(round((share + 0.01) * count))):
        monkeypatch.setattr(matching, "planes", lambda *_, held=held: [(np.eye(3), held)])
        matching.search(*images, network, plain, [])
    assert looks == [1]


def test_a_search_that_finds_the_wrong_transformation_is_no_worse_than_plain_matching(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    picture = photo(13)
    images = both(picture, np.roll(picture, 4, axis=1))
    wrong = Transformation(
        similarity(180, 1, centre(SIZE), centre(SIZE)), *np.full((2, 9, 2), 80.0), np.ones(9), 8.0, 9
    )
    monkeypatch.setattr(matching, "find", lambda *_: [wrong])
    plain = matcher()._plain_match
    found = matching.search(*images, matcher().network, plain, [])
    assert found.confidence.sum() >= 0.98 * plain(*images).confidence.sum()
    assert np.median(np.hypot(*(found.displacements - torch.tensor([4.0, 0.0])).T)) < 0.5


@pytest.mark.slow
def test_two_objects_that_turn_differently_both_match() -> None:
    size, part = (208, 416), (144, 160)
    pictures, places = [photo(6, part), photo(7, part)], [(104.0, 104.0), (312.0, 104.0)]
    turns = [90.0, -90.0]
    first, second = np.full((*size, 3), 0.5, np.float32), np.full((*size, 3), 0.5, np.float32)
    placed = [similarity(0, 1, centre(part), np.array(place)) for place in places]
    moved = [similarity(turn, 1, centre(part), np.array(place)) for turn, place in zip(turns, places, strict=True)]
    for picture, before, after in zip(pictures, placed, moved, strict=True):
        for image, matrix in ((first, before), (second, after)):
            covered = cv2.warpPerspective(np.ones(part, np.float32), matrix, size[::-1]) > 0.99
            image[covered] = seen(picture, matrix, size)[covered]
    matches = matcher(rotations=4).match(*both(first, second))
    start = matches.keypoints0.numpy()
    chosen = []
    for before, after in zip(placed, moved, strict=True):
        on_object = inside(apply(np.linalg.inv(before), start), part)
        off = errors(matches, after @ np.linalg.inv(before))[on_object]
        assert on_object.sum() > 0.9 * part[0] * part[1] / 64 and (off < 1).mean() > 0.85
        assert matches.transformation is not None
        chosen.append(int(matches.transformation[torch.from_numpy(on_object)].mode().values))
    assert chosen[0] != chosen[1]


def test_grey_images_of_two_sizes_can_be_turned() -> None:
    picture = photo(8)[..., :1]
    second = np.ascontiguousarray(np.rot90(picture, 2))[8:, 16:]
    matches = matcher(rotations=(0, 180)).match(*both(picture, second))
    matrix = similarity(180, 1, np.zeros(2), np.array([SIZE[1] - 1.0 - 16, SIZE[0] - 1.0 - 8]))
    assert (errors(matches, matrix) < 1).mean() > 0.95


def test_matches_of_reduced_images_are_in_the_original_pixels() -> None:
    picture = photo(9, (320, 416))
    second = np.ascontiguousarray(np.rot90(picture, 1))
    matches = matcher(rotations=4, max_size=208).match(*both(picture, second))
    matrix = similarity(-90, 1, centre((320, 416)), centre((416, 320)))
    assert matches.transformations is not None and (matches.size0, matches.size1) == ((320, 416), (416, 320))
    assert (errors(matches, matrix) < 2).mean() > 0.95
    assert apply(matches.transformations[0].double().numpy(), np.array([[50.0, 70.0]])) == pytest.approx(
        apply(matrix, np.array([[50.0, 70.0]])), abs=1.5
    )


def test_hog_finds_a_half_turn_without_a_confidence() -> None:
    picture = photo(10)
    hog = DeepMatcher.from_pretrained("hog", device="cpu", rotations=(0, 180))
    matches = hog.match(*both(picture, np.ascontiguousarray(np.rot90(picture, 2))))
    matrix = similarity(180, 1, centre(SIZE), centre(SIZE))
    assert matches.confidence is None and (errors(matches, matrix) < 3).mean() > 0.9


def test_the_better_supported_transformation_wins_at_each_point() -> None:
    x = torch.arange(4.0, 200, 8)
    starts = torch.stack([x, torch.full_like(x, 4.0)], dim=1)
    sure_on_the_left = torch.where(x < 100, 0.9, 0.1)
    table = torch.eye(3).expand(2, 3, 3)

    def of(number: int, confidence: torch.Tensor) -> Matches:
        numbers = torch.full((len(x),), number)
        return Matches(starts, starts + number, confidence, None, None, confidence, numbers, table)

    merged = merge([of(0, sure_on_the_left), of(1, 1 - sure_on_the_left)])
    assert torch.equal(merged.keypoints0, starts)
    assert merged.transformation is not None
    far = (x - 100).abs() > SETTINGS.window  # between them, that of the most confident matches in all is kept
    assert torch.equal(merged.transformation[far], (x >= 100).long()[far])
    assert torch.equal(merged.displacements[:, 0], merged.transformation.float())
