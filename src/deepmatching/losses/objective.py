"""What training minimises: a loss on any of the score volumes S_0 … S_L, Q_L … Q_0."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Literal, get_args

import torch
from torch import Tensor, nn

from deepmatching.errors import DeepMatchingError
from deepmatching.losses.cross_entropy import cross_entropy
from deepmatching.losses.hinge import structured_hinge
from deepmatching.losses.indicator import indicator_distance
from deepmatching.losses.truth import on_image, true_cells
from deepmatching.network import Pyramid
from deepmatching.operators.decoding import off_image_is_no_match
from deepmatching.operators.subpixel import REACH, soft_offsets, surroundings

Kind = Literal["cross-entropy", "hinge", "indicator"]


def check_weights(weights: Mapping[str, float]) -> None:
    """Raise unless these can be weights of score volumes."""
    for name, weight in weights.items():
        if not re.fullmatch(r"[SQ]\d+", name):
            raise DeepMatchingError(f"There is no score volume '{name}': name them S0, S1, … or Q0, Q1, ….")
        if not 0 <= weight < math.inf:
            raise DeepMatchingError(f"The weight of {name} in the loss must be a number of at least 0, not {weight}.")
    if not any(weights.values()):
        raise DeepMatchingError("The loss has no score volume with a weight: set loss.weights.Q0=1, for example.")


class Objective(nn.Module):
    """Σ over volumes of weight × mean over reference points of the loss.

    The mean runs over the points whose true match is known, inside the window and reachable; if there are none, the
    loss is 0. (The paper's sum over p and q is the hinge times the number of points: only the learning rate
    differs.)

    Args:
        kind: ``hinge`` (the paper's structured loss), ``indicator`` (its squared distance) or ``cross-entropy``.
        weights: weight of each volume by name, such as ``{"Q0": 1, "S0": 0.2}``.
        sigma: σ of g_σ in pixels at level 0; doubled at each level above, as the cells are.
        margin: margin of the hinge.
        scale: β of the cross-entropy at the start; it is learned along.
        subpixel: weight of the distance, in pixels, between the truth and the match as ``Network.sharpness`` refines
            it from the scores S_0 around the truth; needs a network that has one.
        occluded: whether points that are not visible in the target image count, too.
    """

    def __init__(
        self,
        kind: Kind = "cross-entropy",
        weights: Mapping[str, float] | None = None,
        sigma: float = 1.5,
        margin: float = 1.0,
        scale: float = 10.0,
        subpixel: float = 0.0,
        occluded: bool = False,
    ) -> None:
        super().__init__()
        weights = {"Q0": 1.0} if weights is None else dict(weights)
        if kind not in get_args(Kind):
            raise DeepMatchingError(f"Unknown loss '{kind}': use {', '.join(get_args(Kind))}.")
        for name, value in (("sigma", sigma), ("margin", margin), ("scale", scale)):
            if not 0 < value < math.inf:
                raise DeepMatchingError(f"The loss's {name} must be positive, not {value}.")
        check_weights(weights)
        self.kind, self.sigma, self.margin = kind, sigma, margin
        self.weights = {name: weight for name, weight in weights.items() if weight}
        self.subpixel, self.occluded = subpixel, occluded
        log_scale = torch.full((len(self.weights),), math.log(scale))
        self.log_scale = nn.Parameter(log_scale, requires_grad=kind == "cross-entropy")

    def forward(
        self, pyramid: Pyramid, flow: Tensor, occluded: Tensor | None = None
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """The loss of a batch.

        Args:
            pyramid: the network's output.
            flow: (B, H, W, 2), NaN where unknown.
            occluded: (B, H, W) bool, if known.

        Returns:
            The loss, and what to log: ``known``, the share of the pixels whose displacement is known and counts; each
            volume's own loss; and ``reachable``, the share of the points with a true match in the window that can
            reach it in Q_0 (or the first volume that has a weight).
        """
        geometry = pyramid.geometry
        hidden = None if self.occluded else occluded
        counting = ~torch.isnan(flow[..., 0])
        figures = {"known": (counting if hidden is None else counting & ~hidden).float().mean()}
        total = flow.new_zeros(())
        for n, (name, weight) in enumerate(self.weights.items()):
            l = int(name[1:])
            if l > geometry.L:
                raise DeepMatchingError(f"The loss asks for {name}, but the pyramid ends at level {geometry.L}.")
            scores = (pyramid.S if name[0] == "S" else pyramid.Q)[l]
            if name == "S0":
                # Masked in place unless there is a gradient, and the pyramid is the caller's.
                scores = off_image_is_no_match(scores if scores.requires_grad else scores.clone(), geometry)
            truth = true_cells(flow, geometry, l, hidden)
            losses, found = self.loss(scores, truth, n, geometry.gamma)
            value = losses.sum() / found.sum().clamp(min=1)
            total = total + weight * value
            figures[name] = value.detach()
            if "reachable" not in figures:
                known = ~torch.isnan(truth[..., 0])
                figures["reachable"] = found.sum() / known.sum().clamp(min=1)
        if self.subpixel:
            truth = true_cells(flow, geometry, 0, hidden)
            distance = geometry.gamma * self.off_by(pyramid, truth)
            figures["subpixel"] = distance.detach()
            total = total + self.subpixel * distance
        return total, figures

    def loss(self, scores: Tensor, truth: Tensor, n: int = 0, gamma: int = 2) -> tuple[Tensor, Tensor]:
        """The losses (B, H, W) of a volume's reference points and which have one; ``n`` counts the volumes."""
        sigma = self.sigma / gamma
        if self.kind == "hinge":
            return structured_hinge(scores, truth, sigma, self.margin)
        if self.kind == "indicator":
            return indicator_distance(scores, truth, sigma)
        return cross_entropy(scores, truth, sigma, self.log_scale[n].exp())

    def off_by(self, pyramid: Pyramid, truth: Tensor) -> Tensor:
        """Mean distance in cells between the truth and the refined nearest cell, capped at one cell a point."""
        if pyramid.sharpness is None:
            raise DeepMatchingError("The sub-pixel loss needs a network with a sharpness: set model.subpixel.")
        known = ~torch.isnan(truth).any(-1)
        nearest = torch.where(known[..., None], truth, 0).round()
        h, w = pyramid.geometry.window(0)
        cell = nearest[..., 0].clamp(0, h - 1).long() * w + nearest[..., 1].clamp(0, w - 1).long()
        # As for matches, no score lies off the image; masked here, and not in all of S_0, which is large.
        steps = torch.arange(-REACH, REACH + 1, device=nearest.device)
        inside = on_image(nearest[..., None, :] + steps[:, None], pyramid.geometry)  # (B, H_0, W_0, 5, 2)
        inside = inside[..., :, None, 0] & inside[..., None, :, 1]
        around = torch.where(inside, surroundings(pyramid.S[0], cell), -torch.inf)
        offset = soft_offsets(around, pyramid.sharpness)
        error = offset - torch.where(known[..., None], truth - nearest, 0)
        distance = (error.square().sum(-1) + 1e-4).sqrt().clamp(max=1.0)
        return torch.where(known, distance, 0).sum() / known.sum().clamp(min=1)
