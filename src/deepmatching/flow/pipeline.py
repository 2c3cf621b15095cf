"""From matches to dense flow: the stages in order, and where the edges come from."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import replace
from typing import TypeAlias

import numpy as np
import torch
from torch import Tensor

from deepmatching.errors import DeepMatchingError, failed_allocations
from deepmatching.flow.confidence import confidence, probability
from deepmatching.flow.correction import DenseNetwork
from deepmatching.flow.correction.stage import dense_to_flow, occlusion_of
from deepmatching.flow.edges import detect_edges, edge_strength, gradient_edges
from deepmatching.flow.fields import Field, field_of, interpolate_field, on_device
from deepmatching.flow.interpolation import NOTHING, interpolate, starts_inside
from deepmatching.flow.matching import decode_near_first, trusts_confidence
from deepmatching.flow.refinement import refine, refine_finite
from deepmatching.flow.result import FlowResult, FlowTensors, stopwatch
from deepmatching.flow.settings import FlowSettings, preset, suited
from deepmatching.flow.warped_images import Views, refine_through, views_of
from deepmatching.geometry.targets import Decoded
from deepmatching.io.edges import check_edges, load_edges
from deepmatching.matches import Matches, matches_of
from deepmatching.network.inference import Frame
from deepmatching.network.network import Network
from deepmatching.search import Transformation, match_through

#: Where edges come from: the network that ships (None, "network"), "gradient", a file, an array (H, W), or a function
#: from the image (1 or 3, H, W) to such an array.
EdgesLike: TypeAlias = "str | os.PathLike[str] | np.ndarray | Tensor | Callable[[Tensor], np.ndarray] | None"


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
    settings = suited(settings, matches.confidence is not None, has_dense=False)
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


@failed_allocations()
def decoded_to_flow(
    decoded: Decoded,
    first: Frame,
    second: Frame,
    settings: FlowSettings,
    edges: EdgesLike = None,
    backward: Decoded | None = None,
    dense: DenseNetwork | None = None,
) -> FlowResult:
    """The flow from one frame to the next, from the matches of both directions; see :func:`matches_to_flow`.

    Args:
        decoded: matches from the first frame to the second; its pair 0.
        backward: those back, if :func:`needs_backward`.
        dense: the model's dense network, if it has one; see ``FlowSettings.dense``.
    """
    sizes = first.geometry.size0, first.geometry.size1
    if settings.dense and dense is not None:
        strength = None if is_detected(edges) else edge_tensor(first.on_device, edges)
        result = dense_to_flow(dense, decoded, first, second, settings, strength)
        return replace(result, agreement=matches_of(decoded, 0, *sizes).agreement)
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


def frames_to_flow(
    first: Frame,
    second: Frame,
    decode: Callable[[Frame, Frame], Decoded],
    network: Network,
    settings: FlowSettings,
    edges: EdgesLike,
    by_confidence: bool,
    start: float,
) -> FlowResult:
    """Match two frames and find the flow from one to the other; not for devices with kernels for flow.

    Args:
        decode: matches two frames in the geometry of the first.
        network: whose matches they are.
        settings, edges: see :func:`matches_to_flow`.
        by_confidence: whether a smaller radius will do if the matches' confidence says so.
        start: when the work on these frames began, as ``time.perf_counter`` says.
    """
    decoded = decode_near_first(decode, first, second, settings, network) if by_confidence else decode(first, second)
    backward = decode(second, first) if needs_backward(settings, network) else None
    seconds = {"matching": time.perf_counter() - start}
    result = decoded_to_flow(decoded, first, second, settings, edges, backward, network.dense)
    return replace(result, seconds={**seconds, **result.seconds})


def needs_backward(settings: FlowSettings, network: Network) -> bool:
    """Whether the flow from this network's matches needs the matches back to the first image, too."""
    if settings.dense and network.dense is not None:
        return False
    settings = suited(settings, network.confidence is not None, network.dense is not None)
    return settings.interpolation.backward > 0 and not trusts_confidence(settings, network)


def most_levels(settings: str | FlowSettings, network: Network) -> int | None:
    """The largest number of levels with which this network matches for flow; None for no limit."""
    settings = preset(settings)
    return settings.levels if trusts_confidence(settings, network) else None


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


def edge_tensor(image: Tensor, edges: EdgesLike = None) -> Tensor:
    """As :func:`edges_of`, on the image's device."""
    if is_detected(edges):
        return edge_strength(image)
    return torch.from_numpy(edges_of(image, edges)).to(image.device)


def edges_of(image: Tensor, edges: EdgesLike = None) -> np.ndarray:
    """The edge map of an image (1 or 3, H, W): float32 (H, W) in [0, 1]."""
    size = image.shape[1], image.shape[2]
    if is_detected(edges):
        return detect_edges(image)
    if isinstance(edges, str) and edges == "gradient":
        return gradient_edges(image)
    if isinstance(edges, str | os.PathLike):
        return load_edges(edges, size)
    if isinstance(edges, torch.Tensor):
        edges = edges.detach().cpu().numpy()
    return check_edges(np.asarray(edges(image) if callable(edges) else edges), size)


def is_detected(edges: EdgesLike) -> bool:
    """Whether these are the edges that the network detects."""
    return edges is None or (isinstance(edges, str) and edges == "network")


def is_edge_map(edges: EdgesLike) -> bool:
    """Whether these are the edges of one image, and not a detector for any."""
    return not (edges is None or callable(edges) or (isinstance(edges, str) and edges in ("network", "gradient")))


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
