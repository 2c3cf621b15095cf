"""``DeepMatcher.flow`` and what goes with it."""

import subprocess
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import Mock, create_autospec

import numpy as np
import pytest
import torch

import deepmatching as dm
from deepmatching import matcher as matcher_module
from deepmatching import matching as matching_module
from deepmatching.errors import DeepMatchingError
from deepmatching.flow import PRESETS, Frame, Matching, RefinementSettings
from deepmatching.flow.settings import FEWER_LEVELS
from deepmatching.geometry.discretization import Geometry
from deepmatching.io import images as images_module
from deepmatching.io.images import load_image
from deepmatching.matcher import default_matcher
from deepmatching.models import build_confidence
from deepmatching.network.network import Network
from deepmatching.settings import FLOW_RADIUS, MIN_EXPECTED, Settings
from helpers.synthetic_pictures import draw_photo, draw_small_object
from helpers.volumes import blobs

Pictures = tuple[np.ndarray, np.ndarray]


@pytest.fixture(scope="module")
def matcher() -> dm.DeepMatcher:
    return dm.DeepMatcher.from_pretrained(radius=16, device="cpu")


def sequence(count: int) -> list[np.ndarray]:
    """Smooth noise of 48×64 that moves by (4, −2) pixels from frame to frame."""
    noise = np.random.default_rng(1).uniform(0, 255, (120, 160, 3))
    for axis in (0, 1):
        noise = (noise + np.roll(noise, 1, axis) + np.roll(noise, -1, axis)) / 3
    return [noise[40 + 2 * t : 88 + 2 * t, 60 - 4 * t : 124 - 4 * t].astype(np.uint8) for t in range(count)]


def inner(flow: np.ndarray) -> np.ndarray:
    return flow[10:-10, 10:-10]


def test_a_moved_picture_flows_by_its_motion(matcher: dm.DeepMatcher, pair: Pictures) -> None:
    result = matcher.flow(*pair)
    assert np.abs(inner(result.flow) - (6, -4)).mean() < 0.1
    assert np.isfinite(result.flow).all()
    assert inner(result.confidence).mean() > 0.8
    assert set(result.seconds) == {"matching", "edges", "interpolation", "refinement"}


def test_grey_images_have_a_flow(matcher: dm.DeepMatcher, pair: Pictures) -> None:
    grey = [image.mean(axis=2).astype(np.uint8) for image in pair]
    for images in (grey, [grey[0], pair[1]]):
        assert np.abs(inner(matcher.flow(*images).flow) - (6, -4)).mean() < 0.3


@pytest.mark.slow
@pytest.mark.parametrize("preset", sorted(PRESETS))
def test_every_preset_works(matcher: dm.DeepMatcher, pair: Pictures, preset: str) -> None:
    named, given = matcher.flow(*pair, preset), matcher.flow(*pair, PRESETS[preset])
    np.testing.assert_array_equal(named.flow, given.flow)
    assert np.abs(inner(named.flow) - (6, -4)).mean() < 0.3


@pytest.mark.slow
def test_our_own_presets_match_backwards_unless_matches_are_judged(
    pair: Pictures, monkeypatch: pytest.MonkeyPatch
) -> None:
    matcher = dm.DeepMatcher.from_pretrained("hog", radius=16, device="cpu")
    decode = create_autospec(Matching.decode, side_effect=Matching.decode)
    monkeypatch.setattr(Matching, "decode", decode)
    others = {name: PRESETS[name] for name in ("original", "sintel", "kitti", "middlebury")}
    others |= {f"{name}, changed": replace(old, refinement=RefinementSettings(steps=1)) for name, old in others.items()}
    ours = ((PRESETS["default"], 2), (PRESETS["classic"], 2))
    for settings, expected in (*ours, *((settings, 1) for settings in others.values())):
        decode.reset_mock()
        matcher.flow(*pair, settings)
        assert decode.call_count == expected
    matcher.network.confidence = build_confidence(matcher.network.descriptor, width=8, scales=2, context=16)
    for name, expected in (("default", 1), ("classic", 2), ("original", 1)):
        decode.reset_mock()
        result = matcher.flow(*pair, name)
        assert decode.call_count == expected
        assert result.occlusion is not None and result.occlusion.shape == pair[0].shape[:2]


