"""The Triton kernels: on a GPU if there is one, else interpreted on the CPU."""

from __future__ import annotations

from types import ModuleType

import pytest
import torch


@pytest.fixture(scope="session")
def gpu() -> ModuleType:
    """The package of GPU kernels."""
    language = pytest.importorskip("triton.language")
    interpreted = type(language.zeros).__name__ == "InterpretedFunction"
    assert torch.cuda.is_available() or interpreted, "Triton was not told to interpret"
    from deepmatching.operators import gpu

    return gpu


@pytest.fixture(scope="session")
def gpu_device() -> str:
    """Where the Triton kernels run."""
    return "cuda" if torch.cuda.is_available() else "cpu"
