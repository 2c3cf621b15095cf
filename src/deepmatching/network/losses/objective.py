"""The training objective: a loss on any of the score volumes S_0 … S_L, Q_L … Q_0."""

import math
import re
from collections.abc import Mapping
from typing import Any, Literal, get_args

import torch
from torch import Tensor, nn

from deepmatching.errors import DeepMatchingError, check_choice, check_number
from deepmatching.extensions import find_extension, is_import_path
from deepmatching.network.losses.cross_entropy import cross_entropy
from deepmatching.network.losses.hinge import structured_hinge
from deepmatching.network.losses.indicator import indicator_distance
from deepmatching.network.losses.truth import mean_over, on_image, true_cells
from deepmatching.network.network import Pyramid
from deepmatching.network.operators.decoding import mask_off_image
from deepmatching.network.operators.subpixel import SUBPIXEL_REACH, soft_offsets, surroundings
from deepmatching.settings import CROSS_ENTROPY_BETA, HINGE_MARGIN, LOSS_SIGMA

Kind = Literal["cross-entropy", "hinge", "indicator"]


def check_kind(name: str, kind: str) -> None:
    """Raise unless this is a kind of loss, or has the form of an import path."""
    if not is_import_path(kind):
        check_choice(name, kind, get_args(Kind))


def check_weights(weights: Mapping[str, float]) -> None:
    """Raise unless these are weights of score volumes."""
    for name, weight in weights.items():
        if not re.fullmatch(r"[SQ]\d+", name):
            raise DeepMatchingError(f"There is no score volume '{name}': use S0, S1, … or Q0, Q1, ….")
        check_number(f"The loss's weight of {name}", weight, minimum=0)
    if not any(weights.values()):
        raise DeepMatchingError("No score volume has a weight in the loss: set loss.weights.Q0=1, for example.")


