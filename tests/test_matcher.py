import copy
import math
import pickle
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import cv2
import numpy as np
import pytest
import torch
from PIL import Image

import deepmatching as dm
from deepmatching.errors import DeepMatchingError, OutOfMemoryError
from deepmatching.geometry.homographies import rotation_and_zoom
from deepmatching.io.images import load_image, shrink
from deepmatching.io.weights import write_safetensors
from deepmatching.models import load_network
from deepmatching.settings import MIN_AGREEMENT
from helpers.volumes import blobs

Pictures = tuple[np.ndarray, np.ndarray]


@pytest.fixture
def matcher() -> dm.DeepMatcher:
    return dm.DeepMatcher.from_pretrained("hog", radius=16, device="cpu")


def same(a: dm.Matches, b: dm.Matches) -> bool:
    """Equal to the last bit."""
    return all(torch.equal(getattr(a, name), getattr(b, name)) for name in ("keypoints0", "keypoints1", "scores"))


def test_a_moved_picture_is_matched_by_its_motion(matcher: dm.DeepMatcher, pair: Pictures) -> None:
    matches = matcher.match(*pair)
    x, y = matches.keypoints0.unbind(dim=1)
    inside = (x > 16) & (x < 80) & (y > 16) & (y < 48)
    assert inside.sum() >= 20
    assert (matches.displacements[inside] == torch.tensor([6.0, -4.0])).all()


def test_all_kinds_of_image_give_the_same_matches(matcher: dm.DeepMatcher, pair: Pictures, tmp_path: Path) -> None:
    kinds: dict[str, Callable[[np.ndarray], Any]] = {
        "file": lambda image: image,
        "file of 16 bits": lambda image: image.astype(np.uint16) * 257,
        "file with alpha": lambda image: np.dstack([image, np.full(image.shape[:2], 99, np.uint8)]),
        "PIL image": Image.fromarray,
        "tensor": lambda image: torch.from_numpy(image).permute(2, 0, 1),
        "batch of one": lambda image: torch.from_numpy(image).permute(2, 0, 1)[None].float() / 255,
    }
    expected = matcher.match(*pair)
    for kind, convert in kinds.items():
        images = [convert(image) for image in pair]
        for i, image in enumerate(images):
            if kind.startswith("file"):
                images[i] = tmp_path / f"{kind} {i}.png"
                cv2.imwrite(str(images[i]), image[:, :, [2, 1, 0, 3][: image.shape[2]]])
        assert same(matcher.match(*images), expected), kind


def test_grey_and_colour_can_be_matched(matcher: dm.DeepMatcher, pair: Pictures) -> None:
    assert len(matcher.match(pair[0].mean(axis=2).astype(np.float32) / 255, pair[1])) > 20


def test_batches_give_the_same_matches(matcher: dm.DeepMatcher, pair: Pictures) -> None:
    a, b = pair
    pairs = [(a, b), (b, a), (a[:40, :56], b), (a, a), (b, b)]
    one_by_one = [matcher.match(*p) for p in pairs]
    for batch_size in (2, 3):
        for single, batched in zip(one_by_one, matcher.match_pairs(pairs, batch_size), strict=True):
            assert same(single, batched)


@pytest.mark.parametrize("model", ["vgg", "compact"])
def test_in_a_batch_rounding_moves_matches_by_less_than_a_thousandth_of_a_pixel(pair: Pictures, model: str) -> None:
    matcher = dm.DeepMatcher.from_pretrained(model, radius=16, reciprocal="none", device="cpu")
    pairs = [pair, pair[::-1], pair]
    for single, batched in zip([matcher.match(*p) for p in pairs], matcher.match_pairs(pairs, 3), strict=True):
        assert torch.equal(single.keypoints0, batched.keypoints0)
        torch.testing.assert_close(single.keypoints1, batched.keypoints1, rtol=0, atol=1e-3)


@pytest.mark.parametrize("radius", [16, "full"])
def test_sizes_are_cropped_to_multiples_of_eight(pair: Pictures, radius: object) -> None:
    matcher, (a, b) = dm.DeepMatcher.from_pretrained("hog", radius=radius, device="cpu"), pair
    odd = matcher.match(a[:61, :95], b[:57, :87])
    assert same(matcher.match(a[:56, :88], b[:56, :80]), odd) and odd.size0 == (61, 95)


