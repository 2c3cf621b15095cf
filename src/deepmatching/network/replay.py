"""Describing and decoding as CUDA graphs: pairs of equal sizes without the launch cost of about forty small kernels."""

from __future__ import annotations

from threading import Lock

import torch
from torch import Tensor

from deepmatching.geometry.discretization import Geometry
from deepmatching.kernels.cuda_graphs import LARGEST_GRAPH, Replayed, record
from deepmatching.kernels.limits import release_freed
from deepmatching.network.inference import Decoding
from deepmatching.network.memory import is_banded
from deepmatching.network.network import Network
from deepmatching.network.operators.decoding import Decoded


class GraphedDescribe:
    """``Network.describe_image`` within the planned memory.

    On CUDA, a graph is replayed from the third image of equal size on. On a CPU, what the bands of a large image left
    behind is given back to the system.
    """

    def __init__(self, network: Network) -> None:
        self._network = network
        self._replayed = Replayed(lambda image, used: (network.describe_image(image, used),), patience=2)

    def __call__(self, image: Tensor, used: tuple[int, int]) -> Tensor:
        """The descriptors of a batch of images; see ``Network.describe_image``."""
        descriptor = self._network.descriptor
        needed = descriptor.working * image.shape[0] * image.shape[2] * image.shape[3]
        if image.is_cuda and needed <= LARGEST_GRAPH:
            return self._replayed(image, used)[0]
        cells = self._network.describe_image(image, used)
        if not image.is_cuda and is_banded(descriptor, used[0] * used[1]):
            release_freed()
        return cells


class GraphedDecodeCells:
    """``Network.decode_descriptors`` without waiting for a GPU; there, a graph is replayed for batches of equal sizes.

    Args:
        network: in ``eval`` mode.
        patience: batches of equal sizes before one is recorded.
    """

    def __init__(self, network: Network, patience: int = 1) -> None:
        self._network = network
        self._replayed = Replayed(self._decode, patience)
        self._exponents: tuple[tuple[int, int], tuple[float, ...]] = ((-1, -1), ())

    def __call__(self, cells0: Tensor, cells1: Tensor, geometry: Geometry, decoding: Decoding, needed: int) -> Decoded:
        """Return the matches of a batch of pairs, which takes ``needed`` bytes; see ``Network.decode_descriptors``."""
        is_recorded = cells0.is_cuda and needed <= LARGEST_GRAPH and not decoding.tiling.is_split(geometry)
        decode = self._replayed if is_recorded else self._decode
        return decode(cells0, cells1, geometry, decoding, self._current_exponents())

    def _decode(
        self, cells0: Tensor, cells1: Tensor, geometry: Geometry, decoding: Decoding, exponents: tuple[float, ...]
    ) -> Decoded:
        return self._network.decode_descriptors(cells0, cells1, geometry, decoding, list(exponents))

    def _current_exponents(self) -> tuple[float, ...]:
        """Return ν_l as numbers. Reading them waits for the GPU, so they are kept until they change."""
        exponents = self._network.exponents
        version = exponents._version, exponents.data_ptr()
        if version != self._exponents[0]:
            self._exponents = version, tuple(exponents.tolist())
        return self._exponents[1]


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


class RepeatedDecode:
    """``Network.decode`` on CUDA, where launches dominate: a graph is replayed from the second batch of equal sizes on.

    The graph of the last sizes is kept.
    """

    def __init__(self, network: Network) -> None:
        self._network = network
        self._key: tuple[object, ...] = ()  # what the last batch was
        self._graph: GraphedDecode | None = None  # recorded for it
        self._lock = Lock()

    def __call__(self, image0: Tensor, image1: Tensor, geometry: Geometry, decoding: Decoding) -> Decoded:
        """The matches of a batch of pairs."""
        exponents, shapes = self._network.exponents, (tuple(image0.shape), tuple(image1.shape))
        key = (shapes, geometry, decoding, exponents._version, exponents.data_ptr())
        with self._lock:  # the graph has its own buffers: threads take turns
            if key != self._key:
                self._key, self._graph = key, None
                return self._network.decode(image0, image1, decoding, geometry)
            self._graph = self._graph or GraphedDecode(self._network, *shapes, decoding)
            return self._graph(image0, image1)
