"""What the tests share: the development data beside the repository (if it is there) and small helpers."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
import torch

if not torch.cuda.is_available():
    os.environ.setdefault("TRITON_INTERPRET", "1")  # Triton reads it when it is imported, by whichever test is first

pytest_plugins = ["helpers.small_training"]

torch.manual_seed(0)

SHARED = Path(__file__).resolve().parents[2] / "shared"


@pytest.fixture(scope="session")
def shared() -> Path:
    """The folder of development data; tests that need it skip where it is missing."""
    if not (SHARED / "README.md").is_file():
        pytest.skip("the development data (../shared) is not here")
    return SHARED


@pytest.fixture
def pair() -> tuple[np.ndarray, np.ndarray]:
    """Two uint8 RGB pictures of 64×96: smooth noise, and the same moved by (+6, −4) pixels."""
    generator = np.random.default_rng(0)
    coarse = generator.uniform(0, 255, (40, 56, 3))
    picture = np.kron(coarse, np.ones((3, 3, 1)))
    for axis in (0, 1):
        picture = (picture + np.roll(picture, 1, axis) + np.roll(picture, -1, axis)) / 3
    picture = picture.astype(np.uint8)
    return picture[20:84, 20:116].copy(), picture[24:88, 14:110].copy()