def test_matches_of_any_matcher_are_interpolated(matcher: dm.DeepMatcher, pair: Pictures, tmp_path: Path) -> None:
    start = torch.tensor([[20.0, 20.0], [70.0, 20.0], [20.0, 50.0], [70.0, 50.0]])
    matches = dm.Matches(start, start + torch.tensor([1.0, 3.0]), torch.ones(4))
    matches.save(tmp_path / "m.npz")
    still = np.zeros_like(pair[0])  # nothing to refine by
    for given in (matches, tmp_path / "m.npz", str(tmp_path / "m.npz")):
        result = matcher.flow(still, still, matches=given, edges=np.zeros((64, 96), np.float32))
        np.testing.assert_allclose(result.flow, np.broadcast_to(np.float32((1, 3)), (64, 96, 2)), atol=1e-4)
        assert result.matches == 4 and "matching" not in result.seconds


def test_the_radius_of_flow_is_its_own_unless_one_is_set(pair: Pictures) -> None:
    unset = dm.DeepMatcher.from_pretrained("hog", device="cpu")
    assert unset.network.radius == 80
    assert unset.for_flow().network.radius == FLOW_RADIUS
    assert unset.for_flow(64).network.radius == 64
    assert unset.for_flow("full").network.radius is None
    assert unset.for_flow(64) is unset.for_flow(64)
    matcher = dm.DeepMatcher.from_pretrained("hog", radius=8, device="cpu")
    assert matcher.for_flow() is matcher
    assert matcher.for_flow(16).network.radius == 16 and matcher.network.radius == 8
    assert np.abs(matcher.flow(*pair, radius=16).flow.mean(axis=(0, 1)) - (6, -4)).max() < 1
    with pytest.raises(DeepMatchingError, match="positive number"):
        matcher.for_flow(-1)


def test_the_matcher_for_flow_is_made_once_and_knows_whether_a_radius_was_asked_for() -> None:
    matcher = dm.DeepMatcher.from_pretrained("compact", device="cpu")
    assert matcher.for_flow().for_flow() is matcher.for_flow()
    assert matcher.for_flow()._may_shrink_radius and not matcher.for_flow(64)._may_shrink_radius
    small = (40, 48)
    assert matcher.for_flow().geometry(small, small) == replace(matcher.geometry(small, small), radius=FLOW_RADIUS)


