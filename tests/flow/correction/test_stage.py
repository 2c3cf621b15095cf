"""Flow by the dense network."""

from dataclasses import replace

import numpy as np
import pytest
import torch

import deepmatching as dm
from deepmatching.errors import DeepMatchingError
from deepmatching.flow import PRESETS, Frame, InterpolationSettings, Matching, RefinementSettings, flow_between
from deepmatching.flow.correction import DenseFlow, InitialFlow
from deepmatching.flow.correction.stage import InitialFlows, corrected, initial_flow
from helpers.volumes import blobs


@pytest.fixture(scope="module")
def matcher() -> dm.DeepMatcher:
    return dm.DeepMatcher.from_pretrained("compact", device="cpu", radius=16)


def _moved(size: tuple[int, int], shift: tuple[int, int]) -> list[torch.Tensor]:
    """Two views of one picture: the second shows it moved by (x, y) pixels."""
    rows, columns = size
    picture = blobs(3, 1, 3, rows + 32, columns + 32)[0]
    return [picture[:, 16 - y : 16 - y + rows, 16 - x : 16 - x + columns].contiguous() for x, y in ((0, 0), shift)]


@pytest.mark.parametrize("size", [(96, 128), (93, 125)])
def test_a_constant_motion_is_found_up_to_the_last_rows(matcher: dm.DeepMatcher, size: tuple[int, int]) -> None:
    result = matcher.flow(*_moved(size, (5, -3)))
    assert result.flow.shape == (*size, 2) and result.confidence.shape == size
    inner = result.flow[16:-16, 16:-16]
    np.testing.assert_allclose(inner, np.broadcast_to([5.0, -3.0], inner.shape), atol=0.5)
    assert np.isfinite(result.flow).all() and result.occlusion is not None
    assert result.confidence.min() >= 0 and result.confidence.max() <= 1
    assert result.matches > 0 and result.agreement > 0.5


def test_it_starts_at_the_interpolated_flow(matcher: dm.DeepMatcher) -> None:
    images = _moved((96, 128), (5, -3))
    settings = replace(PRESETS["interpolated"], refinement=RefinementSettings(steps=0))
    expected = matcher.flow(*images, settings, radius=16)
    batch = [image[None].expand(2, -1, -1, -1) for image in images]
    decoded = matcher.for_flow(16).network.decode(*batch)
    start = InitialFlows()(decoded, *batch)
    assert start.flow.shape == (2, 2, 96, 128) and start.probability.shape == (2, 1, 96, 128)
    for b in range(2):
        np.testing.assert_allclose(start.flow[b].permute(1, 2, 0), expected.flow, atol=1e-4)
        np.testing.assert_allclose(start.probability[b, 0], expected.confidence, atol=1e-4)
        assert start.matches[b] == expected.matches == matcher.flow(*images, radius=16).matches


def test_without_a_match_it_starts_at_no_motion_and_the_pair_is_refused(matcher: dm.DeepMatcher) -> None:
    images, geometry = _moved((64, 96), (5, -3)), matcher.network.geometry((64, 96), (64, 96))
    cells = [matcher.network.describe_image(image[None], geometry.used0) for image in images]
    found = matcher.network.decode_descriptors(*cells, geometry)
    nothing = found._replace(verified=found.verified & False, confidence=torch.zeros_like(found.scores))
    start = initial_flow(*images, None, InterpolationSettings(), *nothing)
    assert start.flow.shape == (1, 2, 64, 96) and not any(part.any() for part in start)
    frames = (Frame(image, image, own, (64, 96)) for image, own in zip(images, cells, strict=True))
    with pytest.raises(DeepMatchingError):
        flow_between(*frames, "default", Matching(matcher.network, geometry), known=nothing)


def test_a_correction_by_more_than_ten_pixels_does_not_count() -> None:
    start = InitialFlow(torch.zeros(1, 2, 4, 9), torch.full((1, 1, 4, 9), 0.25), torch.ones(1))
    moved = torch.zeros(1, 2, 4, 8)
    moved[0, 0, :, :4], moved[0, 1, :, 4:] = 9.9, -10.1
    mixture = torch.tensor([50.0, 0]).view(1, 2, 1, 1).expand(1, 2, 4, 8)
    flow, likely = corrected(start, DenseFlow(moved, mixture, [], []))
    assert torch.equal(flow[..., :4], moved[..., :4]) and not flow[..., 4:].any()
    assert (likely[..., :4] > 0.99).all() and (likely[..., 4:] == 0.25).all()


def test_given_matches_and_models_without_a_dense_network_are_interpolated(matcher: dm.DeepMatcher) -> None:
    images = _moved((64, 64), (1, 1))
    matches = matcher.match(*images)
    for matched, name in ((matches, "interpolated"), (replace(matches, confidence=None), "classic")):
        expected = matcher.flow(*images, name, matches=matched).flow
        np.testing.assert_array_equal(matcher.flow(*images, matches=matched).flow, expected)
    hog = dm.DeepMatcher.from_pretrained("hog", device="cpu", radius=16)
    np.testing.assert_array_equal(hog.flow(*images).flow, hog.flow(*images, "classic").flow)
