"""Small images side by side."""

import threading
from contextvars import ContextVar

import pytest
import torch

from deepmatching.search.threads import one_thread_each

word: ContextVar[str] = ContextVar("word", default="nothing")


@pytest.mark.parametrize("count", [0, 1, 7])
def test_results_come_in_order_and_each_with_one_thread(count: int) -> None:
    before = torch.get_num_threads()
    word.set("said")
    found = list(one_thread_each(lambda n: (n, torch.get_num_threads(), word.get()), range(count)))
    assert found == [(n, 1, "said") for n in range(count)]
    assert torch.get_num_threads() == before


def test_threads_that_start_meanwhile_are_as_many_as_before() -> None:
    before, seen = torch.get_num_threads(), []
    for _ in one_thread_each(lambda n: n, range(5)):
        other = threading.Thread(target=lambda: seen.append(torch.get_num_threads()))
        other.start()
        other.join()
    assert seen == 5 * [before]


def test_an_error_ends_the_work_and_leaves_the_number_of_threads() -> None:
    before = torch.get_num_threads()

    def work(n: int) -> int:
        if n == 2:
            raise ValueError("two")
        return n

    with pytest.raises(ValueError, match="two"):
        list(one_thread_each(work, range(5)))
    assert torch.get_num_threads() == before
