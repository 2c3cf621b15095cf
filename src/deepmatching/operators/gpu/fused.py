"""The levels of inference, see ``operators.fused`` for what each computes."""

from __future__ import annotations

import torch
from torch import Tensor

from deepmatching.geometry import Geometry
from deepmatching.operators.gpu.aggregation import aggregate_mean
from deepmatching.operators.gpu.disaggregation import best_parent
from deepmatching.operators.gpu.max_pooling import pool
from deepmatching.operators.gpu.unpooling import unpool


@torch.no_grad()
def aggregate_and_pool(pooled: Tensor, geometry: Geometry, l: int, exponent: float) -> tuple[Tensor, Tensor]:
    """S_{l+3/2} and m_{l+1} from ``pooled`` = S_{l+1/2}.

    The means are stored in between, since windows overlap; ν is applied to the maxima alone: the power is monotone.
    """
    mean = aggregate_mean(pooled.contiguous(), geometry.grid(l + 1), geometry.links(l))
    return pool(mean, geometry.window(l + 2), geometry.pool_offset(l + 1), geometry.pool_reach, exponent)


@torch.no_grad()
def aggregate(pooled: Tensor, geometry: Geometry, l: int, exponent: float) -> Tensor:
    """S_{l+1} from ``pooled`` = S_{l+1/2}."""
    return aggregate_mean(pooled.contiguous(), geometry.grid(l + 1), geometry.links(l), exponent)


@torch.no_grad()
def disaggregate(scores: Tensor, geometry: Geometry, l: int) -> Tensor:
    """Q_{l+1/2} from ``scores`` = Q_{l+1}."""
    return best_parent(scores.contiguous(), geometry.grid(l), geometry.links(l))[0]


@torch.no_grad()
def unpool_and_disaggregate(coarse: Tensor, pooled: Tensor, switches: Tensor, geometry: Geometry, l: int) -> Tensor:
    """Q_{l+1/2} from ``coarse`` = Q_{l+3/2}, ``pooled`` = S_{l+3/2} and ``switches`` = m_{l+1}.

    Q_{l+1} is stored in between: of its four children each would otherwise look up four switches again.
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
