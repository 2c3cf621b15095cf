from __future__ import annotations

from pathlib import Path

import cv2
import numpy as np
import pytest
import torch

from deepmatching.errors import DeepMatchingError
from deepmatching.flow import PRESETS, confidence, interpolate, refine
from deepmatching.flow.pipeline import edges_of, matches_to_flow
from deepmatching.io.images import load_image
from deepmatching.matches import Matches

Images = tuple[torch.Tensor, torch.Tensor]


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
    found = interpolate(
        *matches.numpy()[:2], edges, images[0], scores=matches.scores, settings=PRESETS["sintel"].interpolation
    )
    flow = refine(found.flow, *images, PRESETS["sintel"].refinement)
    np.testing.assert_array_equal(result.flow, flow)
    np.testing.assert_array_equal(result.confidence, confidence(flow, found, *images))
    assert result.matches == len(found.kept)
    assert list(result.seconds) == ["edges", "interpolation", "refinement"]


def test_a_constant_motion_comes_out_and_the_wrong_match_does_not(images: Images, matches: Matches) -> None:
    result = matches_to_flow(matches, *images, PRESETS["default"])
    assert result.flow.shape == (64, 96, 2) and result.flow.dtype == np.float32
    assert result.confidence.shape == (64, 96) and result.confidence.min() >= 0 and result.confidence.max() <= 1
    assert result.matches < len(matches)
    assert np.abs(result.flow[8:-8, 8:-8] - (6, -4)).max() < 0.2


def test_edges_are_detected_read_or_given(images: Images, tmp_path: Path) -> None:
    image = images[0]
    network, gradient = edges_of(image), edges_of(image, "gradient")
    np.testing.assert_array_equal(edges_of(image, "network"), network)
    assert network.shape == gradient.shape == (64, 96) and not np.array_equal(network, gradient)
    np.save(tmp_path / "e.npy", gradient)
    levels = np.rint(65535 * gradient).astype(np.uint16)
    cv2.imwrite(str(tmp_path / "e.png"), levels)
    np.testing.assert_array_equal(edges_of(image, tmp_path / "e.npy"), gradient)
    np.testing.assert_array_equal(edges_of(image, str(tmp_path / "e.npy")), gradient)
    np.testing.assert_allclose(edges_of(image, tmp_path / "e.png"), gradient, atol=1e-5)
    np.testing.assert_array_equal(edges_of(image, gradient), gradient)
    np.testing.assert_array_equal(edges_of(image, torch.from_numpy(gradient)), gradient)
    np.testing.assert_array_equal(edges_of(image, lambda given: given[0].numpy()), image[0].numpy())


def test_what_does_not_fit_is_refused_in_words(images: Images, matches: Matches) -> None:
    first, second, settings = *images, PRESETS["default"]
    with pytest.raises(DeepMatchingError, match="one size, but they are 96x64 and 90x64"):
        matches_to_flow(matches, first, second[:, :, :90], settings)
    with pytest.raises(DeepMatchingError, match="edge map has shape"):
        matches_to_flow(matches, first, second, settings, np.zeros((64, 90), np.float32))
    with pytest.raises(DeepMatchingError, match="matches are of images of 96x64 pixels, but these have 96x60"):
        matches_to_flow(matches, first[:, :60], second[:, :60], settings)
    with pytest.raises(DeepMatchingError, match="no matches, so there is nothing"):
        matches_to_flow(matches[:0], first, second, settings)
