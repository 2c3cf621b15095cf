"""``DeepMatcher.flow`` and what goes with it."""

from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import Mock, create_autospec

import numpy as np
import pytest
import torch

import deepmatching as dm
from deepmatching import matcher as matcher_module
from deepmatching.errors import DeepMatchingError
from deepmatching.flow import PRESETS, Frame, Matching, RefinementSettings
from deepmatching.flow.correction.stage import occlusion_of
from deepmatching.flow.settings import FEWER_LEVELS
from deepmatching.geometry.discretization import Geometry
from deepmatching.io import images as images_module
from deepmatching.io.images import load_image
from deepmatching.models import build_confidence
from deepmatching.network.network import Network
from deepmatching.settings import FLOW_RADIUS
from helpers.synthetic_pictures import draw_small_object

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
    assert set(result.seconds) == {"matching", "edges", "interpolation", "dense network", "refinement"}


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
    (_, _, network, _), size = find.call_args.args, (200, 280)
    assert network.geometry(size, size).L == matcher.geometry(size, size).L > FEWER_LEVELS


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
        ({"image1": pair[1][:60]}, "one size, but they are 96x64 and 96x60"),
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
    for sequence_of in (matcher.match_sequence, matcher.flow_sequence):
        with pytest.raises(DeepMatchingError, match="Frame 1 is 96x60 pixels, but the one before is 96x64"):
            list(sequence_of([pair[0], pair[1][:60]]))  # type: ignore[operator]


def test_images_are_loaded_once_and_geometry_is_built_once(
    matcher: dm.DeepMatcher, pair: Pictures, monkeypatch: pytest.MonkeyPatch
) -> None:
    load = Mock(side_effect=load_image)
    for module in (matcher_module, images_module):
        monkeypatch.setattr(module, "load_image", load)
    build = create_autospec(Geometry.__post_init__, side_effect=Geometry.__post_init__)
    monkeypatch.setattr(Geometry, "__post_init__", build)
    for work in (matcher.match, matcher.flow):
        load.reset_mock()
        build.reset_mock()
        work(*pair)
        assert [call.args[1] for call in load.call_args_list] == ["image0", "image1"] and build.call_count == 1


def test_the_occlusion_is_that_of_the_points_and_one_outside_the_image() -> None:
    occluded = torch.zeros(3, 4)
    occluded[1, 2] = 0.8
    flow = torch.zeros(29, 33, 2)  # 24 × 32 pixels are matched
    flow[:, 30:, 0] = 10.0
    found = occlusion_of(occluded, flow)
    assert found.shape == (29, 33) and (found[:, 30:] == 1).all() and (found[24:, :30] == 0).all()
    assert found[11:13, 19:21].min() > 0.65 and found[12, 19] == found[12, 20]  # at the point (20, 12)
    assert found[12, 11] < 0.1 and (found[:4, :16] == 0).all()
