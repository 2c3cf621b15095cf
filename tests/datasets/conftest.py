"""What the tests of the synthetic generator share."""

from __future__ import annotations

import pytest
from synthetic_pictures import draw_cutout, draw_photo

from deepmatching.datasets.synthesis import Photos


@pytest.fixture(scope="session")
def photos() -> Photos:
    return Photos([draw_photo(seed) for seed in range(6)], [draw_cutout(seed) for seed in range(4)])
