from __future__ import annotations

import pytest
import torch

from deepmatching.network.descriptors import HOG


@pytest.mark.parametrize("downscale", [0, 1, 2])
def test_a_patch_has_unit_norm(downscale: int) -> None:
    cells = HOG(downscale)(torch.rand(2, 3, 32, 48))
    assert cells.shape == (2, 9, 32 >> downscale, 48 >> downscale)
    assert torch.allclose(cells.square().sum(dim=1), torch.tensor(1 / 16), atol=1e-6)


def test_a_flat_image_is_described_by_the_constant_channel_alone() -> None:
    cells = HOG()(torch.full((1, 1, 16, 16), 0.5))
    assert torch.allclose(cells[:, 8], torch.tensor(0.25))
    assert torch.allclose(cells[:, :8], torch.tensor(0.0), atol=1e-5)


def test_a_ramp_to_the_right_answers_in_the_direction_of_x() -> None:
    ramp = torch.linspace(0, 1, 32).expand(1, 1, 32, 32)
    middle = HOG()(ramp)[0, :8, 8, 8]
    assert middle.argmax() == 0  # direction 0 is +x
    assert torch.allclose(middle[3:6], torch.zeros(3), atol=1e-5)  # nothing points to −x
    down = HOG()(ramp.mT)[0, :8, 8, 8]
    assert down.argmax() == 2  # direction 2 is +y, downwards


def test_grey_is_the_mean_of_the_channels() -> None:
    image = torch.rand(1, 3, 16, 16, dtype=torch.float64)
    torch.testing.assert_close(HOG()(image), HOG()(image.mean(dim=1, keepdim=True)))