@pytest.mark.parametrize("downscale", [0, 1, 2])
def test_the_grid_follows_the_downscale(pair: Pictures, downscale: int) -> None:
    matcher = dm.DeepMatcher.from_pretrained("hog", radius=16, downscale=downscale, reciprocal="none", device="cpu")
    matches = matcher.match(*pair)
    step = 4 * 2**downscale
    assert len(matches) == (64 // step) * (96 // step)
    assert torch.equal((matches.keypoints0 + 0.5) % step, torch.full_like(matches.keypoints0, step / 2))


def test_the_network_is_differentiable_down_to_the_images() -> None:
    matcher = dm.DeepMatcher.from_pretrained("hog", radius=8, device="cpu")
    image0, image1 = (torch.rand(1, 3, 24, 24, requires_grad=True) for _ in range(2))
    pyramid = matcher.network(image0, image1)
    pyramid.Q[0].flatten(-2).max(dim=-1).values.sum().backward()
    assert image0.grad is not None and image0.grad.any() and image1.grad is not None and image1.grad.any()
    assert matcher.network.exponents.grad is not None
    assert torch.count_nonzero(matcher.network.exponents.grad) == pyramid.geometry.L + 1


def test_a_model_is_saved_and_loaded(pair: Pictures, tmp_path: Path) -> None:
    matcher = dm.DeepMatcher.from_pretrained("hog", radius=16, downscale=0, device="cpu")
    with torch.no_grad():
        matcher.network.exponents += torch.linspace(0, 1, 8)
    matcher.save(tmp_path / "mine.safetensors")
    loaded = dm.DeepMatcher.from_pretrained(tmp_path / "mine.safetensors", radius=16, device="cpu")
    assert loaded.network.descriptor.stride == 1
    assert same(loaded.match(*pair), matcher.match(*pair))


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"radius": -3}, "positive number"),
        ({"radius": 7}, "multiple of 2"),
        ({"radius": 8.5}, "positive number"),
        ({"radius": "all"}, "'full'"),
        ({"levels": -1}, "levels must be a whole number of at least 0, not -1"),
        ({"levels": 12}, "too large"),
        ({"downscale": 3}, "downscale must be a whole number from 0 to 2, not 3"),
        ({"downscale": 1.0}, "downscale must be a whole number"),
        ({"levels": 10**12}, "too large"),
        ({"memory": 0}, "memory, in bytes, must be"),
        ({"half": True, "device": "cpu"}, "CUDA"),
        ({"reciprocal": "maybe"}, "'bins', 'exact' or 'none'"),
        ({"device": "abacus"}, "Unknown device"),
        ({"device": "cuda:77"}, "no usable device"),
        ({"colour": 1}, "no setting"),
        ({"model": "hogg"}, "Unknown model"),
        ({"model": "missing.safetensors"}, "Unknown model"),
    ],
)
def test_bad_settings_are_refused_in_words(settings: dict, words: str, pair: Pictures) -> None:
    with pytest.raises(DeepMatchingError, match=words):
        dm.DeepMatcher.from_pretrained(settings.pop("model", "hog"), **settings).match(*pair)


@pytest.mark.parametrize(
    ("tensors", "metadata", "words"),
    [
        ({"x": [0.0, 0.0]}, {"format": "", "descriptor": ""}, "not a deepmatching model"),
        ({"x": [0.0, 0.0]}, {}, "another architecture"),
        ({"exponents": [1.0, -1.0]}, {}, "positive"),
        ({"exponents": [1.0]}, {"settings": "{"}, "settings"),
        ({"exponents": [1.0]}, {"settings": '{"colour": 1}'}, "settings"),
        ({"exponents": [1.0]}, {"settings": '{"downscale": 40}'}, "downscale"),
    ],
)
def test_files_that_are_not_models_are_refused(
    tmp_path: Path, tensors: dict[str, list[float]], metadata: dict[str, str], words: str
) -> None:
    path = tmp_path / "m.safetensors"
    found = {name: torch.tensor(values) for name, values in tensors.items()}
    write_safetensors(path, found, {"format": "deepmatching", "descriptor": "hog", **metadata})
    with pytest.raises(DeepMatchingError, match=words):
        dm.DeepMatcher.from_pretrained(path, device="cpu")
    path.write_bytes(b"junk")
    with pytest.raises(DeepMatchingError, match="not a readable"):
        dm.DeepMatcher.from_pretrained(path, device="cpu")


def test_threads_may_share_a_matcher(matcher: dm.DeepMatcher, pair: Pictures) -> None:
    expected = matcher.match(*pair)
    with ThreadPoolExecutor(4) as pool:
        assert all(same(found, expected) for found in pool.map(lambda _: matcher.match(*pair), range(8)))


