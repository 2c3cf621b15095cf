"""How many threads PyTorch and the CPU kernels use."""

import contextlib
from collections.abc import Iterator

import pytest
import torch


@contextlib.contextmanager
def threads(number: int) -> Iterator[None]:
    """Use this number of threads in a block."""
    before = torch.get_num_threads()
    torch.set_num_threads(number)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@pytest.fixture(scope="module", autouse=True)
def one_thread() -> Iterator[None]:
    """Use one thread below the conftest.py that imports this: small tensors are slower with more."""
    with threads(1):
        yield
