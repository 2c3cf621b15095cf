from pathlib import Path

import numpy as np
import pytest
import torch

from deepmatching.errors import DeepMatchingError
from deepmatching.flow.edges import (
    EdgeNetwork,
    detect_edges,
    gradient_edges,
    load_edge_network,
    structured_forest_edges,
)
from deepmatching.flow.edges import edge_network as models
from deepmatching.io.images import load_image

SHIPPED = Path(models.__file__).parents[1] / models._SHIPPED
needs_weights = pytest.mark.skipif(not SHIPPED.is_file(), reason="no edge network has been trained yet")


@pytest.fixture(scope="module")
def network() -> EdgeNetwork:
    torch.manual_seed(0)
    return EdgeNetwork().eval()


def test_edges_of_any_image_are_probabilities_of_its_size(network: EdgeNetwork) -> None:
    for image in (torch.rand(3, 37, 53), torch.zeros(1, 37, 53), torch.ones(3, 37, 53)):
        edges = detect_edges(image, network)
        assert edges.shape == (37, 53) and edges.dtype == np.float32
        assert edges.min() >= 0 and edges.max() <= 1


@needs_weights
def test_the_shipped_network_is_small_and_loaded_once() -> None:
    assert SHIPPED.stat().st_size < 1_000_000
    assert load_edge_network() is load_edge_network()


@needs_weights
def test_the_shipped_network_prefers_an_outline_to_texture() -> None:
    generator = np.random.default_rng(0)
    y, x = np.mgrid[:160, :240]
    distance = np.hypot(y - 80, x - 120)
    image = np.where(distance < 50, 0.65, 0.35)[:, :, None] + 0.1 * generator.standard_normal((160, 240, 3))
    edges = detect_edges(load_image(image.clip(0, 1).astype(np.float32)))
    assert edges[np.abs(distance - 50) < 1].mean() > 4 * edges[np.abs(distance - 50) > 10].mean()


def test_a_forest_needs_its_model_file(tmp_path: Path) -> None:
    pytest.importorskip("cv2.ximgproc")
    with pytest.raises(DeepMatchingError, match="no structured-forest model"):
        structured_forest_edges(torch.rand(3, 20, 20), tmp_path / "model.yml.gz")
    (tmp_path / "model.yml.gz").write_text("not a model")
    with pytest.raises(DeepMatchingError, match="is not YAML"):
        structured_forest_edges(torch.rand(3, 20, 20), tmp_path / "model.yml.gz")


def test_a_grey_image_gives_the_edges_of_three_equal_channels(network: EdgeNetwork) -> None:
    grey = torch.rand(1, 40, 40)
    for edges in (gradient_edges, lambda image: detect_edges(image, network)):
        np.testing.assert_allclose(edges(grey), edges(grey.expand(3, -1, -1)), atol=1e-6)
    assert gradient_edges(torch.zeros(1, 1, 1)).shape == (1, 1)


def step_picture(low: float, high: float) -> torch.Tensor:
    picture = np.full((40, 60, 3), low, np.float32)
    picture[:, 30:] = high
    return load_image(picture)


def test_a_step_is_an_edge_and_nothing_else_is() -> None:
    edges = gradient_edges(step_picture(0.2, 0.8))
    assert edges.shape == (40, 60) and edges.dtype == np.float32
    assert (edges[:, 29:31] > 0.9).all()
    assert edges[:, :24].max() < 1e-3 and edges[:, 36:].max() < 1e-3


def test_colours_of_equal_grey_have_an_edge() -> None:
    picture = np.zeros((20, 40, 3), np.float32)
    picture[:, :20, 0], picture[:, 20:, 1] = 0.598, 0.305  # equal in 0.299 R + 0.587 G
    assert gradient_edges(load_image(picture))[:, 19:21].min() > 0.9


def test_a_picture_without_edges_is_not_stretched() -> None:
    assert gradient_edges(step_picture(0.5, 0.5)).max() == 0
    faint = 0.5 + 0.001 * np.random.default_rng(0).standard_normal((50, 50)).astype(np.float32)
    assert gradient_edges(load_image(faint)).max() < 0.2
