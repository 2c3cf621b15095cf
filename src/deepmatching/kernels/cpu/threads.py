"""Running a kernel in several threads."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch

#: Parts for each thread: with several, a delayed thread does not keep the others waiting for long.
PARTS = 8


def run_in_threads(kernel: Callable[..., None], items: int, *arguments: Any) -> None:
    """Call kernel(first, last, \\*arguments) for consecutive ranges that make up 0 … items − 1.

    As many threads as PyTorch uses (``torch.set_num_threads``), this one among them, take one range after another;
    kernels do not hold the interpreter's lock. Unlike Numba's own threading layers, this may be called from several
    threads at once, compiles faster, and leaves no idle threads behind.
    """
    threads = min(torch.get_num_threads(), items)
    if threads <= 1:
        kernel(0, items, *arguments)
        return
    parts = min(items, threads * PARTS)
    waiting = deque((part * items // parts, (part + 1) * items // parts) for part in range(parts))

    def work() -> None:
        while True:
            try:
                first, last = waiting.popleft()
            except IndexError:
                return
            kernel(first, last, *arguments)

    with ThreadPoolExecutor(threads - 1) as pool:
        others = [pool.submit(work) for _ in range(threads - 1)]
        work()
        for other in others:
            other.result()  # raises the thread's exception
