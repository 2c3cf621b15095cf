"""The loss on the motion of every pixel, of flow that is interpolated from matches."""

import torch
from torch import Tensor

from deepmatching.flow.operators.geodesic import FLOOR, cell_graph, distance_transform, nearest_seeds
from deepmatching.flow.operators.local_models import affine_models, falloff_weights, paint
from deepmatching.network.losses.truth import mean_over


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


def _lengths(errors: Tensor) -> Tensor:
    """Return |e| of (B, 2, H, W), with a gradient at 0."""
    return (errors.square().sum(dim=1) + 1e-6).sqrt()
