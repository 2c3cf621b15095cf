"""From two frames, or from matches, to a flow and its confidence: the stages in order, on any device."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from deepmatching.errors import DeepMatchingError, failed_allocations
from deepmatching.flow.confidence import probability
from deepmatching.flow.correction import DenseNetwork
from deepmatching.flow.correction.stage import dense_tensors, occlusion_of
from deepmatching.flow.edges.detect import EdgesLike, edge_strength, edge_tensor, is_detected
from deepmatching.flow.filters import MatchTensors, starts_inside
from deepmatching.flow.interpolation import on_device, sparse_to_dense
from deepmatching.flow.matching import Frame, Matching, needs_backward
from deepmatching.flow.refinement import refine_finite
from deepmatching.flow.result import NOTHING, Finish, FlowResult, FlowTensors, ignore_stage, stopwatch, unknown_like
from deepmatching.flow.settings import FlowSettings, adapt_to_model, preset
from deepmatching.flow.warped_images import Views, refine_through, views_of
from deepmatching.geometry.discretization import Geometry
from deepmatching.geometry.targets import Decoded
from deepmatching.kernels.cuda_graphs import LARGEST_GRAPH, Replayed
from deepmatching.matches import Matches, count_agreeing
from deepmatching.network.memory import Work
from deepmatching.network.network import Network
from deepmatching.network.replay import GraphedDecode
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
    decoded = matching.decode_for_flow(first, second, settings, known)
    backward = matching.decode(second, first) if needs_backward(settings, network) else None
    matched = time.perf_counter() - start
    seconds, finish = stopwatch()
    strength = edge_tensor(first.on_device, edges)
    finish("edges")
    arguments = _arguments(first, second, settings, matching, strength, decoded, backward)
    result = FlowResult.of(_flow_of_decoded(*arguments, finish=finish), seconds)
    finish("refinement")
    return replace(result, seconds={"matching": matched, **seconds})


@failed_allocations()
def matches_to_flow(
    matches: Matches,
    image0: Tensor,
    image1: Tensor,
    settings: FlowSettings,
    edges: EdgesLike = None,
    backward: Matches | None = None,
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
        backward: matches from the second image to the first, used for the forward-backward check; None skips it. No
            effect on matches of a search.
        occluded: (H_0, W_0), probability that a reference point is not visible in the second image; None if unknown.
    """
    size = check_pair(image0, image1)
    _check_sizes(matches, size)
    if len(matches) == 0:
        raise DeepMatchingError(NOTHING)
    count_outside(matches, size)
    settings = adapt_to_model(settings, matches.confidence is not None, has_dense=False)

    def compute(finish: Finish = ignore_stage) -> FlowTensors:
        forward, views = MatchTensors.of(matches, image0.device), views_of(matches, image0, image1)
        forward = forward if views is None else forward._replace(points1=views.ends)
        back = None if backward is None or views is not None else MatchTensors.of(backward, image0.device)
        strength = edge_tensor(image0, edges)
        finish("edges")
        return interpolate_and_refine(
            image0, image1, strength, settings, forward, back, None, occluded, views, finish=finish
        )

    if on_device(image0):
        with torch.cuda.device(image0.device):
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            begin.record()
            tensors = compute()
            end.record()
            return FlowResult.on_device(tensors, lambda: times({"dense flow": (begin, end)}))
    seconds, finish = stopwatch()
    result = FlowResult.of(compute(finish), seconds)
    finish("refinement")
    return result


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
    """Return the flow of a pair that is turned or zoomed.

    Args:
        image0, image1: as for :func:`matches_to_flow`, in main memory.
        models: the transformations that the pair needs, see ``deepmatching.search``.
        match: plain matching.
        device: of interpolation and refinement.
        start: when the search began, as ``time.perf_counter`` says.
    """
    found = match_through(image0, image1, models, match)
    seconds = {"matching": time.perf_counter() - start}
    result = matches_to_flow(found, image0.to(device), image1.to(device), settings, edges)
    return replace(result, seconds={**seconds, **result.seconds}, agreement=found.agreement)


