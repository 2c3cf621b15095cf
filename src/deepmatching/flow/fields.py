"""Interpolation on a device: that of ``deepmatching.flow.interpolation`` in tensors of fixed shapes.

Matches are never taken out of their tensors. A mask says which of them count, and the filters change the mask. So the
device works through all stages without the host, and a CUDA graph can record them.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from deepmatching.flow.confidence import Origin
from deepmatching.flow.filters import LEAST_WEIGHT
from deepmatching.flow.operators.geodesic import FLOOR, cell_graph, distance_transform, nearest_seeds
from deepmatching.flow.operators.local_models import affine_models, falloff_weights, paint, weighted_means
from deepmatching.flow.operators.saliency import saliency
from deepmatching.flow.settings import InterpolationSettings
from deepmatching.geometry.seeds import Graph
from deepmatching.geometry.targets import Decoded
from deepmatching.kernels.registry import has_kernels
from deepmatching.matches import Matches, chosen_of

_FAR = 1e6  # pixels; matches that move further do not count
_BIN = 8  # side in pixels of the bins that backward matches are looked up in


class Field(NamedTuple):
    """All matches of a pair, those that count and others."""

    points0: Tensor  #: (N, 2), x and y in pixels; pixel centres are integers
    points1: Tensor  #: (N, 2)
    scores: Tensor  #: (N,), higher is better
    counts: Tensor  #: (N,) bool
    confidence: Tensor | None = None  #: (N,), probability that each is right; None if unknown


class Interpolated(NamedTuple):
    """An interpolated flow and what it was made from."""

    flow: Tensor  #: (H, W, 2) float32
    origin: Origin  #: what its confidence depends on
    counts: Tensor  #: (N,) bool, the matches that passed the filters


def on_device(image: Tensor) -> bool:
    """Whether the flow of an image is computed on its GPU."""
    return image.is_cuda and has_kernels("cuda")


def field_of(matches: Matches, device: torch.device) -> Field:
    """Matches of any matcher, all of which count."""
    points0, points1, scores = (t.detach().to(device) for t in (matches.keypoints0, matches.keypoints1, matches.scores))
    confidence = None if matches.confidence is None else matches.confidence.detach().to(device)
    return Field(points0, points1, scores, torch.ones_like(scores, dtype=torch.bool), confidence)


def field_of_decoded(decoded: Decoded, b: int = 0, min_confidence: float = 0.0) -> Field:
    """The matches of pair b of a batch; those that :func:`~deepmatching.matches.chosen_of` chooses count.

    Pixel corners become pixel centres.
    """
    points0, points1 = (points.reshape(-1, 2) - 0.5 for points in (decoded.points0, decoded.points1[b]))
    confidence = None if decoded.confidence is None else decoded.confidence[b].flatten()
    counts = chosen_of(decoded, b, min_confidence).flatten()
    return Field(points0, points1, decoded.scores[b].flatten(), counts, confidence)


@torch.no_grad()
def interpolate_field(
    field: Field,
    edges: Tensor,
    image0: Tensor | None = None,
    backward: Field | None = None,
    settings: InterpolationSettings = InterpolationSettings(),  # noqa: B008 - frozen
    weights: Tensor | None = None,
) -> Interpolated:
    """Interpolate matches without crossing edges, as :func:`deepmatching.flow.interpolate` does.

    If no match counts, the flow has no meaning; nothing is raised, because that would have to wait for the device.

    Args:
        field: the matches.
        edges: (H, W), edge strength from 0 to 1.
        image0: the first image, (1 or 3, H, W) in [0, 1], for the filter of flat places; None skips it.
        backward: matches from the second image to the first; None skips their filter.
        settings: the settings of the interpolation.
        weights: (N,), weights of the matches; None for equal weights.
    """
    size = edges.shape[0], edges.shape[1]
    cost = edges**settings.contrast + FLOOR
    start = torch.nan_to_num(field.points0.double())
    pixels = torch.stack([_nearest(start[:, 0], size[1]), _nearest(start[:, 1], size[0])], dim=1)
    counts = _usable(field, pixels, weights, size)
    judged = field.confidence if settings.confidence > 0 else None
    if judged is not None:
        counts = counts & (judged >= _least_confidence(judged, counts, settings))
        weights = judged.clamp(min=LEAST_WEIGHT) if weights is None else weights
    displacements = torch.where(counts[:, None], field.points1.double() - start, 0)
    if settings.saliency > 0 and image0 is not None:
        here = saliency(image0)[pixels[:, 1], pixels[:, 0]]
        counts = _unless_empty(counts, here >= settings.saliency)
    if backward is not None and settings.backward > 0 and judged is None:
        counts = _unless_empty(
            counts, round_trip_errors(start + displacements, displacements, backward, size) < settings.backward
        )
    counts = _consistent(counts, cost, pixels, displacements, settings)
    label, graph = _cells(cost, pixels, counts)
    index, distances = nearest_seeds(graph, settings.neighbours)
    confidence = None
    if weights is not None:  # only ratios matter, and the ridge is tuned for weights around 1
        heavy = torch.where(counts, weights.double(), 0)
        confidence = (weights.double() * counts.sum() / heavy.sum()).clamp(min=1e-100)
        confidence = torch.where(counts, confidence, 1)
    fall = falloff_weights(index, distances, settings.falloff, confidence)
    models, spread = affine_models(index, fall, start, displacements, settings.ridge, settings.wide)
    if settings.model == "mean":
        means = weighted_means(index, fall, displacements)
        models = torch.cat([torch.zeros_like(models[:, :2]), means[:, None]], dim=1)
    origin = Origin(label, start, spread, (index >= 0).sum(dim=1), edges)
    return Interpolated(paint(label, start, models).float(), origin, counts)


def _least_confidence(judged: Tensor, counts: Tensor, settings: InterpolationSettings) -> Tensor:
    """See :func:`deepmatching.flow.filters.least_confidence`."""
    best = torch.where(counts, judged, -1).sort(descending=True).values
    last = (settings.least_kept * counts.sum()).ceil().long().clamp(min=1) - 1
    return best.gather(0, last.view(1)).clamp(max=settings.confidence)  # an index would wait for the device


def agreement_of(decoded: Decoded, spacing: int, b: int = 0) -> Tensor:
    """``Matches.agreement`` of the verified matches of pair b of a batch, whose grid has this spacing in pixels."""
    verified = decoded.verified[b]
    displacements = decoded.points1[b] - decoded.points0
    if min(verified.shape) < 3:
        return displacements.new_full((), torch.nan)
    field = torch.where(verified[..., None], displacements, torch.nan)
    rows, columns = verified.shape
    padded = torch.nn.functional.pad(field, (0, 0, 1, 1, 1, 1), value=torch.nan)
    steps = [(i, j) for i in range(3) for j in range(3) if (i, j) != (1, 1)]
    around = torch.stack([padded[i : i + rows, j : j + columns] for i, j in steps]).sort(dim=0).values  # NaN is last
    number = torch.isfinite(around[..., 0]).sum(dim=0)
    middle = [
        around.gather(0, n.clamp(min=0)[None, ..., None].expand(1, -1, -1, 2))[0]
        for n in ((number - 1) // 2, number // 2)
    ]
    distance = ((middle[0] + middle[1]) / 2 - displacements).square().sum(dim=-1).sqrt()
    return (verified & (number >= 3) & (distance <= spacing / 2)).float().mean()


def _nearest(positions: Tensor, side: int) -> Tensor:
    """The nearest of the pixels 0 … side − 1; of two equally near, the right or lower one."""
    return (positions + 0.5).floor().clamp(0, side - 1).long()


def _usable(field: Field, pixels: Tensor, weights: Tensor | None, size: tuple[int, int]) -> Tensor:
    """The matches that are finite and start in the image, the best of each pixel."""
    x, y = field.points0.unbind(dim=1)
    usable = field.counts & (x > -1) & (x < size[1]) & (y > -1) & (y < size[0]) & torch.isfinite(field.scores)
    usable = usable & (field.points1.abs() < _FAR).all(dim=1)
    if weights is not None:
        usable = usable & torch.isfinite(weights) & (weights > 0)
    place = pixels[:, 1] * size[1] + pixels[:, 0]
    score = torch.where(usable, field.scores, -torch.inf)
    best = score.new_full((size[0] * size[1],), -torch.inf).scatter_reduce_(0, place, score, "amax")
    usable = usable & (score == best[place])
    number = torch.arange(len(score), device=score.device)
    first = torch.full_like(best, len(score), dtype=torch.int64)
    first.scatter_reduce_(0, place, torch.where(usable, number, len(score)), "amin")
    return usable & (first[place] == number)


def _unless_empty(counts: Tensor, stays: Tensor) -> Tensor:
    """The matches that count and stay, or if there are none, all that count."""
    both = counts & stays
    return torch.where(both.any(), both, counts)


def round_trip_errors(target: Tensor, displacements: Tensor, backward: Field, size: tuple[int, int]) -> Tensor:
    """The round-trip error of each match, (N,) in pixels; see :func:`deepmatching.flow.filters.round_trip_errors`.

    Backward matches that start more than 8 pixels outside the image do not count.
    """
    rows, columns = (side // _BIN + 5 for side in size)  # two more on each side

    def bins(points: Tensor) -> tuple[Tensor, Tensor]:
        x, y = (torch.nan_to_num(points) / _BIN).floor().unbind(dim=1)
        return y.clamp(-2, rows - 3).long() + 2, x.clamp(-2, columns - 3).long() + 2

    row, column = bins(backward.points0)
    inside = (row > 0) & (row < rows - 1) & (column > 0) & (column < columns - 1)
    back = backward.points1.double() - backward.points0.double()
    usable = backward.counts & inside & torch.isfinite(back).all(dim=1)
    number = torch.arange(len(back), device=back.device)
    last = torch.full((rows * columns,), -1, dtype=torch.int64, device=back.device)
    last.scatter_reduce_(0, row * columns + column, torch.where(usable, number, -1), "amax")
    row, column = bins(target)
    near = (row > 0) & (row < rows - 1) & (column > 0) & (column < columns - 1)
    step = torch.arange(-1, 2, device=back.device)
    row, column = (row[:, None, None] + step[:, None]), (column[:, None, None] + step)
    there = last[row.clamp(0, rows - 1) * columns + column.clamp(0, columns - 1)].flatten(1)  # (N, 9)
    there = torch.where(near[:, None], there, -1)
    error = (displacements[:, None] + back[there.clamp(min=0)]).square().sum(dim=2).sqrt()
    return torch.where(there >= 0, error, torch.inf).amin(dim=1)


def _cells(cost: Tensor, pixels: Tensor, counts: Tensor) -> tuple[Tensor, Graph]:
    """The cells of the seeds that count, and their graph."""
    distance, label = distance_transform(cost, pixels, counts)
    return label, cell_graph(distance, label, len(pixels))


def _consistent(
    counts: Tensor, cost: Tensor, pixels: Tensor, displacements: Tensor, settings: InterpolationSettings
) -> Tensor:
    """The group and consistency filters."""
    if settings.group <= 1 and settings.consistency <= 0:
        return counts
    _, graph = _cells(cost, pixels, counts)
    stays = counts
    if settings.group > 1:
        stays = _unless_empty(counts, in_groups(graph, displacements, settings.group_tolerance, settings.group))
    if settings.consistency > 0:
        index, distances = nearest_seeds(graph, settings.filter_neighbours + 1)
        voters = torch.where(stays, 1.0, 1e-9).double()
        weights = falloff_weights(index, distances, settings.falloff, voters)
        means = weighted_means(index, weights, displacements)
        error = (means - displacements).square().sum(dim=1).sqrt()
        stays = _unless_empty(stays, error < settings.consistency)
    return stays


def in_groups(graph: Graph, displacements: Tensor, tolerance: float, size: int) -> Tensor:
    """Whether a match is in a group of at least this size, (S,) bool; see ``deepmatching.flow.filters.group_sizes``.

    A search along the links of the group finds so many matches if there are so many.
    """
    starts, others, lengths = graph
    entries = torch.arange(len(others), device=others.device)
    source = (torch.searchsorted(starts, entries, right=True) - 1).clamp(max=len(displacements) - 1)
    apart = (displacements[source] - displacements[others.long()]).square().sum(dim=1).sqrt()
    linked = starts, others, torch.where(apart < tolerance, lengths, torch.inf)
    return (nearest_seeds(linked, size).seeds >= 0).sum(dim=1) >= size
