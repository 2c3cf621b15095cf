"""CUDA graphs: decoding many pairs of the same sizes without the launch cost of some forty small kernels."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import torch
from torch import Tensor

from deepmatching.defaults import Reciprocal
from deepmatching.network import Network
from deepmatching.operators.decoding import Decoded

Result = TypeVar("Result")


def record(work: Callable[[], Result]) -> tuple[torch.cuda.CUDAGraph, Result]:
    """Record work on CUDA tensors; each ``replay()`` of the graph does it again and refills the result.

    The work must always use the same tensors, and must not wait for the device. A training step (forward, loss,
    backward) can be recorded too, if its gradients are kept rather than set to None.
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


class GraphedDecode:
    """``Network.decode`` for images of fixed shapes, recorded once and replayed.

    The network's parameters are read at every replay, except for the exponents, which are those of the recording. The
    graph keeps the memory of one decoding for itself.

    Args:
        network: on a CUDA device, in the mode (``eval``) in which it is to run.
        shape0, shape1: shapes of the two batches of images, (B, 1 or 3, H, W).
        reciprocal: how matches are verified, see ``deepmatching.operators.decoding``.
        half: store scores in half precision, see ``deepmatching.inference``.
        subpixel: refine matches between cells if the network has a sharpness.
    """

    def __init__(
        self,
        network: Network,
        shape0: tuple[int, ...],
        shape1: tuple[int, ...],
        reciprocal: Reciprocal = "bins",
        half: bool = False,
        subpixel: bool = True,
    ) -> None:
        device = network.exponents.device
        if device.type != "cuda":
            raise ValueError(f"a CUDA graph needs the network on a CUDA device, not on {device}")
        self._network, self._how = network, (reciprocal, 1, half, subpixel)
        self._exponents = network.exponents.tolist()
        with torch.cuda.device(device), torch.no_grad():
            self._image0, self._image1 = (torch.rand(shape, device=device) for shape in (shape0, shape1))
            self._graph, self._decoded = record(self._decode)

    def _decode(self) -> Decoded:
        geometry, cells0, cells1 = self._network.describe(self._image0, self._image1)
        return self._network.decode_described(geometry, cells0, cells1, self._exponents, *self._how)

    def __call__(self, image0: Tensor, image1: Tensor) -> Decoded:
        """The matches of a batch of pairs of the recorded shapes, on any device; as ``Network.decode`` gives them."""
        for name, image, buffer in (("image0", image0, self._image0), ("image1", image1, self._image1)):
            if image.shape != buffer.shape:
                raise ValueError(f"{name} has shape {tuple(image.shape)}, recorded was {tuple(buffer.shape)}")
        with torch.no_grad():
            self._image0.copy_(image0)
            self._image1.copy_(image1)
            self.replay()
            return Decoded(*(result.clone() for result in self._decoded))

    def replay(self) -> None:
        """Decode what the input buffers hold, into the graph's own output."""
        self._graph.replay()
