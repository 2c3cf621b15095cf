import numpy as np
import torch

from deepmatching.flow.edges import gradient_edges
from deepmatching.io.images import load_image


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


def test_a_grey_image_gives_the_edges_of_three_equal_channels() -> None:
    picture = torch.rand(1, 30, 30)
    np.testing.assert_allclose(gradient_edges(picture), gradient_edges(picture.expand(3, -1, -1)), atol=1e-6)


def test_an_image_may_be_one_pixel() -> None:
    assert gradient_edges(torch.zeros(1, 1, 1)).shape == (1, 1)
