"""From matches to dense flow: the stages in order, and where the edges come from."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import TypeAlias

import numpy as np
import torch
from torch import Tensor

from deepmatching.edges import detect_edges, gradient_edges
from deepmatching.errors import DeepMatchingError, failed_allocations
from deepmatching.flow.confidence import confidence
from deepmatching.flow.interpolation import interpolate, starts_inside
from deepmatching.flow.refinement import refine
from deepmatching.flow.result import FlowResult
from deepmatching.flow.settings import FlowSettings
from deepmatching.io.edges import check_edges, load_edges
from deepmatching.matches import Matches

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
) -> FlowResult:
    """Interpolate the matches of any matcher along the edges of the first image, and refine the flow.

    Edges and refinement are computed on the images' device, interpolation on the CPU.

    Args:
        matches: from the first image to the second.
        image0, image1: (1 or 3, H, W) in [0, 1], of one size, on one device.
        settings: of interpolation and refinement.
        edges: edges of the first image.
        backward: matches from the second image to the first, which tell wrong matches; None to do without.
        host_image0: the first image in main memory, if the caller has it there.
    """
    size = check_pair(image0, image1)
    _check_sizes(matches, size)
    keypoints0, keypoints1, scores = matches.numpy()
    back = None if backward is None else backward.numpy()[:2]
    seconds: dict[str, float] = {}
    start = time.perf_counter()

    def finish(stage: str) -> None:
        nonlocal start
        now = time.perf_counter()
        seconds[stage], start = now - start, now

    strength = edges_of(image0, edges)
    finish("edges")
    found = interpolate(
        keypoints0,
        keypoints1,
        strength,
        image0.cpu() if host_image0 is None else host_image0,
        scores=scores,
        backward=back,
        settings=settings.interpolation,
    )
    finish("interpolation")
    del strength
    flow = refine(found.flow, image0, image1, settings.refinement)
    certainty = confidence(flow, found, image0, image1)
    finish("refinement")
    return FlowResult(flow.cpu().numpy(), certainty, len(found.kept), seconds)


def edges_of(image: Tensor, edges: EdgesLike = None) -> np.ndarray:
    """The edge map of an image (1 or 3, H, W): float32 (H, W) in [0, 1]."""
    size = image.shape[1], image.shape[2]
    if edges is None or (isinstance(edges, str) and edges == "network"):
        return detect_edges(image)
    if isinstance(edges, str) and edges == "gradient":
        return gradient_edges(image)
    if isinstance(edges, str | os.PathLike):
        return load_edges(edges, size)
    if isinstance(edges, torch.Tensor):
        edges = edges.detach().cpu().numpy()
    return check_edges(np.asarray(edges(image) if callable(edges) else edges), size)


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
