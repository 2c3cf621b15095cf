from dataclasses import replace
from pathlib import Path

import cv2
import numpy as np
import pytest
import torch

import deepmatching as dm
from deepmatching.errors import DeepMatchingError
from deepmatching.flow import PRESETS, FlowSettings, Frame, Matching, confidence, flow_between, interpolate, refine
from deepmatching.flow.edges import edges_of
from deepmatching.flow.pipeline import matches_to_flow
from deepmatching.io.images import load_image
from deepmatching.matches import Matches
from helpers.volumes import blobs

Images = tuple[torch.Tensor, torch.Tensor]


@pytest.fixture(scope="module")
def compact() -> dm.DeepMatcher:
    return dm.DeepMatcher.from_pretrained("compact", device="cpu", radius=16)


def moved(size: tuple[int, int], shift: tuple[int, int]) -> list[torch.Tensor]:
    """Two views of one picture: the second shows it moved by (x, y) pixels."""
    rows, columns = size
    picture = blobs(3, 1, 3, rows + 32, columns + 32)[0]
    return [picture[:, 16 - y : 16 - y + rows, 16 - x : 16 - x + columns].contiguous() for x, y in ((0, 0), shift)]


@pytest.fixture
def images(pair: tuple[np.ndarray, np.ndarray]) -> Images:
    return load_image(pair[0]), load_image(pair[1])


@pytest.fixture
def matches() -> Matches:
    """Every eighth pixel moves by (6, −4); one match is wrong."""
    rows, columns = np.mgrid[4:64:8, 4:96:8]
    start = torch.from_numpy(np.stack([columns.ravel(), rows.ravel()], axis=1)).float()
    end = start + torch.tensor([6.0, -4.0])
    end[40] += 30
    return Matches(start, end, torch.ones(len(start)), (64, 96), (64, 96))


def test_it_is_the_chain_of_the_flow_package(images: Images, matches: Matches) -> None:
    edges = np.random.default_rng(0).uniform(0, 1, (64, 96)).astype(np.float32)
    result = matches_to_flow(matches, *images, PRESETS["sintel"], edges)
    start, end, scores = matches.numpy()
    found = interpolate(start, end, edges, images[0], scores=scores, settings=PRESETS["sintel"].interpolation)
    flow = refine(found.flow, *images, PRESETS["sintel"].refinement)
    np.testing.assert_array_equal(result.flow, flow)
    np.testing.assert_array_equal(result.confidence, confidence(flow, found, *images))
    assert result.matches == len(found.kept)
    assert list(result.seconds) == ["edges", "interpolation", "refinement"]


def test_the_confidence_falls_where_visible_points_are_unmatched(images: Images) -> None:
    settings = FlowSettings(fewer_levels=None)
    matcher = dm.DeepMatcher.from_pretrained("compact", radius=16, device="cpu")
    matching = matcher._matching((64, 96), (64, 96), settings)
    frames = [matcher._frame(image, matching) for image in images]
    found = matching.decode_for_flow(*frames, settings)
    assert found.confidence is not None
    unsure = torch.full_like(found.confidence, 0.7)
    known = [found._replace(confidence=unsure, occluded=torch.full_like(unsure, hidden)) for hidden in (0.0, 1.0)]
    visible, hidden = (flow_between(*frames, settings, matching, known=each) for each in known)
    np.testing.assert_array_equal(visible.flow, hidden.flow)
    assert (visible.confidence < hidden.confidence).all()


def test_a_constant_motion_comes_out_and_the_wrong_match_does_not(images: Images, matches: Matches) -> None:
    result = matches_to_flow(matches, *images, PRESETS["default"])
    assert result.flow.shape == (64, 96, 2) and result.flow.dtype == np.float32
    assert result.confidence.shape == (64, 96) and result.confidence.min() >= 0 and result.confidence.max() <= 1
    assert result.matches < len(matches)
    assert np.abs(result.flow[8:-8, 8:-8] - (6, -4)).max() < 0.2


def test_matches_of_a_search_keep_their_agreement_even_without_a_transformation(
    images: Images, matches: Matches
) -> None:
    upright = {"transformation": torch.zeros(len(matches), dtype=torch.int64), "transformations": torch.eye(3)[None]}
    searched = replace(matches, **upright)
    result = matches_to_flow(searched, *images, PRESETS["default"])
    assert result.is_searched and result.agreement == searched.agreement > 0.5
    given = matches_to_flow(matches, *images, PRESETS["default"])
    assert not given.is_searched and np.isnan(given.agreement)
    np.testing.assert_array_equal(result.flow, given.flow)


@pytest.mark.parametrize("size", [(96, 128), (93, 125)])
def test_a_constant_motion_is_found_up_to_the_last_rows(compact: dm.DeepMatcher, size: tuple[int, int]) -> None:
    result = compact.flow(*moved(size, (5, -3)))
    assert result.flow.shape == (*size, 2) and result.confidence.shape == size
    inner = result.flow[16:-16, 16:-16]
    np.testing.assert_allclose(inner, np.broadcast_to([5.0, -3.0], inner.shape), atol=0.5)
    assert np.isfinite(result.flow).all() and result.occlusion is not None
    assert result.confidence.min() >= 0 and result.confidence.max() <= 1
    assert result.matches > 0 and result.agreement > 0.5


