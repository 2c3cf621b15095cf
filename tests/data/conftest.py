"""Fixtures for the tests of the synthetic generator."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from deepmatching.data.synthesis import Photos
from helpers.synthetic_pictures import draw_cutout, draw_photo


@pytest.fixture(scope="module", autouse=True)
def one_thread() -> Iterator[None]:
    """Tensors this small are slower with more threads."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="session")
def photos() -> Photos:
    return Photos([draw_photo(seed) for seed in range(6)], [draw_cutout(seed) for seed in range(4)])
