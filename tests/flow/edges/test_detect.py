import numpy as np
import pytest
import torch

from deepmatching.flow.edges import EdgeNetwork, detect_edges, gradient_edges, load_edge_network
from deepmatching.io.images import load_image


@pytest.fixture(scope="module")
def network() -> EdgeNetwork:
    torch.manual_seed(0)
    return EdgeNetwork().eval()


def test_edges_of_any_image_are_probabilities_of_its_size(network: EdgeNetwork) -> None:
    for image in (torch.rand(3, 37, 53), torch.zeros(1, 37, 53), torch.ones(3, 37, 53)):
        edges = detect_edges(image, network)
        assert edges.shape == (37, 53) and edges.dtype == np.float32
        assert edges.min() >= 0 and edges.max() <= 1


def test_the_shipped_network_is_loaded_once() -> None:
    assert load_edge_network() is load_edge_network()


def test_the_shipped_network_prefers_an_outline_to_texture() -> None:
    generator = np.random.default_rng(0)
    y, x = np.mgrid[:160, :240]
    distance = np.hypot(y - 80, x - 120)
    image = np.where(distance < 50, 0.65, 0.35)[:, :, None] + 0.1 * generator.standard_normal((160, 240, 3))
    edges = detect_edges(load_image(image.clip(0, 1).astype(np.float32)))
    assert edges[np.abs(distance - 50) < 1].mean() > 4 * edges[np.abs(distance - 50) > 10].mean()


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
