"""Images to matches with the Numba kernels and without."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from deepmatching.descriptors.hog import HOG
from deepmatching.inference import Decoding
from deepmatching.network import Network
from deepmatching.operators.cpu import compilation, compiled
from deepmatching.operators.kernels import plain_operators


def picture(seed: int, batch: int, channels: int, height: int, width: int) -> Tensor:
    """Blobs of several sizes, values in [0, 1]."""
    generator = torch.Generator().manual_seed(seed)
    image = torch.zeros(batch, channels, height, width)
    for step in (2, 5, 11):
        noise = torch.rand(batch, channels, -(-height // step) + 1, -(-width // step) + 1, generator=generator)
        image += torch.nn.functional.interpolate(noise, (height, width), mode="bicubic", align_corners=False)
    return (image / 3).clamp(0, 1)


@settings(max_examples=25, deadline=None)
@given(
    st.integers(0, 2**31), st.integers(1, 2), st.sampled_from([1, 3]),
    st.integers(1, 90), st.integers(1, 70), st.integers(0, 3),
)  # fmt: skip
def test_hog_equals_its_definition(
    seed: int, batch: int, channels: int, height: int, width: int, downscale: int
) -> None:
    stride = 2**downscale
    image = picture(seed, batch, channels, height * stride // 2 + stride, width * stride // 2 + stride)
    descriptor = HOG(downscale)
    with plain_operators():
        expected = descriptor(image)
    result = descriptor(image)
    assert result.shape == expected.shape
    assert torch.allclose(result, expected, atol=2e-6)


def test_hog_keeps_its_gradient() -> None:
    image = picture(0, 1, 3, 16, 24).requires_grad_()
    assert HOG()(image).requires_grad
    with torch.no_grad():
        assert torch.allclose(HOG()(image), HOG()(image.detach()))


@pytest.mark.parametrize("reciprocal", ["bins", "exact", "none"])
@pytest.mark.parametrize("radius", [10, 32, None])
@pytest.mark.parametrize("sizes", [((72, 104), (72, 104)), ((97, 80), (64, 112))])
def test_matches_equal_those_of_the_plain_operators(sizes: Any, radius: int | None, reciprocal: Any) -> None:
    network = Network(HOG(1), radius=radius)
    image0 = picture(1, 2, 3, *sizes[0])
    shifted = torch.roll(image0, (3, -5), dims=(2, 3))
    image1 = torch.nn.functional.interpolate(shifted, sizes[1], mode="bilinear") * 0.9
    with plain_operators():
        expected = network.decode(image0, image1, Decoding(reciprocal))
    result = network.decode(image0, image1, Decoding(reciprocal))
    assert torch.equal(result.cells, expected.cells)
    assert torch.equal(result.verified, expected.verified)
    assert torch.equal(result.points1, expected.points1)
    assert torch.allclose(result.scores, expected.scores, rtol=1e-5)


def test_without_a_writable_cache_kernels_still_compile(monkeypatch: pytest.MonkeyPatch) -> None:
    original = compilation.njit

    def nowhere_to_write(**options: Any) -> Any:
        if options.get("cache"):
            raise RuntimeError("cannot cache function: no locator available for file")
        return original(**options)

    monkeypatch.setattr(compilation, "njit", nowhere_to_write)

    def double(x: int) -> int:
        return 2 * x

    assert compilation.kernel(double)(21) == 42


def test_compiled_once_all_kernels_have_run() -> None:
    network = Network(HOG(1), radius=10)
    network.decode(picture(0, 1, 1, 64, 64), picture(1, 1, 1, 64, 64))
    if not compiled():
        pytest.skip("no folder for Numba's cache is writable here")