def test_good_pairs_come_before_the_error_of_a_bad_one(matcher: dm.DeepMatcher, pair: Pictures) -> None:
    def failing() -> Iterator[Pictures]:
        yield from (pair, pair)
        raise RuntimeError("of the caller")

    for pairs, error in (([pair, pair, (pair[0],)], DeepMatchingError), (failing(), RuntimeError)):
        found = matcher.match_pairs(pairs, batch_size=4)  # type: ignore[arg-type]
        assert len(next(found)) == len(next(found)) > 20
        with pytest.raises(error, match=r"two images|of the caller"):
            next(found)
    with pytest.raises(DeepMatchingError, match="at least 1"):
        list(matcher.match_pairs([pair], batch_size=0))


@pytest.mark.parametrize("model", ["compact", "hog"])
def test_matches_that_are_probably_wrong_are_warned_of_once(model: str) -> None:
    matcher = dm.DeepMatcher.from_pretrained(model, radius=16, device="cpu")
    noise = np.random.default_rng(0).integers(0, 255, (3, 64, 96), np.uint8)
    with warnings.catch_warnings(record=True, action="ignore") as caught:  # other packages warn of other things
        warnings.simplefilter("default", UserWarning)
        matcher.match(noise[0], noise[0])
        assert not caught
        found = list(matcher.match_pairs([(noise[0], noise[1]), (noise[0], noise[2])]))
    (warning,) = caught
    assert "probably wrong" in str(warning.message) and warning.filename == __file__
    expected = sum(matches.expected_correct for matches in found)
    assert math.isnan(expected) if model == "hog" else expected < 20


def test_too_small_an_image_is_refused(matcher: dm.DeepMatcher) -> None:
    with pytest.raises(DeepMatchingError, match="smaller than one patch"):
        matcher.match(np.zeros((7, 50), np.uint8), np.zeros((50, 50), np.uint8))


def test_out_of_memory_is_predicted(matcher: dm.DeepMatcher, monkeypatch: pytest.MonkeyPatch, pair: Pictures) -> None:
    monkeypatch.setattr("deepmatching.network.memory.free_bytes", lambda device: 1000)
    with pytest.raises(OutOfMemoryError, match="allow more memory"):
        matcher.match(*pair)


@pytest.mark.parametrize(("error", "kind"), [(MemoryError(), OutOfMemoryError), (KeyError("ours"), KeyError)], ids=str)
def test_a_failed_allocation_is_told_from_other_errors(
    matcher: dm.DeepMatcher, monkeypatch: pytest.MonkeyPatch, pair: Pictures, error: Exception, kind: type[Exception]
) -> None:
    monkeypatch.setattr("deepmatching.network.network.decode_fused", Mock(side_effect=error))
    for work in (lambda: matcher.match(*pair), lambda: list(matcher.match_sequence(pair)), lambda: matcher.flow(*pair)):
        with pytest.raises(kind):
            work()


def test_score_maps_are_drawn(matcher: dm.DeepMatcher, pair: Pictures, tmp_path: Path) -> None:
    picture = matcher.draw_scores(*pair, (40, 30), tmp_path / "scores.png")
    assert (tmp_path / "scores.png").stat().st_size > 0
    assert picture.shape[2] == 3 and min(picture.shape[:2]) > 100
    with pytest.raises(DeepMatchingError, match="not in the first image"):
        matcher.draw_scores(*pair, (100, 30))
    several = matcher.draw_scores(*pair, [(40, 30), (20, 20)])
    assert several.shape[0] > picture.shape[0] and several.shape[1] == picture.shape[1]


def test_the_points_of_score_maps_are_the_nearest_reference_points_and_their_matches(
    pair: Pictures, monkeypatch: pytest.MonkeyPatch
) -> None:
    drawn: list[Any] = []
    monkeypatch.setattr("deepmatching.drawing.draw_score_maps", lambda *arguments: drawn.append(arguments))
    matcher = dm.DeepMatcher.from_pretrained("hog", radius=16, device="cpu", reciprocal="none")
    matcher.draw_scores(*pair, [(40, 30), (20, 20)])
    (rows, _, starts, ends), matches = drawn[0], matcher.match(*pair)
    assert [row[0][0] for row in rows] == ["1: S_0", "1: Q_0", "2: S_0", "2: Q_0"]
    for point, match, asked in zip(starts, ends, ((40, 30), (20, 20)), strict=True):
        nearest = (matches.keypoints0 - torch.tensor(asked)).norm(dim=1).argmin()
        assert point == tuple(matches.keypoints0[nearest].tolist())
        assert match == tuple(matches.keypoints1[nearest].tolist())