class Objective(nn.Module):
    """Σ over volumes of weight × mean over reference points of the loss.

    The mean is over the points with a true match that is known, inside the window and reachable; without such points
    the loss is 0. The paper sums the hinge over the points p instead, which multiplies the loss by their number:
    learning rate, weight decay and gradient clipping have to be scaled to match.

    Args:
        kind: ``hinge`` (the paper's structured loss), ``indicator`` (its squared distance), ``cross-entropy``, or the
            import path of a loss of your own (see :mod:`deepmatching.extensions`): a function from a volume, its
            true cells and σ in cells to what :meth:`loss` returns, or an ``nn.Module`` that is built without arguments.
        weights: weight of each volume by name, such as ``{"Q0": 1, "S0": 0.2}``; ``{"Q0": 1}`` by default.
        sigma: σ of g_σ in pixels at level 0; it doubles with each level, as the cells do.
        margin: margin of the hinge.
        balance: weight of the cells near the truth in ``indicator``; 0 for the plain mean over all cells.
        scale: initial β of the cross-entropy; β is learned.
        subpixel: weight of the distance, in pixels, between the truth and the match that ``Network.sharpness`` refines
            from the scores S_0 around the truth; needs a network with a sharpness.
        occluded: whether points that are not visible in the target image count, too.
    """

    def __init__(
        self,
        kind: str = "cross-entropy",
        weights: Mapping[str, float] | None = None,
        sigma: float = LOSS_SIGMA,
        margin: float = HINGE_MARGIN,
        scale: float = CROSS_ENTROPY_BETA,
        subpixel: float = 0.0,
        occluded: bool = False,
        balance: float = 0.5,
    ) -> None:
        super().__init__()
        weights = {"Q0": 1.0} if weights is None else dict(weights)
        check_kind("The kind of loss", kind)
        for name, value in (("sigma", sigma), ("margin", margin), ("scale", scale)):
            check_number(f"The loss's {name}", value, above=0)
        check_number("The loss's balance", balance, minimum=0, below=1)
        check_weights(weights)
        self.kind, self.sigma, self.margin = kind, sigma, margin
        self.weights = {name: weight for name, weight in weights.items() if weight}
        self.subpixel, self.occluded, self.balance = subpixel, occluded, balance
        own: Any = find_extension(kind) if is_import_path(kind) else None
        self.own = own() if isinstance(own, type) else own
        log_scale = torch.full((len(self.weights),), math.log(scale))
        self.log_scale = nn.Parameter(log_scale, requires_grad=kind == "cross-entropy")

    def forward(
        self, pyramid: Pyramid, flow: Tensor, occluded: Tensor | None = None
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the loss of a batch with the flow (B, H, W, 2), NaN where unknown, and metrics to log.

        These are ``known``, the fraction of the pixels with a displacement that is known and counts; each volume's own
        loss; and ``reachable``, the fraction of the points with a true match in the window that can reach it in Q_0 (or
        in the first volume with a weight).
        """
        geometry = pyramid.geometry
        if occluded is not None and not self.occluded:
            flow = flow.masked_fill(occluded[..., None], torch.nan)
        metrics = {"known": (~torch.isnan(flow[..., 0])).float().mean()}
        total = flow.new_zeros(())
        for n, (name, weight) in enumerate(self.weights.items()):
            l = int(name[1:])
            if l > geometry.L:
                raise DeepMatchingError(f"The loss needs {name}, but the pyramid ends at level {geometry.L}.")
            scores = (pyramid.S if name[0] == "S" else pyramid.Q)[l]
            if name == "S0":
                # Without a gradient this masks in place, and the pyramid belongs to the caller.
                scores = mask_off_image(scores if scores.requires_grad else scores.clone(), geometry)
            truth = true_cells(flow, geometry, l)
            losses, found = self.loss(scores, truth, n, geometry.gamma)
            value = mean_over(losses, found)
            total = total + weight * value
            metrics[name] = value.detach()
            if "reachable" not in metrics:
                metrics["reachable"] = found.sum() / (~torch.isnan(truth[..., 0])).sum().clamp(min=1)
        if self.subpixel:
            distance = geometry.gamma * self.subpixel_error(pyramid, true_cells(flow, geometry))
            metrics["subpixel"] = distance.detach()
            total = total + self.subpixel * distance
        return total, metrics

    def loss(self, scores: Tensor, truth: Tensor, n: int = 0, gamma: int = 2) -> tuple[Tensor, Tensor]:
        """Return the losses (B, H, W) of the points of volume number ``n``, and a mask of those that have one."""
        sigma = self.sigma / gamma
        if self.kind == "hinge":
            return structured_hinge(scores, truth, sigma, self.margin)
        if self.kind == "indicator":
            return indicator_distance(scores, truth, sigma, self.balance)
        if self.own is not None:
            return self.own(scores, truth, sigma)
        return cross_entropy(scores, truth, sigma, self.log_scale[n].exp())

    def subpixel_error(self, pyramid: Pyramid, truth: Tensor) -> Tensor:
        """Return the mean distance in cells from the truth to the refined nearest cell, at most one cell a point."""
        if pyramid.sharpness is None:
            raise DeepMatchingError("The sub-pixel loss needs a network with a sharpness: set model.subpixel.")
        known = ~torch.isnan(truth).any(-1)
        nearest = torch.where(known[..., None], truth, 0).round()
        h, w = pyramid.geometry.window(0)
        cell = nearest[..., 0].clamp(0, h - 1).long() * w + nearest[..., 1].clamp(0, w - 1).long()
        # As for matches, scores off the image do not count. Only these cells are masked, since S_0 is large.
        steps = torch.arange(-SUBPIXEL_REACH, SUBPIXEL_REACH + 1, device=nearest.device)
        inside = on_image(nearest[..., None, :] + steps[:, None], pyramid.geometry)  # (B, H_0, W_0, 5, 2)
        inside = inside[..., :, None, 0] & inside[..., None, :, 1]
        around = torch.where(inside, surroundings(pyramid.S[0], cell), -torch.inf)
        error = soft_offsets(around, pyramid.sharpness) - torch.where(known[..., None], truth - nearest, 0)
        return mean_over((error.square().sum(-1) + 1e-4).sqrt().clamp(max=1.0), known)
