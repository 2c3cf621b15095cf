"""Fixtures for the tests of the synthetic generator, which run in one thread."""

import pytest

from deepmatching.data.synthesis import Photos
from helpers.synthetic_pictures import draw_cutout, draw_photo
from helpers.threads import one_thread as one_thread


@pytest.fixture(scope="session")
def photos() -> Photos:
    return Photos([draw_photo(seed) for seed in range(6)], [draw_cutout(seed) for seed in range(4)])
