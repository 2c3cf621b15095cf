"""``DeepMatcher.match`` and ``flow`` of images with masks."""

import math
import warnings
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

import deepmatching as dm
from deepmatching.errors import DeepMatchingError

Pictures = tuple[np.ndarray, np.ndarray]


@pytest.fixture(scope="module")
def matcher() -> dm.DeepMatcher:
    return dm.DeepMatcher.from_pretrained(radius=16, device="cpu")


def same(a: dm.Matches, b: dm.Matches) -> bool:
    """Equal to the last bit."""
    return all(torch.equal(getattr(a, name), getattr(b, name)) for name in ("keypoints0", "keypoints1", "certainty"))


@pytest.fixture
def masks(pair: Pictures) -> Pictures:
    """Return masks of the pair, each False in a rectangle."""
    both = np.ones((2, *pair[0].shape[:2]), bool)
    both[0, 10:34, 20:45] = both[1, 24:64, 60:] = False
    return both[0], both[1]


@pytest.fixture
def other(pair: Pictures, masks: Pictures, rng: np.random.Generator) -> list[np.ndarray]:
    """Return the pair with noise where it is masked."""
    noise = rng.integers(0, 256, (2, *pair[0].shape), np.uint8)
    return [np.where(mask[..., None], image, n) for image, mask, n in zip(pair, masks, noise, strict=True)]


CASES: list[tuple[str, dict[str, Any]]] = [
    ("hog", {}),
    ("hog", {"radius": "full"}),
    ("hog", {"max_size": 80}),
    ("hog", {"rotations": (0, 90)}),
    ("hog", {"levels": 0}),
    ("hog", {"pooling": "soft"}),
    ("hog", {"reciprocal": "exact"}),
    ("compact", {}),
    ("compact", {"radius": "full"}),
    ("vgg", {}),
]


@pytest.mark.slow
@pytest.mark.parametrize(("model", "settings"), CASES, ids=str)
def test_masked_pixels_start_and_end_no_match_and_change_none(
    model: str, settings: dict[str, Any], pair: Pictures, masks: Pictures, other: list[np.ndarray]
) -> None:
    matcher = dm.DeepMatcher.from_pretrained(model, **{"radius": 16, "device": "cpu", **settings})
    matches, found = (matcher.match(*images, mask0=masks[0], mask1=masks[1]) for images in (pair, other))
    assert len(matches) >= 10 and same(matches, found)
    for points, mask in zip((matches.keypoints0, matches.keypoints1), masks, strict=True):
        for x, y in points.tolist():
            assert mask[math.floor(y) : math.ceil(y) + 1, math.floor(x) : math.ceil(x) + 1].all()


@pytest.mark.slow
def test_a_turned_image_may_have_a_mask(pair: Pictures, masks: Pictures, other: list[np.ndarray]) -> None:
    matcher = dm.DeepMatcher.from_pretrained("hog", device="cpu", rotations=4)
    first, second, noise = (np.kron(image, np.ones((2, 2, 1), np.uint8)) for image in (*pair, other[1]))
    hidden = np.kron(masks[1], np.ones((2, 2), bool))
    found, same_as = (matcher.match(first, np.rot90(i).copy(), mask1=np.rot90(hidden)) for i in (second, noise))
    assert len(found) > 50 and same(found, same_as)
    assert found.transformations is not None and not torch.equal(found.transformations[0], torch.eye(3))
    x, y = found.keypoints1.round().long().T
    assert np.rot90(hidden)[y, x].all()


@pytest.mark.parametrize("radius", [16, "full"])
def test_masks_that_hide_nothing_change_nothing_and_those_that_hide_all_leave_nothing(
    radius: Any, pair: Pictures
) -> None:
    matcher = dm.DeepMatcher.from_pretrained(radius=radius, device="cpu")
    ones, none = np.ones(pair[0].shape[:2], bool), np.zeros(pair[0].shape[:2], np.uint8)
    assert same(matcher.match(*pair), matcher.match(*pair, mask0=ones, mask1=ones))
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # that nothing is left says nothing about the matches
        assert len(matcher.match(*pair, mask0=none)) == len(matcher.match(*pair, mask1=none)) == 0


def test_pairs_may_carry_masks(matcher: dm.DeepMatcher, pair: Pictures, masks: Pictures) -> None:
    plain, both, one = matcher.match_pairs([pair, (*pair, *masks), (*pair, None, masks[1])], batch_size=3)
    assert same(plain, matcher.match(*pair)) and same(both, matcher.match(*pair, mask0=masks[0], mask1=masks[1]))
    assert same(one, matcher.match(*pair, mask1=masks[1])) and len(both) < len(one) < len(plain)
    with pytest.raises(DeepMatchingError, match="two masks"):
        next(matcher.match_pairs([(*pair, masks[0])]))


@pytest.mark.parametrize("channels", [1, 3])
def test_masks_hold_both_ways_and_in_inference_mode(
    channels: int, matcher: dm.DeepMatcher, pair: Pictures, masks: Pictures
) -> None:
    images = [image[..., :channels] for image in pair]
    expected = matcher.match(*images, mask0=masks[0], mask1=masks[1])
    with torch.inference_mode():
        found = matcher.match(*images, mask0=masks[0], mask1=masks[1], both=True)
    assert same(found, expected) and found.cycle_error is not None