def test_the_matches_of_a_search_have_all_levels(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(matcher_module, "find", find := Mock(return_value=[]))
    picture = np.random.default_rng(0).integers(0, 255, (48, 64, 3)).astype(np.uint8)
    matcher = dm.DeepMatcher.from_pretrained("compact", device="cpu", rotations=(0, 90))
    matcher.flow(picture, picture)
    network, size = find.call_args.args[2], (200, 280)
    assert network.geometry(size, size).L == matcher.geometry(size, size).L > FEWER_LEVELS


@pytest.mark.slow
def test_the_flow_of_a_failed_match_is_that_of_a_search_unless_a_setting_forbids_it() -> None:
    picture = blobs(3, 1, 3, 240, 240)[0]
    turned, matcher = torch.rot90(picture, 1, (1, 2)), dm.DeepMatcher.from_pretrained(device="cpu")
    found = matcher.flow(picture, turned)
    assert found.is_searched and found.expected_fraction > 0.5
    x, y = np.meshgrid(np.arange(240), np.arange(240))  # (x, y) turns to (y, 239 − x)
    assert np.median(np.hypot(found.flow[..., 0] - (y - x), found.flow[..., 1] - (239 - x - y))) < 1
    assert not matcher.flow(picture, turned, radius=100).is_searched
    for forbids in ({"auto": False}, {"radius": 80}):
        forbidden = dm.DeepMatcher(matcher.network, Settings(device="cpu", **forbids)).flow(picture, turned)
        assert not forbidden.is_searched and forbidden.expected_fraction < MIN_EXPECTED


def test_the_flow_of_a_search_is_computed_within_max_size(monkeypatch: pytest.MonkeyPatch) -> None:
    pictures = blobs(3, 1, 3, 96, 128)[0], blobs(3, 1, 3, 80, 128)[0]
    matcher = dm.DeepMatcher.from_pretrained("hog", device="cpu", radius=16, max_size=64)
    compute = Mock(side_effect=matcher_module.matches_to_flow)
    monkeypatch.setattr(matcher_module, "matches_to_flow", compute)
    matches = matcher.match(*pictures)
    found = matcher.flow_of_searched(matches, *pictures, edges="gradient")
    given, *images = compute.call_args.args[:3]
    assert [image.shape[1:] for image in images] == [(48, 64), (40, 64)] == [given.size0, given.size1]
    assert found.flow.shape == (96, 128, 2)


def test_known_matches_serve_the_flow() -> None:
    images = [torch.from_numpy(picture).permute(2, 0, 1).float() / 255 for picture in draw_small_object()]
    matcher = dm.DeepMatcher.from_pretrained("compact", radius=32, device="cpu")
    geometry, size = matcher.geometry((132, 194), (132, 194)), (132, 194)
    assert geometry.L > FEWER_LEVELS
    cells = matcher.network.describe(images[0][None], images[1][None], geometry)
    known = geometry, matcher.network.decode_descriptors(*cells, geometry)
    frames = [Frame(image, image, own, size) for image, own in zip(images, cells, strict=True)]
    np.testing.assert_array_equal(matcher.flow_between(*frames, known=known).flow, matcher.flow(*images).flow)
    classic = matcher.flow_between(*frames, "classic", known=known)
    np.testing.assert_array_equal(classic.flow, matcher.flow(*images, "classic").flow)


def test_a_network_at_another_radius_has_the_same_parameters() -> None:
    network = dm.DeepMatcher.from_pretrained("hog", radius=8, device="cpu").network
    other = network.at_radius(24)
    with torch.no_grad():
        network.exponents.fill_(1.125)
    assert other.exponents[0].item() == 1.125 and other.descriptor is network.descriptor
    assert (network.radius, other.radius) == (8, 24)


def test_consecutive_frames_have_the_matches_of_their_pairs(matcher: dm.DeepMatcher) -> None:
    frames = sequence(3)
    found = list(matcher.match_sequence(iter(frames)))
    assert len(found) == 2
    for number, matches in enumerate(found):
        expected = matcher.match(frames[number], frames[number + 1])
        assert torch.equal(matches.keypoints0, expected.keypoints0)
        torch.testing.assert_close(matches.keypoints1, expected.keypoints1)
        torch.testing.assert_close(matches.scores, expected.scores)
        assert matches.size0 == (48, 64)


@pytest.mark.parametrize("settings", [{}, {"rotations": 1}, {"use_alpha": True}], ids=str)
def test_a_frame_that_cannot_be_read_is_named_by_its_number(settings: dict[str, Any]) -> None:
    matcher = dm.DeepMatcher.from_pretrained("hog", radius=16, device="cpu", **settings)
    for sequence_of in (matcher.match_sequence, matcher.flow_sequence):
        with pytest.raises(DeepMatchingError, match=r"frame 2.*missing"):
            list(sequence_of([*sequence(2), "missing.png"]))  # type: ignore[operator]


@pytest.mark.slow
def test_a_sequence_describes_every_frame_once_and_flows_as_its_pairs(
    matcher: dm.DeepMatcher, monkeypatch: pytest.MonkeyPatch
) -> None:
    frames = sequence(4)
    alone = [matcher.flow(*frames[n : n + 2]) for n in range(3)]
    describe = create_autospec(Network.describe_image, side_effect=Network.describe_image)
    monkeypatch.setattr(Network, "describe_image", describe)
    results = list(matcher.flow_sequence(frames))
    assert [len(call.args[1]) for call in describe.call_args_list] == [1, 1, 1, 1]
    for result, expected in zip(results, alone, strict=True):
        np.testing.assert_array_equal(result.flow, expected.flow)
        assert np.abs(inner(result.flow) - (4, -2)).mean() < 0.2


def test_frames_are_taken_one_at_a_time(matcher: dm.DeepMatcher) -> None:
    frames = iter(sequence(4))
    next(matcher.flow_sequence(frames))
    assert len(list(frames)) == 2


def test_what_does_not_fit_is_refused_in_words(matcher: dm.DeepMatcher, pair: Pictures) -> None:
    points = torch.tensor([[5.0, 5.0]])
    given, outside = (dm.Matches(start, points, torch.ones(1)) for start in (points, points + 200))
    refused: list[tuple[dict[str, Any], str]] = [
        ({"preset": "fast"}, "no preset 'fast': use default"),
        ({"edges": np.zeros((10, 10), np.float32)}, "edge map"),
        ({"matches": "missing.txt"}, "no matches file"),
        ({"matches": 3}, "matches must be Matches or the path of their file, not int"),
        ({"matches": given, "radius": 16}, "radius has no effect on given matches"),
        ({"matches": outside}, "1 of 1 matches start outside"),
    ]
    for changes, words in refused:
        with pytest.raises(DeepMatchingError, match=words):
            matcher.flow(**{"image0": pair[0], "image1": pair[1], **changes})
    edge_map = np.zeros(pair[0].shape[:2], np.float32)
    for one_map in (edge_map, torch.from_numpy(edge_map), "edges.png", Path("edges.png")):
        with pytest.raises(DeepMatchingError, match="One edge map cannot serve all frames"):
            matcher.flow_sequence(pair, edges=one_map)


@pytest.mark.parametrize("settings", [{}, {"rotations": 1}, {"use_alpha": True}], ids=str)
@pytest.mark.filterwarnings("ignore:These matches are probably wrong")
def test_frames_are_of_one_size_and_no_search_follows_by_itself(
    pair: Pictures, monkeypatch: pytest.MonkeyPatch, settings: dict[str, Any]
) -> None:
    monkeypatch.setattr(dm.DeepMatcher, "_wide_matcher", Mock(side_effect=AssertionError))
    matcher, points = dm.DeepMatcher.from_pretrained(device="cpu", max_size=64, **settings), [(9, 9)]
    unrelated = [pair[0], np.random.default_rng(0).integers(0, 256, pair[0].shape, np.uint8)]
    with pytest.raises(AssertionError):
        matcher.flow(*unrelated)
    for sequence_of in (matcher.match_sequence, matcher.flow_sequence, partial(matcher.track, points=points)):
        list(sequence_of(unrelated))  # type: ignore[operator]
        with pytest.raises(DeepMatchingError, match="Frame 1 is 96x60 pixels, but the one before is 96x64"):
            list(sequence_of([pair[0], pair[1][:60]]))  # type: ignore[operator]


def part_of(photo: np.ndarray, top: int, left: int, rows: int, columns: int) -> np.ndarray:
    return photo[top : top + rows, left : left + columns]


@pytest.mark.parametrize("preset", ["default", "classic"])
def test_images_of_two_sizes_have_the_flow_between_their_pixels(matcher: dm.DeepMatcher, preset: str) -> None:
    photo = draw_photo(3)
    small, large = part_of(photo, 20, 20, 64, 96), part_of(photo, 8, 13, 104, 120)
    there, back = matcher.flow(small, large, preset), matcher.flow(large, small, preset)
    assert there.flow.shape == (64, 96, 2) and back.flow.shape == (104, 120, 2)
    assert np.abs(there.flow - (7, 12)).mean() < 0.05
    shared = part_of(back.flow, 12, 7, 64, 96)
    assert np.abs(shared[8:-8, 8:-8] - (-7, -12)).mean() < 0.05
    assert there.occlusion is not None and back.occlusion is not None
    assert there.occlusion.mean() < 0.05 and part_of(back.occlusion, 20, 15, 48, 80).mean() < 0.05
    assert back.occlusion[:8].min() == back.occlusion[80:].min() == back.occlusion[:, 108:].min() == 1


def test_images_that_are_reduced_by_different_factors_have_the_flow_of_their_own_sizes() -> None:
    photo = draw_photo(3)
    small, large = part_of(photo, 20, 40, 160, 192), part_of(photo, 16, 24, 176, 240)
    reducing = dm.DeepMatcher.from_pretrained(radius=64, device="cpu", max_size=200)  # the second image alone
    flow = reducing.flow(small, large).flow
    assert np.abs(flow[16:-16, 16:-16] - (16, 4)).mean() < 0.5
    pair = photo[10:], photo[:, 6:]  # both, by factors that differ
    assert np.abs(reducing.flow(*pair).flow[20:-20, 20:-20] - (-6, 10)).mean() < 0.5


def test_a_search_follows_an_image_on_its_side() -> None:
    photo = draw_photo(0, 96, 128)
    turning = dm.DeepMatcher.from_pretrained(device="cpu", rotations=4, radius=160)
    flow = turning.flow(photo, np.rot90(photo, -1).copy(), edges="gradient").flow
    x, y = np.meshgrid(np.arange(128), np.arange(96))
    assert np.abs(flow - np.stack([95 - y - x, x - y], axis=2)).mean() < 0.5


def test_images_are_loaded_once_and_geometry_is_built_once(
    matcher: dm.DeepMatcher, pair: Pictures, monkeypatch: pytest.MonkeyPatch
) -> None:
    load = Mock(side_effect=load_image)
    for module in (matching_module, images_module):
        monkeypatch.setattr(module, "load_image", load)
    build = create_autospec(Geometry.__post_init__, side_effect=Geometry.__post_init__)
    monkeypatch.setattr(Geometry, "__post_init__", build)
    for work in (matcher.match, matcher.flow):
        load.reset_mock()
        build.reset_mock()
        work(*pair)
        assert [call.args[1] for call in load.call_args_list] == ["image0", "image1"] and build.call_count == 1


def test_two_lines_give_the_matches_and_the_flow_of_thedefault_matcher(
    pair: Pictures, monkeypatch: pytest.MonkeyPatch
) -> None:
    loaded = Mock(wraps=dm.DeepMatcher.from_pretrained)
    monkeypatch.setattr(dm.DeepMatcher, "from_pretrained", loaded)
    default_matcher.cache_clear()
    try:
        assert torch.equal(dm.match(*pair).keypoints1, dm.DeepMatcher.from_pretrained().match(*pair).keypoints1)
        assert np.abs(dm.flow(*pair).flow[8:-8, 8:-12] - (6, -4)).mean() < 0.3
    finally:
        default_matcher.cache_clear()
    assert loaded.call_count == 2


@pytest.mark.slow
@pytest.mark.parametrize("before", ["", "import deepmatching.flow"])
def test_flow_is_a_function_and_a_package_whatever_was_imported_first(before: str) -> None:
    code = f"""
import sys, deepmatching as dm
assert "torch" not in sys.modules and "cv2" not in sys.modules
{before}
assert callable(dm.flow) and dm.flow.PRESETS["default"]
import deepmatching.flow as package
assert package is dm.flow
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
