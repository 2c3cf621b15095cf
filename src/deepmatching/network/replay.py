"""Describing and decoding as CUDA graphs: pairs of equal sizes without the launch cost of about forty small kernels."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from deepmatching.geometry.discretization import Geometry
from deepmatching.kernels.cuda_graphs import LARGEST_GRAPH, Replayed
from deepmatching.kernels.limits import release_freed
from deepmatching.network.inference import Decoding
from deepmatching.network.memory import is_banded
from deepmatching.network.network import Network
from deepmatching.network.operators.decoding import Decoded

Decode = Callable[[Tensor, Tensor, Geometry, Decoding, tuple[float, ...]], Decoded]


class GraphedDescribe:
    """``Network.describe_image`` within the planned memory.

    On CUDA, a graph is replayed from the third image of equal size on. On a CPU, what the bands of a large image left
    behind is given back to the system.
    """

    def __init__(self, network: Network) -> None:
        self._network = network
        self._replayed = Replayed(lambda image, used: (network.describe_image(image, used),), patience=2)

    def __call__(self, image: Tensor, used: tuple[int, int]) -> Tensor:
        """Describe a batch of images; see ``Network.describe_image``."""
        descriptor = self._network.descriptor
        needed = descriptor.working * image.shape[0] * image.shape[2] * image.shape[3]
        if image.is_cuda and needed <= LARGEST_GRAPH:
            return self._replayed(image, used)[0]
        cells = self._network.describe_image(image, used)
        if not image.is_cuda and is_banded(descriptor, used[0] * used[1]):
            release_freed()
        return cells


class GraphedDecode:
    """``Network.decode`` and ``decode_descriptors`` without waiting for a GPU.

    There, where launches dominate, a graph is replayed for batches of equal sizes. It holds the memory of one decoding.

    Args:
        network: in ``eval`` mode.
        patience: batches of equal sizes before one is recorded.
    """

    def __init__(self, network: Network, patience: int = 1) -> None:
        self._network, self._describe = network, GraphedDescribe(network)
        ways: tuple[Decode, ...] = (self._decode, self._decode_descriptors)
        self._replayed = {decode: Replayed(decode, patience) for decode in ways}
        self._exponents: tuple[tuple[int, int], tuple[float, ...]] = ((-1, -1), ())

    def __call__(
        self, image0: Tensor, image1: Tensor, geometry: Geometry, decoding: Decoding, needed: int = 0
    ) -> Decoded:
        """Return the matches of a batch of pairs, which takes ``needed`` bytes; see ``Network.decode``."""
        return self._run(self._decode, image0, image1, geometry, decoding, needed)

    def of_descriptors(
        self, cells0: Tensor, cells1: Tensor, geometry: Geometry, decoding: Decoding, needed: int = 0
    ) -> Decoded:
        """Return the matches of descriptors, which takes ``needed`` bytes; see ``Network.decode_descriptors``."""
        return self._run(self._decode_descriptors, cells0, cells1, geometry, decoding, needed)

    @torch.no_grad()
    def _run(
        self, decode: Decode, first: Tensor, second: Tensor, geometry: Geometry, decoding: Decoding, needed: int
    ) -> Decoded:
        is_recorded = first.is_cuda and needed <= LARGEST_GRAPH and not decoding.tiling.is_split(geometry)
        run = self._replayed[decode] if is_recorded else decode
        return run(first, second, geometry, decoding, self._current_exponents())

    def _decode(self, image0: Tensor, image1: Tensor, geometry: Geometry, *options: Any) -> Decoded:
        if image0.is_cuda:
            cells = self._network.describe(image0, image1, geometry)
        else:
            cells = self._describe(image0, geometry.used0), self._describe(image1, geometry.used1)
        return self._decode_descriptors(*cells, geometry, *options)

    def _decode_descriptors(
        self, cells0: Tensor, cells1: Tensor, geometry: Geometry, decoding: Decoding, nu: tuple[float, ...]
    ) -> Decoded:
        return self._network.decode_descriptors(cells0, cells1, geometry, decoding, list(nu))

    def _current_exponents(self) -> tuple[float, ...]:
        """Return ν_l as numbers. Reading them waits for the GPU, so they are kept until they change."""
        exponents = self._network.exponents
        version = exponents._version, exponents.data_ptr()
        if version != self._exponents[0]:
            self._exponents = version, tuple(exponents.tolist())
        return self._exponents[1]
