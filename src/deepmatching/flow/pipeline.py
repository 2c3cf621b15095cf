"""From two frames, or from matches, to a flow and its confidence: the stages in order, on any device."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor

from deepmatching.errors import DeepMatchingError, failed_allocations
from deepmatching.flow.confidence import confidence, probability
from deepmatching.flow.correction import DenseNetwork
from deepmatching.flow.correction.stage import dense_tensors, dense_to_flow, occlusion_of
from deepmatching.flow.edges.detect import EdgesLike, edge_strength, edge_tensor, edges_of, is_detected
from deepmatching.flow.fields import Field, agreement_of, field_of, field_of_decoded, interpolate_field, on_device
from deepmatching.flow.interpolation import NOTHING, interpolate, starts_inside
from deepmatching.flow.matching import Frame, Matching, needs_backward
from deepmatching.flow.refinement import refine, refine_finite
from deepmatching.flow.result import FlowResult, FlowTensors, stopwatch
from deepmatching.flow.settings import FlowSettings, adapt_to_model, preset
from deepmatching.flow.warped_images import Views, refine_through, views_of
from deepmatching.geometry.discretization import Geometry
from deepmatching.geometry.targets import Decoded
from deepmatching.kernels.cuda_graphs import LARGEST_GRAPH, Replayed
from deepmatching.matches import Matches, matches_of
from deepmatching.network.memory import Work
from deepmatching.network.network import Network
from deepmatching.network.replay import GraphedDecodeCells
from deepmatching.search import Transformation, match_through

#: Memory that the way from matches to flow takes on a GPU, roughly, in bytes for each pixel.
BYTES = 300

#: The same with a dense network.
DENSE_BYTES = 700

#: Number of tensors of the decoded matches of one direction, some of which may be None.
FIELDS = len(Decoded._fields)


@failed_allocations()
@torch.no_grad()
def flow_between(
    first: Frame,
    second: Frame,
    settings: str | FlowSettings,
    matching: Matching,
    edges: EdgesLike = None,
    known: Decoded | None = None,
    graphs: FlowGraphs | None = None,
    start: float | None = None,
) -> FlowResult:
    """Return the flow from one frame to the next, from their descriptors.

    On a GPU with kernels, nothing waits for it, and the result stays there until it is read.

    Args:
        settings: of the stages, or the name of a preset.
        matching: how the frames are matched.
        edges: of the first frame.
        known: matches from the first frame to the second that were found by ``matching``; None to find them.
        graphs: recordings of earlier pairs, for a GPU.
        start: when the work on these frames began, by ``time.perf_counter``; None for now.
    """
    check_pair(first.on_device, second.on_device)
    network = matching.network
    settings = adapt_to_model(preset(settings), network.confidence is not None, network.dense is not None)
    if on_device(first.on_device):
        return (graphs or FlowGraphs(network))(first, second, settings, matching, edges, known)
    start = time.perf_counter() if start is None else start
    decoded = matching.decode_for_flow(first, second, settings) if known is None else known
    backward = matching.decode(second, first) if needs_backward(settings, network) else None
    matched = time.perf_counter()
    result = _flow_of_decoded(decoded, backward, first, second, settings, matching, edges)
    return replace(result, seconds={"matching": matched - start, **result.seconds})


def _flow_of_decoded(
    decoded: Decoded,
    backward: Decoded | None,
    first: Frame,
    second: Frame,
    settings: FlowSettings,
    matching: Matching,
    edges: EdgesLike,
) -> FlowResult:
    """:func:`flow_between` after matching, not on a GPU with kernels."""
    geometry, network = matching.geometry, matching.network
    sizes = geometry.size0, geometry.size1
    if settings.dense and network.dense is not None:
        strength = None if is_detected(edges) else edge_tensor(first.on_device, edges)
        result = dense_to_flow(network.dense, decoded, first, second, geometry, settings, strength)
    else:
        result = matches_to_flow(
            matches_of(decoded, 0, *sizes, settings.interpolation.confidence),
            first.on_device,
            second.on_device,
            settings,
            edges,
            None if backward is None else matches_of(backward, 0, *sizes),
            first.image,
            None if decoded.occluded is None else decoded.occluded[0],
        )
    return replace(result, agreement=matches_of(decoded, 0, *sizes).agreement)


@failed_allocations()
def matches_to_flow(
    matches: Matches,
    image0: Tensor,
    image1: Tensor,
    settings: FlowSettings,
    edges: EdgesLike = None,
    backward: Matches | None = None,
    host_image0: Tensor | None = None,
    occluded: Tensor | None = None,
) -> FlowResult:
    """Interpolate the matches of any matcher along the edges of the first image, and refine the flow.

    All is computed on the images' device. If that is a GPU with kernels, the result stays there until it is read.
    Matches of a search have transformations, which the flow follows; see ``deepmatching.flow.warped_images``.

    Args:
        matches: from the first image to the second.
        image0, image1: (1 or 3, H, W) in [0, 1], of one size, on one device.
        settings: of interpolation and refinement.
        edges: edges of the first image.
        backward: matches from the second image to the first, which tell wrong matches; None to do without. No effect
            on those of a search.
        host_image0: the first image in main memory, if the caller has it there.
        hidden: (H_0, W_0), probability that a reference point is hidden in the second image; None if unknown.
    """
    size = check_pair(image0, image1)
    _check_sizes(matches, size)
    settings = adapt_to_model(settings, matches.confidence is not None, has_dense=False)
    if on_device(image0):
        with torch.cuda.device(image0.device):
            return _flow_on_device(matches, image0, image1, settings, edges, backward, occluded)
    keypoints0, keypoints1, scores = matches.numpy()
    views = views_of(matches, image0, image1)
    backward_keypoints = None if backward is None or views is not None else backward.numpy()[:2]
    seconds, finish = stopwatch()
    strength = edges_of(image0, edges)
    finish("edges")
    found = interpolate(
        keypoints0,
        keypoints1 if views is None else views.ends,
        strength,
        image0.cpu() if host_image0 is None else host_image0,
        scores=scores,
        confidence=matches.confidence,
        backward=backward_keypoints,
        settings=settings.interpolation,
    )
    finish("interpolation")
    del strength
    if views is None:
        flow = refine(found.flow, image0, image1, settings.refinement)
    else:
        match, left = (torch.from_numpy(a).to(image0.device) for a in (found.kept[found.cells.label], found.flow))
        flow = refine_through(views, left, match, image0, settings.refinement)
    certainty = confidence(flow, found, image0, image1)
    finish("refinement")
    occlusion = None if occluded is None else occlusion_of(occluded, flow).cpu().numpy()
    return FlowResult(flow.cpu().numpy(), certainty, len(found.kept), seconds, occlusion=occlusion)


@failed_allocations()
def searched_to_flow(
    image0: Tensor,
    image1: Tensor,
    models: list[Transformation],
    match: Callable[[Tensor, Tensor], Matches],
    settings: FlowSettings,
    edges: EdgesLike,
    device: torch.device,
    start: float,
) -> FlowResult:
    """The flow of a pair that is turned or zoomed.

    Args:
        image0, image1: as for :func:`matches_to_flow`, in main memory.
        models: the transformations that the pair needs, see ``deepmatching.search``.
        match: plain matching.
        device: of interpolation and refinement.
        start: when the search began, as ``time.perf_counter`` says.
    """
    found = match_through(image0, image1, models, match)
    seconds = {"matching": time.perf_counter() - start}
    result = matches_to_flow(found, image0.to(device), image1.to(device), settings, edges, host_image0=image0)
    return replace(result, seconds={**seconds, **result.seconds}, agreement=found.agreement)


def _flow_on_device(
    matches: Matches,
    image0: Tensor,
    image1: Tensor,
    settings: FlowSettings,
    edges: EdgesLike,
    backward: Matches | None,
    occluded: Tensor | None,
) -> FlowResult:
    """:func:`matches_to_flow` on the images' GPU, which is the current one."""
    if len(matches) == 0:
        raise DeepMatchingError(NOTHING)
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    begin.record()
    forward, views = field_of(matches, image0.device), views_of(matches, image0, image1)
    forward = forward if views is None else forward._replace(points1=views.ends)
    back = None if backward is None or views is not None else field_of(backward, image0.device)
    strength = edge_tensor(image0, edges)
    tensors = fields_to_flow(image0, image1, strength, settings, forward, back, occluded=occluded, views=views)
    end.record()
    return FlowResult.on_device(tensors, lambda: times({"dense flow": (begin, end)}))


