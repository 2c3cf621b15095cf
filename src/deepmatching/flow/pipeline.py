"""From two frames, or from matches, to a flow and its confidence: the stages in order, on any device."""

import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from deepmatching.errors import DeepMatchingError, failed_allocations
from deepmatching.flow.confidence import probability
from deepmatching.flow.edges import EdgesLike, edge_strength, edge_tensor, is_detected
from deepmatching.flow.filters import MatchTensors
from deepmatching.flow.interpolation import most_precise, sparse_to_dense, to_device
from deepmatching.flow.matching import Frame, Matching, needs_backward
from deepmatching.flow.occlusion import occlusion_of
from deepmatching.flow.refinement import refine_finite
from deepmatching.flow.result import NOTHING, Finish, FlowResult, FlowTensors, Stopwatch, ignore_stage
from deepmatching.flow.settings import FlowSettings, adapt_to_model, preset
from deepmatching.flow.warped_images import Views, refine_through, views_of
from deepmatching.geometry.agreement import count_agreeing
from deepmatching.geometry.targets import Decoded
from deepmatching.io.images import check_matched_size, colours_of, size_of
from deepmatching.kernels.cuda_graphs import LARGEST_GRAPH, Replayed
from deepmatching.matches import Matches, selected_mask
from deepmatching.network.memory import Work
from deepmatching.network.network import Network
from deepmatching.network.replay import GraphedDecode
from deepmatching.search import Transformation, match_through
from deepmatching.settings import MIN_CONFIDENCE

BYTES = 300  #: memory that the way from matches to flow takes on a GPU, roughly, in bytes for each pixel
FIELDS = len(Decoded._fields)  #: number of tensors of the decoded matches of one direction, some of which may be None


