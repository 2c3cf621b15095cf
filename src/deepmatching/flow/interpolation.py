"""Edge-preserving interpolation of matches to a dense flow, as in EpicFlow (Revaud et al., CVPR 2015).

On a GPU, filters do not take matches out of their tensors: a mask says which of them count. So all shapes are fixed,
and a CUDA graph can record all stages. A CPU saves work by taking them out.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from deepmatching.errors import DeepMatchingError, check_type
from deepmatching.flow.camera import leave_with_camera
from deepmatching.flow.filters import (
    MatchTensors,
    in_groups,
    inconsistency,
    least_confidence,
    round_trip_errors,
    usable,
)
from deepmatching.flow.operators.geodesic import FLOOR, cell_graph, distance_transform, nearest_seeds
from deepmatching.flow.operators.local_models import affine_models, falloff_weights, paint, weighted_means
from deepmatching.flow.operators.saliency import saliency
from deepmatching.flow.settings import InterpolationSettings
from deepmatching.geometry.seeds import Graph, Nearest
from deepmatching.io.images import load_image
from deepmatching.kernels.registry import has_kernels

_LEAST_WEIGHT = 1e-3  #: the least weight of a match that is weighted by its confidence
_TINY = 1e-100  #: the least relative weight of a match: its square does not underflow
_STRONGEST_EDGE = 100  #: an edge map in 0 … 255 exceeds it


class MatchSource(NamedTuple):
    """What a flow was interpolated from, on its device. The seeds are the matches, or those that passed the filters."""

    label: Tensor  #: (H, W), the seed that each pixel belongs to
    points: Tensor  #: (S, 2), where the seeds start
    spread: Tensor  #: (S,), how much their neighbours disagree with their models, in pixels
    support: Tensor  #: (S,), number of these neighbours
    edges: Tensor  #: (H, W) float32, the edge strength


class SparseToDense(NamedTuple):
    """An interpolated flow and what it was made from, as tensors."""

    flow: Tensor  #: (H, W, 2) float32
    source: MatchSource  #: what its confidence depends on
    numbers: Tensor  #: (S,) int64, the match that each seed is
    counts: Tensor  #: (S,) bool, the seeds that passed the filters
    graph: Graph  #: the adjacent cells


@dataclass(frozen=True, eq=False)
class Interpolation:
    """An interpolated flow and what it was made from."""

    flow: np.ndarray  #: (H, W, 2) float32, x and y in pixels
    kept: np.ndarray  #: (S,) int64, indices of the matches that passed the filters, the seeds
    points: np.ndarray  #: (S, 2) float64, where they start
    support: np.ndarray  #: (S,), number of neighbours of each seed, itself included
    spread: np.ndarray  #: (S,) float64, how much these neighbours disagree with the seed's model, in pixels
    edges: np.ndarray  #: (H, W) float32, the edge strength
    source: MatchSource  #: the same as tensors, and which pixels belong to which seed
    graph: Graph  #: the adjacent cells of pixels
    settings: InterpolationSettings  #: the settings used

    @property
    def neighbours(self) -> Nearest:
        """Return the nearest seeds of each seed: computed anew, because they take more memory than the flow."""
        return nearest_seeds(self.graph, self.settings.neighbours)

    def differentiable(self, keypoints0: Tensor, keypoints1: Tensor, weights: Tensor | None = None) -> Tensor:
        """Return the same flow (H, W, 2) as a function of all N matches, for training; nothing follows the camera.

        The seeds, their cells and their neighbours are fixed. Gradients reach the seeds' positions and weights.
        """
        device = keypoints0.device
        kept = torch.from_numpy(self.kept).to(device)
        points, all_of = keypoints0[kept].double(), torch.ones_like(kept, dtype=torch.bool)
        weights = None if weights is None else weights[kept].double()
        seeds = _Seeds(kept, all_of, kept, points, keypoints1[kept].double() - points, weights)
        neighbours = Nearest(*(tensor.to(device) for tensor in self.neighbours))
        return _render(self.source.label.to(device), neighbours, seeds, self.settings)[0]


def interpolate(
    keypoints0: Any,
    keypoints1: Any,
    edges: Any,
    image0: Tensor | None = None,
    *,
    scores: Any = None,
    weights: Any = None,
    confidence: Any = None,
    backward: tuple[Any, Any] | None = None,
    settings: InterpolationSettings = InterpolationSettings(),  # noqa: B008 - frozen
) -> Interpolation:
    """Interpolate matches without crossing edges.

    1. Of the matches that are finite, start in the image and move by less than a million pixels, one per pixel stays.
    2. Filters drop matches of low confidence, or else those that fail the round trip, matches in flat places, matches
       in small groups, and matches that are inconsistent with their neighbours. A filter that would drop all matches is
       skipped.
    3. Every pixel is assigned to its geodesically nearest match, and every match to its nearest neighbours.
    4. A motion model is fitted to the neighbours of each match and moves the pixels assigned to that match.
    5. What leaves the frame follows the camera where the matches do, see ``deepmatching.flow.camera``.

    Args:
        keypoints0, keypoints1: (N, 2), x and y in pixels; pixel centres are integers.
        edges: (H, W), edge strength from 0 to 1.
        image0: the first image, (1 or 3, H, W) in [0, 1], for the filter of flat places; None skips it.
        scores: (N,), or None for the weights. Of several matches in a pixel, the highest is kept. A match whose score
            is not finite is dropped.
        weights: (N,), or None for equal ones. A match whose weight is not positive and finite is dropped.
        confidence: (N,), probability that each match is right; None if unknown. Without ``weights``, it is the weight.
        backward: keypoints (M, 2), (M, 2) of matches from the second image to the first.
    """
    strength = _as_edges(edges)
    start, end = _as_points(keypoints0, keypoints1)
    given: list[Tensor | None] = []
    for values, name in ((scores, "scores"), (weights, "weights"), (confidence, "confidences")):
        given.append(None if values is None else _as_array(values).flatten())
        if (array := given[-1]) is not None and len(array) != len(start):
            raise DeepMatchingError(f"There are {len(start)} matches and {len(array)} {name}; each match needs one.")
    score, weight, certainty = given
    if score is None:
        score = torch.zeros(len(start)) if weight is None else weight.nan_to_num()
    forward, back = MatchTensors(start, end, score, torch.ones(len(start), dtype=torch.bool), certainty), None
    if backward is not None:
        there, home = _as_points(*(backward if isinstance(backward, tuple | list) else ()))
        back = MatchTensors(there, home, there[:, 0], torch.ones(len(there), dtype=torch.bool))
    check_type("settings", settings, InterpolationSettings)
    image = None if image0 is None else load_image(image0, "image0").detach().cpu()
    if image is not None and image.shape[1:] != strength.shape:
        sizes = f"is {image.shape[2]}x{image.shape[1]} pixels, but its edge map {strength.shape[1]}x{strength.shape[0]}"
        raise DeepMatchingError(f"The first image {sizes}; make the edge map from this image.")
    found = sparse_to_dense(forward, strength, image, back, settings, weight)
    source = found.source
    tensors = found.flow, found.numbers, source.points, source.support, source.spread, source.edges
    fields: list[Any] = [*(tensor.numpy() for tensor in tensors), source, found.graph, settings]
    return Interpolation(*fields)


class _Seeds(NamedTuple):
    """The matches on their way through the filters."""

    numbers: Tensor  #: (S,) int64, their places among all matches
    counts: Tensor  #: (S,) bool
    pixels: Tensor  #: (S, 2) int64, column and row
    points: Tensor  #: (S, 2) float64
    displacements: Tensor  #: (S, 2) float64; 0 for those that do not count
    weights: Tensor | None  #: (S,) float64

    def that_also(self, holds: Tensor) -> "_Seeds":
        """Let those count for which this holds, too; all as before if there are none."""
        both = self.counts & holds
        return self._replace(counts=torch.where(both.any(), both, self.counts))

    def that_count(self) -> "_Seeds":
        """Take the others out."""
        return _Seeds(*(None if tensor is None else tensor[self.counts] for tensor in self))  # type: ignore[arg-type]


@torch.no_grad()
def sparse_to_dense(
    matches: MatchTensors,
    edges: Tensor,
    image0: Tensor | None = None,
    backward: MatchTensors | None = None,
    settings: InterpolationSettings = InterpolationSettings(),  # noqa: B008 - frozen
    weights: Tensor | None = None,
    fixed_shapes: bool | None = None,
    size1: Sequence[int] | None = None,
) -> SparseToDense:
    """Interpolate matches without crossing edges, as :func:`interpolate` does, in tensors of one device.

    The second image has the rows and columns ``size1``; None if they are those of the first. With ``fixed_shapes``
    (None: on GPUs), matches that do not count stay in the tensors. If none counts, the flow has no meaning then; to
    raise would wait for the device.
    """
    if edges.device.type != "cpu" and not has_kernels(edges.device.type):  # a CPU is faster than a GPU without kernels
        tensors = (matches, edges, image0, backward, settings, weights, None, size1)
        there = sparse_to_dense(*(to_device(each, torch.device("cpu")) for each in tensors))
        return to_device(there, edges.device)  # type: ignore[no-any-return]
    is_fixed = edges.is_cuda if fixed_shapes is None else fixed_shapes
    size = edges.shape[0], edges.shape[1]
    # What a path pays for each pixel. NumPy's power is the CPU's: PyTorch's differs in the last bit.
    contrast = settings.contrast
    cost = (edges**contrast if edges.is_cuda else torch.from_numpy(edges.numpy() ** np.float32(contrast))) + FLOOR
    start = torch.nan_to_num(matches.points0.double())
    # Of two pixels that are equally near, the right or lower one.
    pixels = torch.stack([(start[:, n] + 0.5).floor().clamp(0, size[1 - n] - 1).long() for n in (0, 1)], dim=1)
    counts = usable(matches, pixels, weights, size, is_fixed)
    confidence = matches.confidence.double() if matches.confidence is not None and settings.confidence > 0 else None
    if confidence is not None:
        counts = counts & (confidence >= least_confidence(confidence, counts, settings))
        weights = confidence.clamp(min=_LEAST_WEIGHT) if weights is None else weights
    displacements = torch.where(counts[:, None], matches.points1.double() - start, 0)
    numbers = torch.arange(len(start), device=start.device)
    seeds = _Seeds(numbers, counts, pixels, start, displacements, None if weights is None else weights.double())
    if settings.saliency > 0 and image0 is not None:
        seeds = seeds.that_also(saliency(image0)[pixels[:, 1], pixels[:, 0]] >= settings.saliency)
    if backward is not None and settings.backward > 0 and confidence is None:
        seeds = seeds.that_also(round_trip_errors(start, displacements, backward) < settings.backward)
    seeds = seeds if is_fixed else seeds.that_count()
    label, graph = _cells(cost, seeds)
    if settings.group > 1:
        seeds = seeds.that_also(in_groups(graph, seeds.displacements, settings.group_tolerance, settings.group))
    if settings.consistency > 0:
        neighbours = nearest_seeds(graph, settings.filter_neighbours + 1)
        error = inconsistency(neighbours, seeds.displacements, settings.falloff, seeds.counts)
        seeds = seeds.that_also(error < settings.consistency)
    if (settings.group > 1 or settings.consistency > 0) and (is_fixed or not seeds.counts.all()):
        seeds = seeds if is_fixed else seeds.that_count()
        label, graph = _cells(cost, seeds)
    neighbours = nearest_seeds(graph, settings.neighbours)
    flow, spread = _render(label, neighbours, seeds, settings)
    if settings.camera > 0:
        motion = seeds.points, seeds.displacements, _weights(seeds)
        flow = leave_with_camera(flow, label, neighbours, *motion, seeds.counts, size1 or size, settings)
    source = MatchSource(label, seeds.points, spread, (neighbours.seeds >= 0).sum(dim=1), edges)
    return SparseToDense(flow, source, seeds.numbers, seeds.counts, graph)


def most_precise(device: torch.device) -> torch.dtype:
    """Return the most precise floating-point type of a device: Apple's GPUs lack float64."""
    return torch.float32 if device.type == "mps" else torch.float64


