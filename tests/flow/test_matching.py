"""The radius by confidence."""

from dataclasses import replace
from unittest.mock import patch

import numpy as np
import pytest
import torch

import deepmatching as dm
from deepmatching.flow import PRESETS, FlowSettings
from deepmatching.flow.matching import Frame, Matching, lacks_matches
from deepmatching.geometry.discretization import Geometry
from deepmatching.geometry.targets import Decoded
from deepmatching.network.inference import Decoding, more_confident
from deepmatching.network.memory import WHOLE, Tiling
from deepmatching.settings import FLOW_RADIUS, RADIUS, Pooling, Reciprocal
from helpers.volumes import blobs

GEOMETRY = Geometry.for_downscale((96, 128), (96, 128), 1, RADIUS)


def _decoded(moved: float = 0.0) -> Decoded:
    """Return matches that are all right and move by these pixels."""
    grid = GEOMETRY.grid(0)
    y, x = (torch.arange(n) * 8.0 + 4 for n in grid)
    points = torch.stack(torch.broadcast_tensors(x, y[:, None]), dim=-1)
    shift = torch.tensor([moved, 0.0])
    right = torch.full((1, *grid), 0.99)
    return Decoded(points, (points + shift)[None], right, right.long(), right > 0, right, torch.full_like(right, 0.01))


def test_a_visible_place_without_a_right_match_lacks_one() -> None:
    decoded = _decoded()
    assert not lacks_matches(decoded, GEOMETRY)
    assert decoded.confidence is not None and decoded.occluded is not None
    decoded.confidence[0, 3:8, 5:10] = 0.1
    assert lacks_matches(decoded, GEOMETRY)
    decoded.occluded[0, 3:8, 5:10] = 0.9
    assert not lacks_matches(decoded, GEOMETRY)


def test_matches_at_the_limit_lack_those_beyond() -> None:
    assert not lacks_matches(_decoded(0.8 * RADIUS), GEOMETRY)
    assert lacks_matches(_decoded(0.9 * RADIUS), GEOMETRY)


@pytest.fixture(scope="module")
def matcher() -> dm.DeepMatcher:
    return dm.DeepMatcher.from_pretrained("compact", device="cpu")


def _radii(
    matcher: dm.DeepMatcher, found: Decoded, preset: str = "default", tiling: Tiling = WHOLE
) -> list[int | None]:
    """Return the radii that two frames are matched at if each time this is found."""
    image = torch.zeros(3, 96, 128)
    frame = Frame(image, image, image[None], (96, 128))
    geometry = replace(GEOMETRY, radius=FLOW_RADIUS)
    matching = Matching(matcher.network, geometry, Decoding(tiling=tiling), may_shrink_radius=True)
    with patch.object(Matching, "decode", autospec=True, return_value=found) as decode:
        matching.decode_for_flow(frame, frame, PRESETS[preset])
    return list(dict.fromkeys(call.args[0].geometry.radius for call in decode.call_args_list))


def test_a_pair_is_matched_again_only_if_something_is_missing(matcher: dm.DeepMatcher) -> None:
    assert _radii(matcher, _decoded()) == [RADIUS]
    assert _radii(matcher, _decoded(0.9 * RADIUS)) == [RADIUS, FLOW_RADIUS]


def test_without_a_confidence_or_in_pieces_the_whole_radius_is_used_at_once(matcher: dm.DeepMatcher) -> None:
    for preset in ("classic", "sintel"):
        assert _radii(matcher, _decoded(), preset) == [FLOW_RADIUS]
    assert _radii(dm.DeepMatcher.from_pretrained("hog", device="cpu"), _decoded()) == [FLOW_RADIUS]
    assert _radii(matcher, _decoded(), tiling=Tiling(2, 1)) == [FLOW_RADIUS]


def test_a_radius_that_was_asked_for_is_used_at_once(matcher: dm.DeepMatcher) -> None:
    picture = blobs(3, 1, 3, 112, 144)[0]
    images = picture[:, 8:104, 8:136].contiguous(), picture[:, 5:101, 3:131].contiguous()
    near = matcher.flow(*images, radius=RADIUS).flow
    np.testing.assert_array_equal(matcher.flow(*images).flow, near)
    np.testing.assert_array_equal(next(iter(matcher.for_flow().flow_sequence(images))).flow, near)
    wide = dm.DeepMatcher.from_pretrained("compact", device="cpu", radius=FLOW_RADIUS).flow(*images).flow
    np.testing.assert_array_equal(matcher.flow(*images, radius=FLOW_RADIUS).flow, wide)


def test_the_more_confident_match_of_each_point_counts() -> None:
    first = _decoded()
    assert first.confidence is not None
    shape = first.confidence.shape
    better = torch.rand(shape, generator=torch.Generator().manual_seed(0)) > 0.5
    other = first._replace(points1=first.points1 + 1, confidence=first.confidence + torch.where(better, 0.05, -0.05))
    found = more_confident(first, other)
    assert torch.equal(found.points1, first.points1 + better[..., None])
    assert torch.equal(found.confidence, torch.maximum(first.confidence, other.confidence))
    assert torch.equal(more_confident(first, first._replace(points1=first.points1 + 1)).points1, first.points1)


@pytest.mark.parametrize(
    ("levels", "settings", "expected"),
    [
        (None, PRESETS["default"], 3),
        (None, replace(PRESETS["default"], fewer_levels=2), 2),
        (None, replace(PRESETS["default"], fewer_levels=None), None),
        (None, PRESETS["classic"], None),  # nothing says which match is better
        (4, PRESETS["default"], None),  # asked for
    ],
)
def test_frames_are_matched_again_with_fewer_levels_unless_they_are_small(
    levels: int | None, settings: FlowSettings, expected: int | None
) -> None:
    network = dm.DeepMatcher.from_pretrained("compact", device="cpu", levels=levels).network
    large, small = (Matching(network, network.geometry(size, size)) for size in ((200, 280), (40, 48)))
    assert large.fewer_levels(settings) == expected and small.fewer_levels(PRESETS["default"]) is None


@pytest.mark.parametrize(
    ("pooling", "reciprocal", "tiling", "radius", "levels"),
    [
        ("hard", "bins", WHOLE, 80, 3),
        ("hard", "bins", WHOLE, None, 1),
        ("hard", "exact", WHOLE, 80, 0),
        ("hard", "bins", Tiling(3, 1), 80, 3),
        ("hard", "bins", Tiling(3, 3), 80, 2),
        ("soft", "bins", WHOLE, 16, 2),
    ],
)
def test_one_way_up_and_two_down_find_what_matching_twice_finds(
    pooling: Pooling, reciprocal: Reciprocal, tiling: Tiling, radius: int | None, levels: int
) -> None:
    network = dm.DeepMatcher.from_pretrained("compact", device="cpu").network.at_radius(radius)
    network.use_pooling(pooling)
    images = blobs(3, 2, 3, 120, 152)
    geometry = network.geometry((120, 152), (120, 152))
    decoding = Decoding(reciprocal, tiling=tiling)
    with torch.no_grad():
        cells = network.describe(images[:1], images[1:], geometry)
        found = network.decode_descriptors(*cells, geometry, replace(decoding, fewer_levels=levels))
        geometries = geometry, replace(geometry, levels=levels)
        both = [network.decode_descriptors(*cells, each, decoding) for each in geometries]
    expected = more_confident(*both)
    assert all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))
    assert not any(torch.equal(expected.points1, one.points1) for one in both)
