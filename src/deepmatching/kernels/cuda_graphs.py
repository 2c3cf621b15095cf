"""CUDA graphs: work on tensors of fixed shapes, recorded once and replayed without the cost of its launches."""

from collections.abc import Callable
from threading import Lock
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor

Result = TypeVar("Result")

#: Work of up to this many bytes is recorded as a CUDA graph, which keeps its memory; launches do not slow larger work.
LARGEST_GRAPH = 2**30


def record(work: Callable[[], Result]) -> tuple[torch.cuda.CUDAGraph, Result]:
    """Record work on CUDA tensors; each ``replay()`` of the graph repeats it and refills the result.

    The work must use the same tensors every time and must not wait for the device. A training step (forward, loss,
    backward) can be recorded if its gradients are zeroed rather than set to None.
    """
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):  # before recording: compile kernels, let cuDNN choose, fill the caches
        for _ in range(3):
            work()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, capture_error_mode="thread_local"):  # others may read images into pinned memory
        result = work()
    return graph, result


class Replayed(Generic[Result]):
    """A function of CUDA tensors that is recorded when its arguments' shapes come again, and then replayed.

    The recording of the last shapes is kept, with the memory that the function takes; see :func:`record`. The function
    goes from tensors of fixed shapes, and other arguments, to a tuple of tensors or None. ``patience`` is the number of
    calls for the same shapes and the same other arguments before one is recorded.
    """

    def __init__(self, function: Callable[..., Result], patience: int = 1) -> None:
        self._function, self._patience = function, patience
        self._key: tuple[object, ...] = ()
        self._calls = 0
        self._inputs: list[Tensor] = []
        self._graph: torch.cuda.CUDAGraph | None = None
        self._result: Result
        self._lock = Lock()

    @torch.no_grad()
    def __call__(self, *arguments: Any) -> Result:
        """Return the function's result; its tensors are not overwritten by later calls."""
        device = next(a.device for a in arguments if isinstance(a, Tensor))
        with self._lock, torch.cuda.device(device):  # the graph has its own buffers: threads take turns
            return self._call(*arguments)

    def _call(self, *arguments: Any) -> Result:
        key = tuple((a.shape, a.dtype, a.device) if isinstance(a, Tensor) else a for a in arguments)
        if key != self._key:
            self._key, self._calls, self._graph = key, 0, None
        self._calls += 1
        if self._calls <= self._patience:
            return self._function(*arguments)
        tensors = [a for a in arguments if isinstance(a, Tensor)]
        if self._graph is None:
            self._inputs = [tensor.clone() for tensor in tensors]
            buffers = iter(self._inputs)
            fixed = [next(buffers) if isinstance(a, Tensor) else a for a in arguments]
            self._graph, self._result = record(lambda: self._function(*fixed))
        for buffer, tensor in zip(self._inputs, tensors, strict=True):
            buffer.copy_(tensor)
        self._graph.replay()
        copies = [None if tensor is None else tensor.clone() for tensor in self._result]  # type: ignore[attr-defined]
        make = getattr(self._result, "_make", tuple)
        return make(copies)  # type: ignore[return-value]
