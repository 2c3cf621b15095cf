"""Running a kernel: arrays of tensors, memory for results, and threads."""

from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import torch
from torch import Tensor

#: Ranges for each thread: with several, a delayed thread does not keep the others waiting for long.
RANGES = 8


def arrays_of(*tensors: Tensor) -> list[np.ndarray]:
    """Return the tensors as contiguous arrays."""
    return [tensor.detach().contiguous().numpy() for tensor in tensors]


def empty(shape: tuple[int, ...], dtype: torch.dtype = torch.float32) -> Tensor:
    """Do as ``torch.empty``, but NumPy asks the system for large pages: a quarter of the time to the first write."""
    return torch.from_numpy(np.empty(shape, dtype=str(dtype).removeprefix("torch.")))


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
    ranges = min(items, threads * RANGES)
    waiting = deque((n * items // ranges, (n + 1) * items // ranges) for n in range(ranges))

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
