from __future__ import annotations

import psutil
import torch

from deepmatching.descriptors import HOG
from deepmatching.geometry import Geometry
from deepmatching.memory import decoding_bytes, free_bytes, gigabytes, pyramid_bytes


def test_more_work_needs_more_memory() -> None:
    size = (436, 1024)
    amounts = [decoding_bytes(Geometry(size, size, radius=r), HOG()) for r in (40, 80, 160, None)]
    assert amounts == sorted(amounts)
    assert amounts[3] > 3e9
    pair = Geometry(size, size)
    assert decoding_bytes(pair, HOG(), batch=3) == 3 * decoding_bytes(pair, HOG())
    assert pyramid_bytes(pair, HOG(), training=True) > pyramid_bytes(pair, HOG(), training=False)
    assert pyramid_bytes(pair, HOG(), training=False) > 8 * pair.cells(0)


def test_free_memory_is_that_of_the_machine() -> None:
    free = free_bytes(torch.device("cpu"))
    assert free is not None and 0 < free <= psutil.virtual_memory().total


def test_amounts_read_well() -> None:
    assert gigabytes(1_490_000_000) == "1.5 GB"
    assert gigabytes(12_300_000) == "12 MB"