def test_a_mask_of_another_size_is_refused(matcher: dm.DeepMatcher, pair: Pictures) -> None:
    with pytest.raises(DeepMatchingError, match=r"mask1 has 9x8 pixels.*96x64"):
        matcher.match(*pair, mask1=np.ones((8, 9), bool))


def test_matches_of_a_small_part_of_the_image_are_not_called_wrong(matcher: dm.DeepMatcher, pair: Pictures) -> None:
    usable = np.zeros(pair[0].shape[:2], bool)
    usable[20:50, 30:60] = True
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert 3 <= len(matcher.match(*pair, mask0=usable)) < 30


def test_there_are_no_more_matches_than_points_that_may_be_matched(matcher: dm.DeepMatcher, pair: Pictures) -> None:
    usable = np.zeros(pair[0].shape[:2], bool)
    usable[8:40, 8:60] = True
    found = matcher.match(*pair, mask0=usable, mask1=usable)
    assert found.reference_points is not None and 3 <= len(found) <= found.reference_points
    assert found.expected_fraction <= 1


@pytest.mark.slow
@pytest.mark.parametrize("options", [{}, {"preset": "classic"}, {"matches": True}], ids=str)
def test_the_flow_does_not_depend_on_masked_pixels(
    options: dict[str, Any], matcher: dm.DeepMatcher, pair: Pictures, masks: Pictures, other: list[np.ndarray]
) -> None:
    if "matches" in options:
        options = {"matches": matcher.match(*pair)}
    found, again = (matcher.flow(*images, mask0=masks[0], mask1=masks[1], **options) for images in (pair, other))
    assert np.array_equal(found.flow, again.flow) and np.array_equal(found.confidence, again.confidence)
    assert np.abs(np.median(found.flow[~masks[0]], axis=0) - (6, -4)).max() < 0.5  # from outside
    assert (found.confidence[~masks[0]] == 0).all() and found.confidence[40:50, 20:40].min() > 0.5


def test_flow_where_nothing_may_be_matched_is_refused(matcher: dm.DeepMatcher, pair: Pictures) -> None:
    with pytest.raises(DeepMatchingError, match="mask"):
        matcher.flow(*pair, mask1=np.zeros(pair[0].shape[:2], bool))


def test_masks_that_hide_nothing_do_not_change_the_flow(matcher: dm.DeepMatcher, pair: Pictures) -> None:
    ones = np.ones(pair[0].shape[:2], bool)
    plain, found = matcher.flow(*pair), matcher.flow(*pair, mask0=ones, mask1=ones)
    assert np.array_equal(plain.flow, found.flow) and np.array_equal(plain.confidence, found.confidence)


@pytest.fixture
def transparent(pair: Pictures, other: list[np.ndarray], masks: Pictures) -> list[list[np.ndarray]]:
    """Return the pair and the same with noise, RGBA, each transparent where it is masked."""
    return [[np.dstack([i, m * np.uint8(255)]) for i, m in zip(both, masks, strict=True)] for both in (pair, other)]


def test_alpha_is_a_mask_on_request_only(
    matcher: dm.DeepMatcher, pair: Pictures, masks: Pictures, transparent: list[list[np.ndarray]]
) -> None:
    seeing = dm.DeepMatcher(matcher.network, replace(matcher.settings, use_alpha=True))
    expected = matcher.match(*pair, mask0=masks[0], mask1=masks[1])
    assert all(same(seeing.match(*images), expected) for images in transparent)
    loaded = [seeing.load(image) for image in transparent[1]]
    assert torch.equal(loaded[0], matcher.load(transparent[1][0]))  # the colours that are drawn stay
    assert same(seeing.match(*loaded), expected) and same(next(seeing.match_sequence(loaded)), expected)
    assert same(
        seeing.match(*transparent[0], mask0=masks[1]), matcher.match(*pair, mask0=masks[0] & masks[1], mask1=masks[1])
    )
    plain = matcher.match(*pair)
    assert same(matcher.match(*transparent[0]), plain) and same(seeing.match(*pair), plain)
    assert seeing.describe() == {**matcher.describe(), "use_alpha": True} and "use_alpha" not in matcher.describe()


@pytest.mark.slow
def test_the_flow_sees_alpha_in_pairs_sequences_and_points(
    matcher: dm.DeepMatcher, pair: Pictures, masks: Pictures, transparent: list[list[np.ndarray]]
) -> None:
    seeing = dm.DeepMatcher(matcher.network, replace(matcher.settings, use_alpha=True))
    expected = matcher.flow(*pair, mask0=masks[0], mask1=masks[1])
    for found in (seeing.flow(*transparent[1]), next(iter(seeing.flow_sequence(transparent[1])))):
        assert np.array_equal(found.flow, expected.flow) and np.array_equal(found.confidence, expected.confidence)
    hidden, seen = (30, 20), (30, 45)
    points = seeing.match_points(*transparent[0], [hidden, seen])
    assert points.confidence[0] == 0 and points.confidence[1] > 0.5
    *_, tracked = seeing.track(transparent[0], [hidden, seen])
    assert tracked.confidence[0] == 0 and tracked.confidence[1] > 0.5
