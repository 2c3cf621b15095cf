"""Running a kernel in several threads."""

import pytest

from deepmatching.kernels.cpu.running import run_in_threads
from helpers.threads import threads


@pytest.mark.parametrize("number", [1, 3])
@pytest.mark.parametrize("items", [1, 2, 100])
def test_every_item_is_done_once(number: int, items: int) -> None:
    done = []
    with threads(number):
        run_in_threads(lambda first, last, shift: done.extend(range(first + shift, last + shift)), items, 7)
    assert sorted(done) == list(range(7, items + 7))


def test_an_exception_reaches_the_caller() -> None:
    def fail(first: int, last: int) -> None:
        raise ValueError(f"{first} to {last}")

    with pytest.raises(ValueError, match="to"):
        run_in_threads(fail, 10)