def test_a_matcher_can_be_pickled_and_copied(matcher: dm.DeepMatcher, pair: Pictures) -> None:
    expected = matcher.match(*pair)
    for other in (pickle.loads(pickle.dumps(matcher)), copy.deepcopy(matcher), copy.copy(matcher)):
        assert same(other.match(*pair), expected) and other.settings == matcher.settings


def test_a_call_matches_one_pair_or_two_batches(matcher: dm.DeepMatcher, pair: Pictures) -> None:
    forward, backward = matcher.match(*pair), matcher.match(*pair[::-1])
    assert same(matcher(*pair), forward)
    first, second = (load_image(image) for image in pair)
    batched = matcher(torch.stack([first, second]), torch.stack([second, first]))
    assert isinstance(batched, list) and all(map(same, batched, (forward, backward))) and len(batched) == 2
    with pytest.raises(DeepMatchingError, match="2, 1"):
        matcher(torch.stack([first, second]), second[None])


def test_a_matcher_moves_between_devices_and_says_what_it_is() -> None:
    matcher = dm.DeepMatcher.from_pretrained("hog", radius="full", device="auto")
    assert matcher.to("cpu") is matcher
    assert matcher.device.type == "cpu" and matcher.settings.device == "cpu"
    assert repr(matcher) == "DeepMatcher(HOG, radius full, on cpu)"
    with pytest.raises(DeepMatchingError, match="Unknown device"):
        matcher.to("abacus")


@pytest.fixture
def large_pair() -> Pictures:
    """Two pictures of 240×320: blobs, and the same moved by (+12, −8) pixels."""
    coarse = np.random.default_rng(0).uniform(0, 255, (40, 50, 3)).astype(np.float32)
    picture = cv2.resize(coarse, (400, 320), interpolation=cv2.INTER_CUBIC).clip(0, 255).astype(np.uint8)
    return picture[40:280, 40:360].copy(), picture[48:288, 28:348].copy()


def test_matches_at_a_reduced_size_are_in_pixels_of_the_original(large_pair: Pictures) -> None:
    matcher = dm.DeepMatcher.from_pretrained("compact", device="cpu", radius=16, max_size=160)
    matches = matcher.match(*large_pair)
    assert (matches.size0, matches.size1) == ((240, 320), (240, 320))
    assert len(matches) <= 15 * 20 and matches.keypoints0.max() > 280
    error = (matches.displacements - torch.tensor([12.0, -8.0])).norm(dim=1)
    assert error.median() < 1.0 and (error < 2).float().mean() > 0.8
    in_sequence = next(matcher.match_sequence(large_pair))
    assert torch.equal(in_sequence.keypoints1, matches.keypoints1) and in_sequence.size0 == (240, 320)
    larger, smaller = (matcher.plan(size, size) for size in ((240, 320), (120, 160)))
    assert larger.needed == smaller.needed + 2 * 12 * 240 * 320  # the originals are held too
    result = matcher.flow(*large_pair)
    assert result.flow.shape == (240, 320, 2) and result.confidence.shape == (240, 320)
    assert np.abs(result.flow[40:-40, 40:-40] - (12, -8)).mean() < 1.0
    with pytest.raises(DeepMatchingError, match="leave max_size out"):
        matcher.flow(*large_pair, edges=np.zeros((240, 320)))
    small = [shrink(load_image(image), 160) for image in large_pair]
    point = matcher.draw_scores(*large_pair, (200.5, 100.5))
    np.testing.assert_array_equal(point, matcher.draw_scores(*small, (100, 50)))


def test_images_within_the_maximal_size_are_matched_as_they_are(matcher: dm.DeepMatcher, pair: Pictures) -> None:
    limited = dm.DeepMatcher(matcher.network, replace(matcher.settings, max_size=96))
    assert same(matcher.match(*pair), limited.match(*pair))


def test_images_of_12_bits_are_matched_like_those_of_16(pair: Pictures) -> None:
    first, second = (image.astype(np.uint16) * 16 for image in pair)
    matcher = dm.DeepMatcher.from_pretrained("hog", device="cpu", radius=16, bit_depth=12)
    assert torch.equal(matcher.load(first), load_image((first / np.float32(4095)).astype(np.float32)))
    assert len(matcher.match(first, second)) > 50


@pytest.mark.parametrize("batch_size", [1, 3])
def test_an_unreadable_pair_can_be_reported_while_the_others_are_matched(
    matcher: dm.DeepMatcher, pair: Pictures, tmp_path: Path, batch_size: int
) -> None:
    missing = str(tmp_path / "missing.png")
    pairs = [pair, (missing, pair[0]), pair, pair, (pair[0], missing)]
    with pytest.raises(DeepMatchingError, match=r"missing\.png"):
        list(matcher.match_pairs(pairs, batch_size))
    reported: dict[int, DeepMatchingError] = {}
    found = list(matcher.match_pairs(pairs, batch_size, on_error=reported.__setitem__))
    assert list(reported) == [1, 4] and all("missing.png" in str(error) for error in reported.values())
    assert [len(matches) > 50 for matches in found] == [True, False, True, True, False]
    assert len(found[1]) == len(found[4]) == 0


