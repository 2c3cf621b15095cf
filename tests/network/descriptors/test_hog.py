import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.autograd import gradcheck

from deepmatching.kernels.registry import plain_operators
from deepmatching.network.descriptors import HOG
from deepmatching.network.descriptors.hog import hog_cells, smoothing
from helpers.volumes import batches, blobs, seeds


@pytest.mark.parametrize("downscale", [0, 1, 2])
def test_a_patch_has_unit_norm(downscale: int, device: torch.device, dtype: torch.dtype) -> None:
    hog, image = HOG(downscale).to(device), torch.rand(2, 3, 32, 48, device=device, dtype=dtype)
    cells = hog_cells(image, hog.directions, hog.stride, hog.sigmas, hog.slope, hog.ninth)
    assert cells.shape == (2, 9, 32 >> downscale, 48 >> downscale)
    assert cells.dtype == dtype and cells.device == image.device
    torch.testing.assert_close(cells.square().sum(1), torch.full_like(cells[:, 0], 1 / 16), rtol=0, atol=1e-6)


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


def brute_smoothing(image: Tensor, sigma: float, border: int) -> Tensor:
    """Full 2-D normalised convolution, pixel by pixel."""
    rows, columns = image.shape
    result = torch.zeros(rows + 2 * border, columns + 2 * border, dtype=image.dtype)
    for y in range(-border, rows + border):
        for x in range(-border, columns + border):
            total, mass = 0.0, 0.0
            for dy in range(-2, 3):
                for dx in range(-2, 3):
                    if 0 <= y + dy < rows and 0 <= x + dx < columns:
                        weight = math.exp(-(dy * dy + dx * dx) / (2 * sigma**2))
                        total += weight * image[y + dy, x + dx].item()
                        mass += weight
            result[y + border, x + border] = total / mass
    return result


@pytest.mark.parametrize("border", [0, 1])
def test_smoothing_is_normalised_by_the_kernel_inside_the_image(
    border: int, device: torch.device, dtype: torch.dtype
) -> None:
    image = torch.rand(7, 9, device=device, dtype=dtype)
    result = smoothing(image[None, None], 1.1, border)[0, 0]
    torch.testing.assert_close(result.cpu(), brute_smoothing(image.cpu(), 1.1, border))


def test_gradient(device: torch.device) -> None:
    image = torch.rand(1, 1, 8, 8, dtype=torch.float64, device=device, requires_grad=True)
    with plain_operators():
        assert gradcheck(HOG(1).to(device), image, atol=1e-4, fast_mode=True)


def test_a_needed_gradient_keeps_the_kernel_out() -> None:
    image = blobs(0, 1, 3, 16, 24).requires_grad_()
    assert HOG()(image).requires_grad
    with torch.no_grad():
        assert torch.allclose(HOG()(image), HOG()(image.detach()))


@settings(max_examples=25)
@given(seeds, batches, st.sampled_from([1, 3]), st.integers(1, 90), st.integers(1, 70), st.integers(0, 3))
def test_the_cpu_kernel_agrees(seed: int, batch: int, channels: int, height: int, width: int, downscale: int) -> None:
    stride = 2**downscale
    image = blobs(seed, batch, channels, height * stride // 2 + stride, width * stride // 2 + stride)
    descriptor = HOG(downscale)
    with plain_operators():
        expected = descriptor(image)
    torch.testing.assert_close(descriptor(image), expected, rtol=1e-5, atol=2e-6)
