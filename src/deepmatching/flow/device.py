"""The flow between two frames on a GPU: CUDA graphs of matching and of what follows."""

from __future__ import annotations

import torch
from torch import Tensor

from deepmatching.errors import failed_allocations
from deepmatching.flow.correction import DenseNetwork
from deepmatching.flow.correction.stage import dense_tensors
from deepmatching.flow.edges import edge_strength
from deepmatching.flow.fields import agreement_of, field_of_decoded
from deepmatching.flow.pipeline import EdgesLike, edge_tensor, fields_to_flow, is_detected, needs_backward, times
from deepmatching.flow.result import FlowResult, FlowTensors
from deepmatching.flow.settings import FlowSettings, suited
from deepmatching.geometry.discretization import Geometry
from deepmatching.geometry.targets import Decoded
from deepmatching.kernels.cuda_graphs import LARGEST_GRAPH, Replayed
from deepmatching.network.inference import Decoding, Frame
from deepmatching.network.memory import decoding_bytes
from deepmatching.network.network import Network

#: Memory that the way from matches to flow takes for each pixel, roughly; and with a dense network.
BYTES, DENSE_BYTES = 300, 700

#: Tensors of the decoded matches of one direction, some of which may be None.
FIELDS = len(Decoded._fields)


class DeviceFlow:
    """The flow of frames on the network's GPU, without waiting for it.

    Several hundred small kernels are launched for each pair. From the second pair of equal sizes and settings on, they
    are replayed as CUDA graphs: one that decodes matches, used for both directions, and one from matches to flow.

    Args:
        network: on a CUDA device, in ``eval`` mode.
    """

    def __init__(self, network: Network) -> None:
        self._network = network
        self._exponents: tuple[tuple[int, int], tuple[float, ...]] = ((-1, -1), ())
        self._decode = Replayed(self._decode_eagerly, 2)
        self._flow = Replayed(_flow_eagerly)

    @torch.no_grad()
    @failed_allocations()
    def __call__(
        self, first: Frame, second: Frame, decoding: Decoding, settings: FlowSettings, edges: EdgesLike
    ) -> FlowResult:
        """The flow from the first frame to the second.

        Args:
            decoding: the options of matching.
            settings: of interpolation and refinement.
            edges: of the first frame.
        """
        with torch.cuda.device(first.on_device.device):  # for the events
            return self._run(first, second, decoding, settings, edges)

    def _run(
        self, first: Frame, second: Frame, decoding: Decoding, settings: FlowSettings, edges: EdgesLike
    ) -> FlowResult:
        descriptor, tiling = self._network.descriptor, decoding.tiling
        pooling = self._network.pooling
        needed = decoding_bytes(first.geometry, descriptor, device="cuda", tiling=tiling, pooling=pooling)
        is_small = needed <= LARGEST_GRAPH and not tiling.is_split(first.geometry)
        decode = self._decode if is_small else self._decode_eagerly
        start, matched, end = (torch.cuda.Event(enable_timing=True) for _ in range(3))
        start.record()
        settings = suited(settings, self._network.confidence is not None, self._network.dense is not None)
        network = self._network.dense if settings.dense else None
        dense = () if network is None else (network, first.geometry, first.cells, second.cells)
        both = ((first, second), (second, first)) if needs_backward(settings, self._network) else ((first, second),)
        decoded = [decode(a.cells, b.cells, first.geometry, decoding, self._current_exponents()) for a, b in both]
        matched.record()
        strength = None if is_detected(edges) else edge_tensor(first.on_device, edges)
        matches = (tensor for pair in decoded for tensor in pair)
        images = first.on_device, second.on_device
        is_small = (DENSE_BYTES if dense else BYTES) * images[0].shape[1] * images[0].shape[2] <= LARGEST_GRAPH
        flow = self._flow if is_small else _flow_eagerly
        tensors = flow(settings, first.geometry.alpha, *images, strength, dense[:2], *dense[2:], *matches)
        end.record()
        stages = {"matching": (start, matched), "dense flow": (matched, end)}
        return FlowResult.on_device(tensors, lambda: times(stages))

    def _current_exponents(self) -> tuple[float, ...]:
        """ν_l as numbers. Reading them waits for the GPU, so they are kept until they change."""
        exponents = self._network.exponents
        version = exponents._version, exponents.data_ptr()
        if version != self._exponents[0]:
            self._exponents = version, tuple(exponents.tolist())
        return self._exponents[1]

    def _decode_eagerly(
        self, cells0: Tensor, cells1: Tensor, geometry: Geometry, decoding: Decoding, exponents: tuple[float, ...]
    ) -> Decoded:
        return self._network.decode_cells(cells0, cells1, geometry, decoding, list(exponents))


def _flow_eagerly(
    settings: FlowSettings,
    spacing: int,
    image0: Tensor,
    image1: Tensor,
    strength: Tensor | None,
    dense: tuple[DenseNetwork, Geometry] | tuple[()],
    *tensors: Tensor | None,
) -> FlowTensors:
    """From decoded matches, forward and perhaps backward, to the flow; without ``strength``, edges are detected.

    Args:
        dense: the dense network, if it is used, and the geometry; the descriptors are then the first two tensors.
    """
    matches = tensors[2:] if dense else tensors
    forward, *others = (Decoded._make(matches[n : n + FIELDS]) for n in range(0, len(matches), FIELDS))
    backward = field_of_decoded(others[0]) if others else None
    edges = edge_strength(image0) if strength is None else strength
    agreement = agreement_of(forward, spacing)
    if dense:
        network, geometry = dense
        cells0, cells1 = tensors[:2]
        assert cells0 is not None and cells1 is not None
        return dense_tensors(network, forward, image0, image1, cells0, cells1, geometry, settings, edges, agreement)
    field = field_of_decoded(forward, 0, settings.interpolation.confidence)
    occluded = None if forward.occluded is None else forward.occluded[0]
    return fields_to_flow(image0, image1, edges, settings, field, backward, agreement, occluded)
