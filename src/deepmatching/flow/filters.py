"""Filters of matches: which of them can be trusted. Shapes never depend on values, so a CUDA graph can record them."""

from typing import NamedTuple

import torch
from torch import Tensor

from deepmatching.errors import DeepMatchingError
from deepmatching.flow.operators.geodesic import nearest_seeds
from deepmatching.flow.operators.local_models import falloff_weights, weighted_means
from deepmatching.flow.result import NOTHING
from deepmatching.flow.settings import InterpolationSettings
from deepmatching.geometry.seeds import Graph, Nearest
from deepmatching.geometry.targets import Decoded
from deepmatching.matches import Matches, selected_mask

_FARTHEST = 1e6  #: matches that move further than this are dropped, in pixels
_BIN = 8  #: side of the bins that backward matches are looked up in, in pixels
_FARTHEST_BIN = 2**30  #: bins further away than this are clipped
_DROPPED_WEIGHT = 1e-9  #: the weight of a neighbour that another filter has dropped


class MatchTensors(NamedTuple):
    """All matches of a pair, those that count and others."""

    points0: Tensor  #: (N, 2), x and y in pixels; pixel centres are integers
    points1: Tensor  #: (N, 2)
    scores: Tensor  #: (N,), higher is better
    counts: Tensor  #: (N,) bool
    confidence: Tensor | None = None  #: (N,), probability that each is right; None if unknown

    @classmethod
    def of(cls, matches: Matches, device: torch.device) -> "MatchTensors":
        """Return matches of any matcher; all of them count."""
        own, sure = (matches.keypoints0, matches.keypoints1, matches.scores), matches.confidence
        points0, points1, scores = (tensor.detach().to(device) for tensor in own)
        counts = torch.ones_like(scores, dtype=torch.bool)
        return cls(points0, points1, scores, counts, None if sure is None else sure.detach().to(device))

    @classmethod
    def of_decoded(cls, decoded: Decoded, b: int = 0, min_confidence: float = 0.0) -> "MatchTensors":
        """Return the matches of pair b of a batch; those that ``deepmatching.matches.selected_mask`` selects count."""
        points0, points1 = (points.reshape(-1, 2) for points in decoded.at_pixel_centres(b))
        confidence = None if decoded.confidence is None else decoded.confidence[b].flatten()
        counts = selected_mask(decoded, b, min_confidence).flatten()
        return cls(points0, points1, decoded.scores[b].flatten(), counts, confidence)


def usable(
    matches: MatchTensors, pixels: Tensor, weights: Tensor | None, size: tuple[int, int], is_fixed: bool
) -> Tensor:
    """Return the matches that are finite and start in the image, the best of each pixel, the first of equals."""
    x, y = matches.points0.unbind(dim=1)
    inside = (x > -1) & (x < size[1]) & (y > -1) & (y < size[0]) & (matches.points1.abs() < _FARTHEST).all(dim=1)
    reasons = {f"starts in the image of {size[1]}x{size[0]} pixels; give matches of this image": inside}
    reasons["has a finite score; leave the scores out"] = torch.isfinite(matches.scores)
    if weights is not None:
        reasons["has a positive weight; leave the weights out"] = torch.isfinite(weights) & (weights > 0)
    usable = matches.counts
    if not is_fixed and not usable.any():
        raise DeepMatchingError(NOTHING)
    for reason, holds in reasons.items():
        usable = usable & holds
        if not is_fixed and not usable.any():
            raise DeepMatchingError(f"No match {reason}.")
    place = pixels[:, 1] * size[1] + pixels[:, 0]
    score = torch.where(usable, matches.scores, -torch.inf)
    best = score.new_full((size[0] * size[1],), -torch.inf).scatter_reduce_(0, place, score, "amax")
    usable = usable & (score == best[place])
    number = torch.arange(len(score), device=score.device)
    first = torch.full_like(best, len(score), dtype=torch.int64)
    first.scatter_reduce_(0, place, torch.where(usable, number, len(score)), "amin")
    return usable & (first[place] == number)


def least_confidence(confidence: Tensor, counts: Tensor, settings: InterpolationSettings) -> Tensor:
    """Return the threshold on the confidence: the one asked for, or a lower one that keeps ``least_kept``."""
    best = torch.where(counts, confidence, -1).sort(descending=True).values
    last = (settings.least_kept * counts.sum()).ceil().long().clamp(min=1) - 1
    return best.gather(0, last.view(1)).clamp(max=settings.confidence)  # an index would wait for the device


def round_trip_errors(start: Tensor, displacements: Tensor, backward: MatchTensors) -> Tensor:
    """Return how far from its start the way of each match (N, 2) forward and back ends, (N,) in pixels.

    The way back is the best of the backward matches in the 3 × 3 bins around the target; of several in a bin, the last.
    The error is ∞ if these bins are empty.
    """
    if not len(backward.points0):
        return torch.full_like(start[:, 0], torch.inf)
    back = backward.points1.double() - backward.points0.double()
    usable = backward.counts & torch.isfinite(back).all(dim=1)
    bins, order = torch.where(usable, _bin_number(_bin(backward.points0)), 2**62).sort(stable=True)
    step = torch.arange(-1, 2, device=start.device)
    around = torch.stack(torch.meshgrid(step, step, indexing="ij"), dim=2).reshape(9, 2)
    wanted = _bin_number(_bin(start + displacements)[:, None] + around)  # (N, 9)
    last = (torch.searchsorted(bins, wanted, right=True) - 1).clamp(min=0)
    error = torch.hypot(*(displacements[:, None] + back[order[last]]).unbind(dim=2))
    return torch.where(bins[last] == wanted, error, torch.inf).amin(dim=1)


def _bin(points: Tensor) -> Tensor:
    """Return the column and row of the bin of each point."""
    return (torch.nan_to_num(points.double()) / _BIN).floor().clamp(-_FARTHEST_BIN, _FARTHEST_BIN).long()


def _bin_number(bins: Tensor) -> Tensor:
    """Return a unique integer for each bin (…, 2)."""
    return bins[..., 0] * 2**32 + bins[..., 1]


def in_groups(graph: Graph, displacements: Tensor, tolerance: float, size: int) -> Tensor:
    """Return whether a seed is in a group of at least this size, (S,) bool.

    Neighbours whose displacements differ by less than ``tolerance`` pixels are in one group. Wrong matches rarely agree
    with many others.
    """
    starts, others, lengths = graph
    entries = torch.arange(len(others), device=others.device)
    first = (torch.searchsorted(starts, entries, right=True) - 1).clamp(max=len(displacements) - 1)
    apart = torch.hypot(*(displacements[first] - displacements[others.long()]).unbind(dim=1))
    linked = starts, others, torch.where(apart < tolerance, lengths, torch.inf)
    return (nearest_seeds(linked, size).seeds >= 0).sum(dim=1) >= size  # the search stops after this many


def inconsistency(neighbours: Nearest, displacements: Tensor, falloff: float, voters: Tensor) -> Tensor:
    """Return the distance of each displacement to the weighted mean of its neighbours' and its own, (S,) in pixels.

    Only the ``voters``, (S,) bool, count in the means; the result of the others is undefined.
    """
    shares = torch.where(voters, 1.0, _DROPPED_WEIGHT).double()
    weights = falloff_weights(*neighbours, falloff, shares)
    return torch.hypot(*(weighted_means(neighbours.seeds, weights, displacements) - displacements).unbind(dim=1))
