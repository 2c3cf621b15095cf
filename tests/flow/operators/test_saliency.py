"""Saliency: the kernels against the definition."""

from __future__ import annotations

from types import ModuleType

import pytest
import torch

from deepmatching.flow.operators.saliency import saliency
from deepmatching.kernels.cpu import saliency as in_strips
from deepmatching.kernels.cpu.flow.saliency import _saliency
from helpers.volumes import blobs


@pytest.mark.parametrize(("channels", "size"), [(3, (50, 37)), (1, (20, 30)), (3, (3, 5))])
def test_the_kernels_agree(channels: int, size: tuple[int, int], gpu: ModuleType, gpu_device: str) -> None:
    image = blobs(1, 1, channels, *size)[0]
    image[:, :1] = 0.001  # where Lab is linear
    expected = saliency.definition(image)
    assert expected.max() > 0.1
    torch.testing.assert_close(in_strips(image), expected, rtol=1e-3, atol=1e-3)
    torch.testing.assert_close(gpu.saliency(image.to(gpu_device)).cpu(), expected, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("rows", [5, 64, 65, 150])
def test_saliency_in_strips_equals_that_of_the_whole_image(rows: int) -> None:
    image = torch.rand(3, rows, 40)
    assert torch.equal(in_strips(image), torch.from_numpy(_saliency(image.numpy())))


def test_only_corners_are_salient() -> None:
    image = torch.zeros(3, 40, 40)
    image[:, 20:, 20:] = 1
    strength = saliency(image)
    assert strength[10, 10] == 0 and strength[30, 30] < 1e-3  # flat
    assert strength[20, 33] < 0.05 * strength[20, 20]  # along an edge nothing is known about the motion along it
    assert strength[20, 20] > 1
    assert torch.equal(saliency(image[:1]), strength)  # grey