@pytest.mark.slow
def test_the_agreement_tells_pairs_that_can_be_matched_from_those_that_cannot(shared: Path) -> None:
    matcher = dm.DeepMatcher.from_pretrained(device="cpu", auto=False)
    folder = shared / "flow" / "oxford_affine"
    photos = [cv2.imread(str(path))[:, :, ::-1] for path in sorted((shared / "photos").rglob("bsds500/**/*.jpg"))[:2]]
    rows, columns = photos[0].shape[:2]
    turn, zoom = (cv2.getRotationMatrix2D((columns / 2, rows / 2), *change) for change in ((30.0, 1.0), (0.0, 2.0)))
    turned, zoomed = (cv2.warpAffine(photos[0], change, (columns, rows)) for change in (turn, zoom))
    bad = [
        (folder / "bark" / "img1.png", folder / "bark" / "img3.png"),  # rotated and zoomed
        (photos[0], photos[1]),
        (photos[0], np.rot90(photos[0])),
        (photos[0], turned),
        (photos[0], zoomed),
        (photos[0][:, : columns - 120], photos[0][:, 120:]),  # beyond the radius of 80 pixels
    ]
    good = [
        (folder / "graf" / "img1.png", folder / "graf" / "img2.png"),  # acc@10 is 41 %
        (photos[0][:, : columns - 60], photos[0][:, 60:]),
    ]
    assert all(matcher.match(*two).agreement < MIN_AGREEMENT for two in bad)
    assert all(matcher.match(*two).agreement > MIN_AGREEMENT for two in good)


@pytest.mark.slow
def test_a_failed_match_is_searched_without_a_limit_unless_a_setting_forbids_it() -> None:
    picture = blobs(3, 1, 3, 240, 320)[0]
    turned = torch.rot90(picture, 1, (1, 2))
    plain: dict[str, Any] = {"device": "cpu"}
    found = dm.DeepMatcher.from_pretrained(**plain).match(picture, turned)
    assert found.transformation is not None
    rotation = found.derivatives.mean(dim=0).numpy()
    assert abs(rotation_and_zoom(rotation)[0] + 90) < 5 and len(found.filter(0.5)) > 500
    for forbids in ({"auto": False}, {"radius": 80}):
        assert dm.DeepMatcher.from_pretrained(**plain, **forbids).match(picture, turned).transformation is None


@pytest.mark.parametrize(("name", "tries"), [("compact", "photo"), ("photo", "photo"), ("vgg", "vgg")])
def test_the_default_model_leaves_a_second_attempt_to_the_one_for_photographs(name: str, tries: str) -> None:
    made = dm.DeepMatcher.from_pretrained(name, device="cpu", levels=2, pooling="soft")
    for matcher in (made, pickle.loads(pickle.dumps(made))):
        used = matcher._wide_matcher().network
        assert used is matcher._wide_matcher().network and (used.radius, used.levels, used.pooling) == (None, 2, "soft")
        mine, its = (network.descriptor.state_dict() for network in (load_network(tries), used))
        assert all(torch.equal(mine[key], its[key]) for key in mine | its)


def test_a_match_that_has_not_failed_is_not_searched() -> None:
    picture = blobs(3, 1, 3, 96, 128)[0]
    matchers = (dm.DeepMatcher.from_pretrained(device="cpu", auto=auto) for auto in (True, False))
    found, expected = (matcher.match(picture, picture) for matcher in matchers)
    assert found.transformation is None and same(found, expected)


def test_both_directions_say_which_matches_lead_back(pair: Pictures) -> None:
    """At the left and below, the second picture does not show what the first one does."""
    matcher = dm.DeepMatcher.from_pretrained(radius=16, device="cpu", reciprocal="none")
    plain, found = matcher.match(*pair), matcher.match(*pair, both=True)
    assert plain.cycle_error is None and found.cycle_error is not None and same(plain, found)
    right = (found.displacements - torch.tensor([6.0, -4])).norm(dim=1) < 1
    assert found.cycle_error[right].median() < 0.3 and found.cycle_error[~right].median() > 1
    with pytest.raises(DeepMatchingError, match="both"):
        matcher.match(*pair, both=1)  # type: ignore[arg-type]