def fields_to_flow(
    image0: Tensor,
    image1: Tensor,
    edges: Tensor,
    settings: FlowSettings,
    forward: Field,
    backward: Field | None = None,
    agreement: Tensor | None = None,
    occluded: Tensor | None = None,
    views: Views | None = None,
) -> FlowTensors:
    """As :func:`matches_to_flow`, in tensors of one device. Never waits for it.

    Args:
        edges: (H, W), edge strength of the first image.
        forward, backward: matches from the first image to the second, and back.
        agreement: of the forward matches, if known.
        hidden: as for :func:`matches_to_flow`.
        views: those of the forward matches, which then end in them; None if they are not transformed.
    """
    found = interpolate_field(forward, edges, image0, backward, settings.interpolation)
    if views is None:
        flow = refine_finite(found.flow, image0, image1, settings.refinement)
    else:
        flow = refine_through(views, found.flow, found.origin.label, image0, settings.refinement)
    certainty = probability(flow, found.origin, image0, image1)
    unknown = torch.full_like(certainty[0, 0], torch.nan)
    occlusion = None if occluded is None else occlusion_of(occluded, flow)
    return FlowTensors(flow, certainty, found.counts.sum(), unknown if agreement is None else agreement, occlusion)


def times(stages: dict[str, tuple[torch.cuda.Event, torch.cuda.Event]]) -> dict[str, float]:
    """Seconds between the two events of each stage; waits for the last."""
    for _, end in stages.values():
        end.synchronize()
    return {name: begin.elapsed_time(end) / 1000 for name, (begin, end) in stages.items()}