def to_device(value: Any, device: torch.device) -> Any:
    """Return tensors, also those in tuples, on a device, as precisely as it can; anything else as it is."""
    if isinstance(value, Tensor):
        return (value.float() if value.dtype == torch.float64 != most_precise(device) else value).to(device)
    if isinstance(value, tuple):
        moved = [to_device(each, device) for each in value]
        return value._make(moved) if hasattr(value, "_make") else tuple(moved)
    return value


def _cells(cost: Tensor, seeds: _Seeds) -> tuple[Tensor, Graph]:
    """Return the cells of the seeds that count, and their graph."""
    distance, label = distance_transform(cost, seeds.pixels, seeds.counts)
    return label, cell_graph(distance, label, len(seeds.pixels))


def _render(
    label: Tensor, neighbours: Nearest, seeds: _Seeds, settings: InterpolationSettings
) -> tuple[Tensor, Tensor]:
    """Return the flow (H, W, 2), each pixel moved by the model of its seed, and the spread (S,)."""
    around = neighbours.seeds, falloff_weights(*neighbours, settings.falloff, _weights(seeds))
    models, spread = affine_models(*around, seeds.points, seeds.displacements, settings.ridge, settings.wide)
    if settings.model == "mean":
        means = weighted_means(*around, seeds.displacements)
        models = torch.cat([torch.zeros_like(models[:, :2]), means[:, None]], dim=1)
    return paint(label, seeds.points, models).float(), spread