class FlowGraphs:
    """CUDA graphs of flow: one that decodes matches, used for both directions, and one from matches to flow.

    From the second pair of equal sizes and settings on, the several hundred small kernels of a pair are replayed, and
    nothing waits for the GPU. The network is on a CUDA device, in ``eval`` mode.
    """

    def __init__(self, network: Network) -> None:
        self._network = network
        self._decode, self._flow = GraphedDecode(network, 2).of_descriptors, Replayed(_flow_of_decoded)

    def replayed(self, matching: Matching, settings: FlowSettings) -> Matching:
        """Return a matching that replays its decodings. It keeps its radius: to see what is missing would wait."""
        work = replace(Work.of(self._network, matching.geometry, "cuda"), fewer_levels=settings.fewer_levels)
        decode = partial(self._decode, needed=work.peak(1, matching.decoding.tiling))
        return replace(matching, may_shrink_radius=False, replayed=decode)

    def flow(self, pixels: int, *arguments: Any) -> FlowTensors:
        """Return :func:`_flow_of_decoded` of images of this many pixels."""
        return (self._flow if BYTES * pixels <= LARGEST_GRAPH else _flow_of_decoded)(*arguments)


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
        edges: of the first frame.
        known: matches from the first frame to the second that ``matching`` has found; None to find them.
        graphs: recordings of earlier pairs, for a GPU.
        start: when the work on these frames began, by ``time.perf_counter``; None for now.
    """
    network = matching.network
    settings = adapt_to_model(preset(settings), network.confidence is not None)
    with Stopwatch(first.on_device, start) as watch:
        replayed = (graphs or FlowGraphs(network)) if watch.is_lazy else None
        matching = matching if replayed is None else replayed.replayed(matching, settings)
        decoded = matching.decode_for_flow(first, second, settings, known)
        backward = matching.backward.decode(second, first) if needs_backward(settings, network) else ()
        watch.finish("matching")
        is_left = replayed is not None and is_detected(edges)  # to the graph
        strength = None if is_left else edge_tensor(first.on_device, edges)
        images = first.on_device, second.on_device
        # Tensors one by one, as a CUDA graph needs them.
        arguments = settings, matching.geometry.alpha, *images, strength, *decoded, *backward
        if replayed is not None:
            return watch.result(replayed.flow(max(image[0].numel() for image in images), *arguments))
        watch.finish("edges")
        return watch.result(_flow_of_decoded(*arguments, finish=watch.finish))


@failed_allocations()
def matches_to_flow(
    matches: Matches,
    image0: Tensor,
    image1: Tensor,
    settings: FlowSettings,
    edges: EdgesLike = None,
) -> FlowResult:
    """Interpolate the matches of any matcher along the edges of the first image, and refine the flow.

    All is computed on the images' device, or on the CPU if that lacks float64. If it is a GPU with kernels, the
    result stays there until it is read.
    Matches of a search have transformations, which the flow follows; see ``deepmatching.flow.warped_images``.

    Args:
        matches: from the first image to the second.
        image0, image1: (1 or 3, H, W), (1 or 3, H', W') in [0, 1], on one device.
        edges: of the first image.
    """
    check_matched_size(image0, matches.size0)
    check_matched_size(image1, matches.size1)
    if len(matches) == 0:
        raise DeepMatchingError(NOTHING)
    count_outside(matches, size_of(image0))
    if most_precise(image0.device) != torch.float64:  # which the views of a search need
        image0, image1 = to_device((image0, image1), torch.device("cpu"))
    settings = adapt_to_model(settings, matches.confidence is not None)
    with Stopwatch(image0) as watch:
        finish = ignore_stage if watch.is_lazy else watch.finish
        forward, views = MatchTensors.of(matches, image0.device), views_of(matches, image0, image1)
        forward = forward if views is None else forward._replace(points1=views.ends)
        images = image0, image1, edge_tensor(image0, edges)
        finish("edges")
        found = _interpolate_and_refine(*images, settings, forward, views=views, finish=finish)
        result = watch.result(found)
    if matches.transformation is None:
        return result
    return replace(result, agreement=matches.agreement, expected_fraction=matches.expected_fraction, is_searched=True)


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
    """Return the flow of a pair of images in main memory that needs these transformations of a search.

    ``match`` is plain matching. The stages after it run on ``device``. The search began at ``start``, by
    ``time.perf_counter``.
    """
    found = match_through(image0, image1, models, match)
    seconds = {"matching": time.perf_counter() - start}
    image0, image1 = (colours_of(image).to(device) for image in (image0, image1))
    result = matches_to_flow(found, image0, image1, settings, edges)
    return replace(result, seconds={**seconds, **result.seconds})


@torch.no_grad()
def _interpolate_and_refine(
    image0: Tensor,
    image1: Tensor,
    edges: Tensor,
    settings: FlowSettings,
    forward: MatchTensors,
    backward: MatchTensors | None = None,
    occluded: Tensor | None = None,
    unmatched: Tensor | None = None,
    views: Views | None = None,
    finish: Finish = ignore_stage,
) -> FlowTensors:
    """Return the flow of matches, see :func:`matches_to_flow`, in tensors of one device. Never waits for a GPU.

    Forward matches end in their ``views`` if they are transformed. Each stage but the last calls ``finish`` at its end.
    """
    interpolation = settings.interpolation
    if views is not None:  # what is left of a transformed motion is not that of a camera
        interpolation = replace(interpolation, camera=0.0)
    found = sparse_to_dense(forward, edges, image0, backward, interpolation, size1=image1.shape[1:])
    flow, source, numbers, counts, _ = found
    finish("interpolation")
    if views is None:
        flow = refine_finite(flow, image0, image1, settings.refinement)
    else:
        flow = refine_through(views, flow, numbers[source.label.long()], image0, settings.refinement)
    likely = probability(flow, source, image0, image1, unmatched)
    occlusion = None if occluded is None else occlusion_of(occluded, flow, image1.shape[1:])
    unknown = likely.new_full((), torch.nan)
    return FlowTensors(flow, likely, counts.sum(), unknown, unknown, occlusion)


def _flow_of_decoded(
    settings: FlowSettings,
    spacing: int,
    image0: Tensor,
    image1: Tensor,
    strength: Tensor | None,
    *matches: Tensor | None,
    finish: Finish = ignore_stage,
) -> FlowTensors:
    """Return the flow of decoded matches, forward and perhaps backward; without ``strength``, detect the edges."""
    forward, *others = (Decoded._make(matches[n : n + FIELDS]) for n in range(0, len(matches), FIELDS))
    edges = edge_strength(image0) if strength is None else strength
    verified, occluded = forward.verified[0], None if forward.occluded is None else forward.occluded[0]
    agreeing = count_agreeing(forward.points1[0] - forward.points0, verified, spacing)
    kind = most_precise(agreeing.device)
    agreement = agreeing.to(kind) / (verified.numel() if min(verified.shape) >= 3 else torch.nan)
    expected = torch.full_like(agreement, torch.nan)
    if forward.confidence is not None:
        kept = selected_mask(forward, 0, MIN_CONFIDENCE)
        expected = torch.where(kept, forward.confidence[0], 0.0).to(kind).mean()
    matched = MatchTensors.of_decoded(forward, 0, settings.interpolation.confidence)
    back = MatchTensors.of_decoded(others[0]) if others else None
    images, maps = (image0, image1, edges), (occluded, forward.unmatched(0))
    found = _interpolate_and_refine(*images, settings, matched, back, *maps, finish=finish)
    return found._replace(agreement=agreement, expected=expected)


def count_outside(matches: Matches, size: tuple[int, int]) -> int:
    """Count the matches outside an image of this size (rows, columns), which interpolation drops; raise if most are."""
    if matches.size0 is not None and tuple(matches.size0) != tuple(size):
        return 0  # matches_to_flow refuses these and says why
    points = matches.numpy()[0]
    outside = len(points) - int(((points > -1) & (points < (size[1], size[0]))).all(axis=1).sum())
    if 2 * outside > len(matches):
        where = f"outside the image of {size[1]}x{size[0]} pixels"
        raise DeepMatchingError(f"{outside} of {len(matches)} matches start {where}: give those of this pair.")
    return outside
