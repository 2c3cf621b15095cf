"""Small images side by side."""

import threading
from contextvars import ContextVar

import pytest
import torch

from deepmatching.search.threads import one_thread_each

word: ContextVar[str] = ContextVar("word", default="nothing")


def test_results_come_in_order_and_each_with_one_thread() -> None:
    before = torch.get_num_threads()
    word.set("said")
    found = list(one_thread_each(lambda n: (n, torch.get_num_threads(), word.get()), range(7)))
    assert found == [(n, 1, "said") for n in range(7)]
    assert torch.get_num_threads() == before
    later: list[int] = []
    thread = threading.Thread(target=lambda: later.append(torch.get_num_threads()))
    thread.start()
    thread.join()
    assert later == [before]


def test_an_error_ends_the_work_and_leaves_the_number_of_threads() -> None:
    before = torch.get_num_threads()

    def work(n: int) -> int:
        if n == 2:
            raise ValueError("two")
        return n

    with pytest.raises(ValueError, match="two"):
        list(one_thread_each(work, range(5)))
    assert torch.get_num_threads() == before