def _weights(seeds: _Seeds) -> Tensor:
    """Return the weights (S,), 1 in the mean of those that count: only ratios matter, and the ridge is tuned for 1."""
    if seeds.weights is None:
        return torch.ones_like(seeds.points[:, 0])
    mean = torch.where(seeds.counts, seeds.weights, 0).sum() / seeds.counts.sum()
    return torch.where(seeds.counts, (seeds.weights / mean).clamp(min=_TINY), 1)


def _as_array(values: Any) -> Tensor:
    try:
        values = values.detach().cpu() if isinstance(values, Tensor) else values
        return torch.from_numpy(np.array(values, dtype=np.float64))
    except (TypeError, ValueError, RuntimeError, OverflowError) as error:
        raise DeepMatchingError("Keypoints, scores, weights and edges must be arrays of numbers.") from error


def _as_points(*keypoints: Any) -> list[Tensor]:
    """Return where matches start and end, each (N, 2)."""
    if len(keypoints) != 2:
        raise DeepMatchingError("Matches need two arrays of keypoints.")
    points = [array if array.numel() else array.reshape(0, 2) for array in map(_as_array, keypoints)]
    for array in points:
        if array.ndim != 2 or array.shape[1] != 2:
            raise DeepMatchingError(f"Keypoints must be an array (N,2) of (x,y), not of shape {tuple(array.shape)}.")
    if len(points[0]) != len(points[1]):
        counts = f"{len(points[0])} keypoints in one image and {len(points[1])} in the other"
        raise DeepMatchingError(f"There are {counts}, but they must correspond one to one.")
    return points


def _as_edges(edges: Any) -> Tensor:
    strength = np.ascontiguousarray(_as_array(edges), dtype=np.float32)
    if strength.ndim != 2 or strength.size == 0:
        raise DeepMatchingError(f"An edge map must be (H,W), but this one has shape {strength.shape}.")
    if not (strength.min() >= 0 and strength.max() <= _STRONGEST_EDGE):
        raise DeepMatchingError("An edge map must not contain NaN, negative or large values; scale it to 0 … 1.")
    return torch.from_numpy(strength)
