"""A small pair that was matched once, and a client of the server that knows it."""

from collections.abc import Iterator

import pytest

from deepmatching.explorer.jobs import Runs
from deepmatching.explorer.pictures import Pair, Pictures
from deepmatching.explorer.results import Result, Traces, compute
from deepmatching.io.images import load_image
from helpers.explorer import QUICK
from helpers.synthetic_pictures import moved_noise


@pytest.fixture(scope="session")
def small_pair() -> Pair:
    """Noise, and the same moved by (+6, −4) pixels."""
    first, second = moved_noise()
    images = load_image(first), load_image(second)
    return Pair("small", ("a.png", "b.png"), images, ((128, 192), (128, 192)))


@pytest.fixture(scope="session")
def result(small_pair: Pair) -> Result:
    """Match the small pair by HOG."""
    return compute(small_pair, QUICK, "cpu", lambda stage: None)


@pytest.fixture(scope="session")
def traces() -> Traces:
    return Traces()


@pytest.fixture
def pictures() -> Iterator[Pictures]:
    """Open a store of pictures that is removed after the test."""
    store = Pictures(max_size=64)
    yield store
    store.close()


@pytest.fixture
def runs() -> Runs:
    """Return runs that compute as the command does, on the CPU."""
    return Runs(lambda pair, settings, begin: compute(pair, settings, "cpu", begin))
