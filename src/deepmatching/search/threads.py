"""Small images side by side, each with one thread: two threads that share an operator on them are slower than one."""

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from typing import TypeVar

import torch

T = TypeVar("T")
R = TypeVar("R")


def one_thread_each(work: Callable[[T], R], items: Sequence[T]) -> Iterator[R]:
    """Yield work(item) for all items in their order, as many at a time as PyTorch has threads.

    The work sees the context variables of the caller, but not its gradient mode, which belongs to a thread.
    """
    threads = torch.get_num_threads()
    contexts = [copy_context() for _ in items]
    with ThreadPoolExecutor(threads, initializer=torch.set_num_threads, initargs=(1,)) as pool:
        try:
            yield from pool.map(lambda context, item: context.run(work, item), contexts, items)
        finally:
            torch.set_num_threads(threads)  # the pool's threads have also set what later ones start with