@torch.no_grad()
def interpolate_and_refine(
    image0: Tensor,
    image1: Tensor,
    edges: Tensor,
    settings: FlowSettings,
    forward: MatchTensors,
    backward: MatchTensors | None = None,
    agreement: Tensor | None = None,
    occluded: Tensor | None = None,
    views: Views | None = None,
    finish: Finish = ignore_stage,
) -> FlowTensors:
    """Return the flow of matches, see :func:`matches_to_flow`, in tensors of one device. Never waits for a GPU.

    Args:
        edges: (H, W), edge strength of the first image.
        forward, backward: matches from the first image to the second, and back.
        agreement: of the forward matches, if known.
        occluded: as for :func:`matches_to_flow`.
        views: those of the forward matches, which then end in them; None if they are not transformed.
        finish: called with the name of each stage but the last when it ends.
    """
    flow, source, numbers, counts, _ = sparse_to_dense(forward, edges, image0, backward, settings.interpolation)
    finish("interpolation")
    if views is None:
        flow = refine_finite(flow, image0, image1, settings.refinement)
    else:
        flow = refine_through(views, flow, numbers[source.label.long()], image0, settings.refinement)
    likely = probability(flow, source, image0, image1)
    occlusion = None if occluded is None else occlusion_of(occluded, flow)
    return FlowTensors(flow, likely, counts.sum(), unknown_like(likely) if agreement is None else agreement, occlusion)


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
        self._decode = GraphedDecode(network, 2).of_descriptors
        self._flow = Replayed(_flow_of_decoded)

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
        work = replace(Work.of(self._network, matching.geometry, "cuda"), fewer_levels=settings.fewer_levels)
        decode = partial(self._decode, needed=work.peak(1, matching.decoding.tiling))
        matching = replace(matching, may_shrink_radius=False, replayed=decode)  # to see what is missing would wait
        start, matched, end = (torch.cuda.Event(enable_timing=True) for _ in range(3))
        start.record()
        forward = matching.decode_for_flow(first, second, settings, known)
        backward = matching.decode(second, first) if needs_backward(settings, self._network) else None
        matched.record()
        strength = None if is_detected(edges) else edge_tensor(first.on_device, edges)
        arguments = _arguments(first, second, settings, matching, strength, forward, backward)
        needed = DENSE_BYTES if settings.dense and self._network.dense is not None else BYTES
        is_small = needed * first.on_device.shape[1] * first.on_device.shape[2] <= LARGEST_GRAPH
        tensors = (self._flow if is_small else _flow_of_decoded)(*arguments)
        end.record()
        stages = {"matching": (start, matched), "dense flow": (matched, end)}
        return FlowResult.on_device(tensors, lambda: times(stages))


def _arguments(
    first: Frame,
    second: Frame,
    settings: FlowSettings,
    matching: Matching,
    strength: Tensor | None,
    forward: Decoded,
    backward: Decoded | None = None,
) -> tuple[Any, ...]:
    """Return the arguments of :func:`_flow_of_decoded`: tensors one by one, as a CUDA graph needs them."""
    network, geometry = matching.network.dense if settings.dense else None, matching.geometry
    cells = () if network is None else (first.cells, second.cells)
    correction = None if network is None else (network, geometry)
    images = first.on_device, second.on_device
    return settings, geometry.alpha, correction, *images, strength, *cells, *forward, *(backward or ())


def _flow_of_decoded(
    settings: FlowSettings,
    spacing: int,
    correction: tuple[DenseNetwork, Geometry] | None,
    image0: Tensor,
    image1: Tensor,
    strength: Tensor | None,
    *tensors: Tensor | None,
    finish: Finish = ignore_stage,
) -> FlowTensors:
    """Return the flow of decoded matches, forward and perhaps backward; without ``strength``, detect the edges.

    Args:
        correction: the dense network, if it is used, and the geometry; the descriptors are then the first two tensors.
    """
    matches = tensors if correction is None else tensors[2:]
    forward, *others = (Decoded._make(matches[n : n + FIELDS]) for n in range(0, len(matches), FIELDS))
    edges = edge_strength(image0) if strength is None else strength
    verified = forward.verified[0]
    agreeing = count_agreeing(forward.points1[0] - forward.points0, verified, spacing)
    agreement = agreeing.double() / verified.numel() if min(verified.shape) >= 3 else unknown_like(edges).double()
    if correction is not None:
        cells0, cells1 = tensors[:2]
        assert cells0 is not None and cells1 is not None
        return dense_tensors(
            correction[0], forward, image0, image1, cells0, cells1, correction[1], settings, edges, agreement, finish
        )
    matched = MatchTensors.of_decoded(forward, 0, settings.interpolation.confidence)
    back = MatchTensors.of_decoded(others[0]) if others else None
    occluded = None if forward.occluded is None else forward.occluded[0]
    return interpolate_and_refine(image0, image1, edges, settings, matched, back, agreement, occluded, finish=finish)


def check_pair(image0: Tensor, image1: Tensor) -> tuple[int, int]:
    """Return the size (H, W) of both images; raises if they differ."""
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
    """Return the number of matches that start outside an image of this size (rows, columns); interpolation drops them.

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
