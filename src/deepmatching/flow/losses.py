"""Losses on the motion of every pixel: of the dense network, and of flow interpolated from matches."""

import math

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid

from deepmatching.flow.correction import DenseFlow
from deepmatching.flow.correction.dense_network import FARTHEST, LOG_SCALE, NARROW
from deepmatching.flow.operators.geodesic import FLOOR, cell_graph, distance_transform, nearest_seeds
from deepmatching.flow.operators.local_models import affine_models, falloff_weights, paint
from deepmatching.network.losses.truth import mean_over

FILLED = 0.4  #: weight of the motion that was filled in; the final flow's is 1
UPDATED = 0.2  #: weight of the motion after each update
LIKELIHOOD = 0.2  #: weight of the negative log-likelihood


def dense_loss(found: DenseFlow, flow: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
    """Return the mean end-point error of the dense network's flow over all known pixels, and metrics.

    Occluded pixels count. So do the motions on its way, at the points of their grids, and the likelihood of the truth
    under the mixture of two Laplace distributions, of scale 0.4 pixels and of a learned one. The metrics are ``epe``,
    of the final flow, ``filled``, of the motion that was filled in, and ``likelihood``. The true flow, (B, H, W, 2), is
    NaN where unknown; it may exceed the part of the image that the network uses.
    """
    truth = flow[:, : found.flow.shape[2], : found.flow.shape[3]].permute(0, 3, 1, 2)
    known = (truth.abs() < FARTHEST).all(dim=1)  # false for NaN; what passes the camera has no end in the frame
    truth = torch.where(known[:, None], truth, 0)
    error = mean_over(_lengths(found.flow - truth), known)
    likelihood = mean_over(-log_likelihood(found.flow - truth, found.mixture), known)
    loss = error + LIKELIHOOD * likelihood
    metrics = {"epe": error.detach(), "likelihood": -likelihood.detach()}
    for step, motions in ((8, found.coarse), (4, found.fine)):
        at_points, is_known = _at_points(truth, known, step)
        errors = [mean_over(_lengths(motion - at_points), is_known) for motion in motions]
        if step == 8:
            loss = loss + FILLED * errors[0]
            metrics["filled"] = errors.pop(0).detach()
        loss = loss + UPDATED * sum(errors, torch.zeros_like(loss))
    return loss, metrics


def log_likelihood(errors: Tensor, mixture: Tensor) -> Tensor:
    """Return log p of errors (B, 2, H, W), each coordinate of w Laplace(0.4) + (1 − w) Laplace(b), summed over both."""
    weight, scale, size = mixture[:, :1], mixture[:, 1:].clamp(*LOG_SCALE), errors.abs()
    narrow = logsigmoid(weight) - math.log(NARROW) - size / NARROW
    parts = torch.stack([narrow, logsigmoid(-weight) - scale - size * (-scale).exp()])
    return (parts.logsumexp(dim=0) - math.log(2)).sum(dim=1)


def interpolation_loss(
    moved: Tensor,
    points: Tensor,
    weights: Tensor,
    edges: Tensor,
    flow: Tensor,
    neighbours: int = 32,
    falloff: float = 0.8,
    contrast: float = 1.25,
    ridge: float = 4.0,
) -> Tensor:
    """Return the mean end-point error of the flow that matches interpolate to, over all known pixels.

    Each pixel moves by the affine motion fitted to the matches around its nearest one, along paths that avoid edges.
    The choice of the neighbours has no gradient; the fit has, with respect to displacements and weights. The last four
    arguments are those of ``deepmatching.flow.InterpolationSettings``.

    Args:
        moved, points: (N, 2), displacements of the matches in pixels, and where they start; pixel centres are integers.
        weights: (N,), from 0 (does not count) to 1.
        edges: (H, W), edge strength of the first image.
        flow: (H, W, 2), NaN where unknown.
    """
    counts = weights > 0
    moved, points, weights = moved[counts], points[counts], weights[counts]
    with torch.no_grad():
        pixels = (points + 0.5).floor().long()
        distance, label = distance_transform(edges**contrast + FLOOR, pixels, None)
        index, distances = nearest_seeds(cell_graph(distance, label, len(points)), neighbours)
    fall = falloff_weights(index, distances, falloff, weights)
    models, _ = affine_models.definition(index, fall, points.double(), moved.double(), ridge)
    error = paint.definition(label, points.double(), models) - flow[: label.shape[0], : label.shape[1]]
    known = torch.isfinite(error).all(dim=-1)
    return mean_over(_lengths(torch.where(known[..., None], error, 0).permute(2, 0, 1)[None]), known[None]).float()


def _at_points(truth: Tensor, known: Tensor, step: int) -> tuple[Tensor, Tensor]:
    """Return the truth at the middles of squares of this side, and where it is known and does not jump."""
    middle = step // 2 - 1, step // 2
    rows, columns = (side // step * step for side in truth.shape[2:])
    around = torch.stack([truth[:, :, r:rows:step, c:columns:step] for r in middle for c in middle])
    all_known = torch.stack([known[:, r:rows:step, c:columns:step] for r in middle for c in middle]).all(dim=0)
    agree = ((around - around[0]).abs() <= 1).all(dim=0).all(dim=1)
    return around.mean(dim=0), all_known & agree


def _lengths(errors: Tensor) -> Tensor:
    """Return |e| of (B, 2, H, W), with a gradient at 0."""
    return (errors.square().sum(dim=1) + 1e-6).sqrt()
