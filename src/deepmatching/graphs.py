"""CUDA graphs: decode many pairs of equal sizes without the launch cost of about forty small kernels."""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, TypeVar

import torch
from torch import Tensor

from deepmatching.inference import Decoding
from deepmatching.network import Network
from deepmatching.operators.decoding import Decoded

Result = TypeVar("Result")


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
    with torch.cuda.graph(graph):
        result = work()
    return graph, result


class Recorded(Generic[Result]):
    """A function of tensors of fixed shapes, recorded once and replayed.

    Args:
        function: from CUDA tensors to a named tuple of tensors, some of which may be None; see :func:`record`.
        examples: its arguments at recording.
    """

    def __init__(self, function: Callable[..., Result], *examples: Tensor) -> None:
        with torch.cuda.device(examples[0].device), torch.no_grad():
            self._inputs = [example.clone() for example in examples]
            self._graph, self._result = record(lambda: function(*self._inputs))

    def __call__(self, *arguments: Tensor) -> Result:
        """The function's result for arguments of the recorded shapes."""
        with torch.no_grad():
            for buffer, argument in zip(self._inputs, arguments, strict=True):
                buffer.copy_(argument)
            self._graph.replay()
            copies = (None if tensor is None else tensor.clone() for tensor in self._result)  # type: ignore[attr-defined]
            return type(self._result)(*copies)  # type: ignore[call-arg]


class GraphedDecode:
    """``Network.decode`` for images of fixed shapes, recorded once and replayed.

    Every replay reads the network's parameters, except for the exponents, which are fixed when the graph is recorded.
    The graph holds the memory of one decoding.

    Args:
        network: on a CUDA device, in ``eval`` mode.
        shape0, shape1: shapes of the two batches of images, (B, 1 or 3, H, W).
        decoding: the options of inference.
    """

    def __init__(
        self,
        network: Network,
        shape0: tuple[int, ...],
        shape1: tuple[int, ...],
        decoding: Decoding = Decoding(),  # noqa: B008 - frozen
    ) -> None:
        device = network.exponents.device
        if device.type != "cuda":
            raise ValueError(f"a CUDA graph needs the network on a CUDA device, not on {device}")
        self._network, self._decoding = network, decoding
        self._exponents = network.exponents.tolist()
        with torch.cuda.device(device), torch.no_grad():
            self._image0, self._image1 = (torch.rand(shape, device=device) for shape in (shape0, shape1))
            self._graph, self._decoded = record(self._decode)

    def _decode(self) -> Decoded:
        return self._network.decode(self._image0, self._image1, self._decoding, exponents=self._exponents)

    def __call__(self, image0: Tensor, image1: Tensor) -> Decoded:
        """The matches of a batch of pairs of the recorded shapes, as ``Network.decode`` gives them."""
        for name, image, buffer in (("image0", image0, self._image0), ("image1", image1, self._image1)):
            if image.shape != buffer.shape:
                raise ValueError(f"{name} has shape {tuple(image.shape)}, recorded was {tuple(buffer.shape)}")
        with torch.no_grad():
            self._image0.copy_(image0)
            self._image1.copy_(image1)
            self.replay()
            copies = {name: t.clone() for name, t in self._decoded._asdict().items() if t is not None}
            return Decoded(**copies)

    def replay(self) -> None:
        """Decode the input buffers into the graph's own output."""
        self._graph.replay()