class FlowGraphs:
    """The flow of frames on the network's GPU, without waiting for it.

    Several hundred small kernels are launched for each pair. From the second pair of equal sizes and settings on, they
    are replayed as CUDA graphs: one that decodes matches, used for both directions, and one from matches to flow.

    Args:
        network: on a CUDA device, in ``eval`` mode.
    """

    def __init__(self, network: Network) -> None:
        self._network = network
        self._decode = GraphedDecodeCells(network, 2)
        self._flow = Replayed(_flow_eagerly)

    def __call__(
        self,
        first: Frame,
        second: Frame,
        settings: FlowSettings,
        matching: Matching,
        edges: EdgesLike,
        known: Decoded | None = None,
    ) -> FlowResult:
        """Return the flow from the first frame to the second; see :func:`flow_between`."""
        with torch.cuda.device(first.on_device.device):  # for the events
            return self._run(first, second, settings, matching, edges, known)

    def _run(
        self,
        first: Frame,
        second: Frame,
        settings: FlowSettings,
        matching: Matching,
        edges: EdgesLike,
        known: Decoded | None,
    ) -> FlowResult:
        geometry, decoding = matching.geometry, matching.decoding
        needed = Work.of(self._network, geometry, "cuda").peak(1, decoding.tiling)
        start, matched, end = (torch.cuda.Event(enable_timing=True) for _ in range(3))
        start.record()
        network = self._network.dense if settings.dense else None
        dense = () if network is None else (network, geometry, first.cells, second.cells)
        ways = [(first, second)] * (known is None) + [(second, first)] * needs_backward(settings, self._network)
        decoded = [self._decode(a.cells, b.cells, geometry, decoding, needed) for a, b in ways]
        decoded = decoded if known is None else [known, *decoded]
        matched.record()
        strength = None if is_detected(edges) else edge_tensor(first.on_device, edges)
        matches = (tensor for pair in decoded for tensor in pair)
        images = first.on_device, second.on_device
        is_small = (DENSE_BYTES if dense else BYTES) * images[0].shape[1] * images[0].shape[2] <= LARGEST_GRAPH
        flow = self._flow if is_small else _flow_eagerly
        tensors = flow(settings, geometry.alpha, *images, strength, dense[:2], *dense[2:], *matches)
        end.record()
        stages = {"matching": (start, matched), "dense flow": (matched, end)}
        return FlowResult.on_device(tensors, lambda: times(stages))


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


def check_pair(image0: Tensor, image1: Tensor) -> tuple[int, int]:
    """The size (H, W) of both images; raises if they differ."""
    (rows0, columns0), (rows1, columns1) = image0.shape[1:], image1.shape[1:]
    if (rows0, columns0) != (rows1, columns1):
        raise DeepMatchingError(
            f"Flow needs two images of one size, but they are {columns0}x{rows0} and {columns1}x{rows1} pixels: "
            "crop or resize one."
        )
    return rows0, columns0


def _check_sizes(matches: Matches, size: tuple[int, int]) -> None:
    """Raise if the matches say that they belong to images of other sizes."""
    for stated in (matches.size0, matches.size1):
        if stated is not None and tuple(stated) != size:
            raise DeepMatchingError(
                f"The matches are of images of {stated[1]}x{stated[0]} pixels, but these have {size[1]}x{size[0]}: "
                "match these images."
            )


def count_outside(matches: Matches, size: tuple[int, int]) -> int:
    """The number of matches that start outside an image of this size (rows, columns); interpolation drops them.

    Raises:
        DeepMatchingError: if most of them do.
    """
    if matches.size0 is not None and tuple(matches.size0) != tuple(size):
        return 0  # matches_to_flow refuses these and says why
    outside = len(matches) - int(starts_inside(matches.numpy()[0], size).sum())
    if 2 * outside > len(matches):
        raise DeepMatchingError(
            f"{outside} of {len(matches)} matches start outside the image of {size[1]}x{size[0]} pixels: are these "
            "matches of other images? Give those of this pair."
        )
    return outside
