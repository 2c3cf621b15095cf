"""The flow between two frames on a GPU: CUDA graphs of matching and of what follows."""

from __future__ import annotations

import torch
from torch import Tensor

from deepmatching.edges import edge_strength
from deepmatching.flow.fields import agreement_of, field_of_decoded
from deepmatching.flow.pipeline import EdgesLike, edge_tensor, fields_to_flow, is_detected, needs_backward, times
from deepmatching.flow.result import FlowResult, FlowTensors
from deepmatching.flow.settings import FlowSettings
from deepmatching.graphs import Recorded
from deepmatching.inference import Decoding, Frame
from deepmatching.network import Network
from deepmatching.operators.targets import Decoded


class DeviceFlow:
    """The flow of frames on the network's GPU, without waiting for it.

    Several hundred small kernels are launched for each pair. From the second pair of equal sizes and settings on, they
    are replayed as CUDA graphs: one that decodes matches, used for both directions, and one from matches to flow. The
    graphs of the last sizes and settings are kept.

    Args:
        network: on a CUDA device, in ``eval`` mode.
    """

    def __init__(self, network: Network) -> None:
        self._network = network
        self._key: tuple[object, ...] = ()
        self._exponents: list[float] = []
        self._is_second = False
        self._decode_graph: Recorded[Decoded] | None = None
        self._flow_graph: Recorded[FlowTensors] | None = None

    @torch.no_grad()
    def __call__(
        self,
        first: Frame,
        second: Frame,
        decoding: Decoding,
        settings: FlowSettings,
        edges: EdgesLike,
        record_decoding: bool = True,
    ) -> FlowResult:
        """The flow from the first frame to the second.

        Args:
            decoding: the options of matching.
            settings: of interpolation and refinement.
            edges: of the first frame.
            record_decoding: False if matching takes too much memory to keep.
        """
        self._look_up(first, second, decoding, settings, is_detected(edges))
        start, matched, end = (torch.cuda.Event(enable_timing=True) for _ in range(3))
        start.record()
        both = ((first, second), (second, first)) if needs_backward(settings, self._network) else ((first, second),)
        decoded = [self._decode(a, b, decoding, record_decoding) for a, b in both]
        matched.record()
        tensors = self._flow(first, second, decoded, settings, edges)
        end.record()
        return FlowResult.on_device(
            tensors, lambda: times({"matching": (start, matched), "dense flow": (matched, end)})
        )

    def _look_up(self, first: Frame, second: Frame, decoding: Decoding, settings: FlowSettings, detected: bool) -> None:
        """Forget the graphs if anything that they depend on has changed."""
        exponents = self._network.exponents
        images = first.on_device.shape, second.on_device.shape
        key = (images, first.geometry, decoding, settings, detected, exponents._version, exponents.data_ptr())
        self._is_second = key == self._key
        if not self._is_second:
            self._key, self._decode_graph, self._flow_graph = key, None, None
            self._exponents = exponents.tolist()  # reading them waits for the GPU

    def _decode(self, first: Frame, second: Frame, decoding: Decoding, may_record: bool) -> Decoded:
        network, geometry, exponents = self._network, first.geometry, self._exponents

        def decode(cells0: Tensor, cells1: Tensor) -> Decoded:
            return network.decode_cells(cells0, cells1, geometry, decoding, exponents)

        if not self._is_second or not may_record:
            return decode(first.cells, second.cells)
        if self._decode_graph is None:
            self._decode_graph = Recorded(decode, first.cells, second.cells)
        return self._decode_graph(first.cells, second.cells)

    def _flow(
        self, first: Frame, second: Frame, decoded: list[Decoded], settings: FlowSettings, edges: EdgesLike
    ) -> FlowTensors:
        spacing, least = first.geometry.alpha, settings.interpolation.confidence
        number = len([tensor for tensor in decoded[0] if tensor is not None])

        def flow(image0: Tensor, image1: Tensor, strength: Tensor, *matches: Tensor) -> FlowTensors:
            forward = Decoded(*matches[:number])
            backward = field_of_decoded(Decoded(*matches[number:])) if len(matches) > number else None
            strength = edge_strength(image0) if is_detected(edges) else strength
            field, agreement = field_of_decoded(forward, 0, least), agreement_of(forward, spacing)
            hidden = None if forward.hidden is None else forward.hidden[0]
            return fields_to_flow(image0, image1, strength, settings, field, backward, agreement, hidden)

        images = first.on_device, second.on_device
        strength = images[0][0] if is_detected(edges) else edge_tensor(images[0], edges)  # any, if it is not used
        tensors = (*images, strength, *(tensor for pair in decoded for tensor in pair if tensor is not None))
        if not self._is_second:
            return flow(*tensors)
        if self._flow_graph is None:
            self._flow_graph = Recorded(flow, *tensors)
        return self._flow_graph(*tensors)
