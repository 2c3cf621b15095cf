"""The levels of inference (see ``deepmatching.network.operators.fused``)."""

from __future__ import annotations

import torch
from torch import Tensor

from deepmatching.geometry.discretization import Geometry
from deepmatching.kernels.gpu.matching.aggregation import aggregate_mean
from deepmatching.kernels.gpu.matching.disaggregation import best_parent
from deepmatching.kernels.gpu.matching.max_pooling import pool
from deepmatching.kernels.gpu.matching.unpooling import unpool


@torch.no_grad()
def aggregate_and_pool(pooled: Tensor, geometry: Geometry, l: int, exponent: float) -> tuple[Tensor, Tensor]:
    """See :func:`deepmatching.network.operators.fused.aggregate_and_pool`.

    The means are stored in between, since windows overlap. ν is applied to the maxima alone: the power is monotone.
    """
    mean = aggregate_mean(pooled.contiguous(), geometry.grid(l + 1), geometry.links(l))
    return pool(mean, geometry.window(l + 2), geometry.pool_offset(l + 1), geometry.pool_reach, exponent)


@torch.no_grad()
def aggregate(pooled: Tensor, geometry: Geometry, l: int, exponent: float) -> Tensor:
    """See :func:`deepmatching.network.operators.fused.aggregate`."""
    return aggregate_mean(pooled.contiguous(), geometry.grid(l + 1), geometry.links(l), exponent)


@torch.no_grad()
def disaggregate(scores: Tensor, geometry: Geometry, l: int) -> Tensor:
    """See :func:`deepmatching.network.operators.fused.disaggregate`."""
    return best_parent(scores.contiguous(), geometry.grid(l), geometry.links(l))[0]


@torch.no_grad()
def unpool_and_disaggregate(coarse: Tensor, pooled: Tensor, switches: Tensor, geometry: Geometry, l: int) -> Tensor:
    """See :func:`deepmatching.network.operators.fused.unpool_and_disaggregate`.

    Q_{l+1} is stored in between: otherwise each of its four children would look up four switches again.
    """
    scores, _ = unpool(
        coarse.contiguous(),
        pooled.contiguous(),
        switches.contiguous(),
        geometry.window(l + 1),
        geometry.pool_offset(l + 1),
        geometry.pool_reach,
    )
    return disaggregate(scores, geometry, l)
