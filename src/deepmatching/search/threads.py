"""Small images side by side, each with one thread: two threads that share an operator on them are slower than one."""

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from threading import Barrier
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
    workers = min(threads, len(items))
    ready = Barrier(workers + 1)

    def start() -> None:
        torch.set_num_threads(1)
        torch.get_num_threads()  # a thread looks once, at its first operator or here
        ready.wait()

    with ThreadPoolExecutor(max(1, workers), initializer=start) as pool:
        try:
            results = pool.map(lambda context, item: context.run(work, item), contexts, items)
            ready.wait()
        except BaseException:
            ready.abort()  # some threads may wait, and others never start
            raise
        torch.set_num_threads(threads)  # threads that start elsewhere would take the workers' number; these keep theirs
        yield from results