def test_a_pair_without_a_match_is_refused(compact: dm.DeepMatcher) -> None:
    network, size = compact.network, (64, 96)
    pictures, geometry = moved(size, (5, -3)), network.geometry(size, size)
    cells = [network.describe_image(image[None], geometry.used0) for image in pictures]
    found = network.decode_descriptors(*cells, geometry)
    nothing = found._replace(verified=found.verified & False, confidence=torch.zeros_like(found.scores))
    frames = (Frame(image, image, own, size) for image, own in zip(pictures, cells, strict=True))
    with pytest.raises(DeepMatchingError, match="no matches"):
        flow_between(*frames, "default", Matching(network, geometry), known=nothing)


def test_classic_takes_the_place_of_the_default_for_matches_and_models_without_a_confidence(
    compact: dm.DeepMatcher,
) -> None:
    pictures = moved((64, 64), (1, 1))
    bare = replace(compact.match(*pictures), confidence=None)
    hog = dm.DeepMatcher.from_pretrained("hog", device="cpu", radius=16)
    for matcher, given in ((compact, bare), (hog, None)):
        expected = matcher.flow(*pictures, "classic", matches=given).flow
        np.testing.assert_array_equal(matcher.flow(*pictures, matches=given).flow, expected)


def test_edges_are_detected_read_or_given(images: Images, tmp_path: Path) -> None:
    image = images[0]
    network, gradient = edges_of(image), edges_of(image, "gradient")
    np.testing.assert_array_equal(edges_of(image, "network"), network)
    assert network.shape == gradient.shape == (64, 96) and not np.array_equal(network, gradient)
    np.save(path := tmp_path / "e.npy", gradient)
    for given in (path, str(path), gradient, torch.from_numpy(gradient)):
        np.testing.assert_array_equal(edges_of(image, given), gradient)
    cv2.imwrite(str(tmp_path / "e.png"), np.rint(65535 * gradient).astype(np.uint16))
    np.testing.assert_allclose(edges_of(image, tmp_path / "e.png"), gradient, atol=1e-5)
    np.testing.assert_array_equal(edges_of(image, lambda given: given[0].numpy()), image[0].numpy())


def test_what_does_not_fit_is_refused_in_words(images: Images, matches: Matches) -> None:
    first, second, settings = *images, PRESETS["default"]
    for arguments, words in (
        ((matches, first, second[:, :, :90], settings), "of an image of 96x64 pixels, but this one has 90x64"),
        ((matches, first, second, settings, np.zeros((64, 90), np.float32)), "edge map has shape"),
        ((matches, first[:, :60], second[:, :60], settings), "of an image of 96x64 pixels, but this one has 96x60"),
        ((matches[:0], first, second, settings), "no matches, so there is nothing"),
    ):
        with pytest.raises(DeepMatchingError, match=words):
            matches_to_flow(*arguments)


# On a GPU, the first time and when it is replayed.

cuda = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
Pictures = tuple[np.ndarray, np.ndarray]


@cuda
@pytest.mark.parametrize(
    ("name", "model"),
    [*((name, "hog") for name in sorted(PRESETS)), ("default", "compact")],
)
def test_the_flow_is_nearly_that_of_the_cpu(pair: Pictures, name: str, model: str) -> None:
    expected = dm.DeepMatcher.from_pretrained(model, radius=16, device="cpu").flow(*pair, name)
    matcher = dm.DeepMatcher.from_pretrained(model, radius=16, device="cuda")
    for _ in range(4):  # eager, recorded, replayed
        result = matcher.flow(*pair, name)
        assert result.tensors is not None and result.tensors.flow.is_cuda
        assert abs(result.matches - expected.matches) <= 2
        assert np.abs(result.flow - expected.flow).mean() < 0.01
        assert np.abs(result.confidence - expected.confidence).mean() < 0.01
        assert result.agreement == pytest.approx(expected.agreement, abs=0.02)
        assert set(result.seconds) == {"matching", "dense flow"}


@cuda
def test_results_of_earlier_pairs_stay_as_they_were(pair: Pictures) -> None:
    matcher = dm.DeepMatcher.from_pretrained("hog", radius=16, device="cuda")
    first = [matcher.flow(*pair) for _ in range(3)][-1]
    second = matcher.flow(pair[1], pair[0])
    assert np.array_equal(first.flow, matcher.flow(*pair).flow)
    assert np.array_equal(second.flow, matcher.flow(pair[1], pair[0]).flow)
    assert not np.array_equal(first.flow, second.flow)


@cuda
def test_given_edges_and_matches_are_used(pair: Pictures) -> None:
    matcher = dm.DeepMatcher.from_pretrained("hog", radius=16, device="cuda")
    edges = np.random.default_rng(0).uniform(0, 1, (64, 96)).astype(np.float32)
    for _ in range(3):
        assert not np.array_equal(matcher.flow(*pair, edges=edges).flow, matcher.flow(*pair).flow)
    start = torch.tensor([[20.0, 20.0], [70.0, 20.0], [20.0, 50.0], [70.0, 50.0]])
    matches = dm.Matches(start, start + torch.tensor([1.0, 3.0]), torch.ones(4))
    still = np.zeros_like(pair[0])
    result = matcher.flow(still, still, matches=matches, edges=np.zeros((64, 96), np.float32))
    np.testing.assert_allclose(result.flow, np.broadcast_to(np.float32((1, 3)), (64, 96, 2)), atol=1e-4)
    assert result.matches == 4


@cuda
def test_a_pair_without_matches_says_so() -> None:
    matcher = dm.DeepMatcher.from_pretrained("hog", radius=16, device="cuda")
    points = torch.full((3, 2), float("nan"))
    still = np.zeros((64, 96, 3), np.uint8)
    with pytest.raises(DeepMatchingError, match="matches"):
        assert matcher.flow(still, still, matches=dm.Matches(points, points, torch.ones(3))).flow is None
