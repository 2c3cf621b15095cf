"""Inference without the score volumes: the network's operators, fused where one only feeds the next.

Matching needs only the arg-max of Q_0, and Q_l is finite only at cells that some pooling window chose. There,
Q_l(m_l(q')|p) = S_{l+1/2}(q'|p) + Q_{l+1/2}(q'|p). So the pooled scores S_{l+1/2}, a quarter of S_l, and the switches
carry everything that decoding needs:

    CORR, PW, MP   :func:`correlate_and_pool`        → S_{1/2}, m_0
    AG, PW, MP     :func:`aggregate_and_pool`        S_{l+1/2} → S_{l+3/2}, m_{l+1}
    AG, PW         :func:`aggregate`                 S_{L−1/2} → S_L
    DA             :func:`disaggregate`              Q_L = S_L → Q_{L−1/2}
    +, UP, DA      :func:`unpool_and_disaggregate`   Q_{l+3/2} → Q_{l+1/2}
    +, UP, argmax  ``deepmatching.network.operators.decoding.best_pooled``

The functions here are definitions in terms of the paper's operators. Faster kernels stand behind them (see
``deepmatching.kernels.registry``) and agree with them in tests. They are not differentiable: training uses the paper's
operators.

Shapes, for level l < L: S_{l+1/2}, m_l and Q_{l+1/2} are (B, H_l, W_l, h_{l+1}, w_{l+1}).
"""

import torch
from torch import Tensor

from deepmatching.geometry.discretization import Geometry
from deepmatching.kernels.registry import operator
from deepmatching.network.operators.aggregation import aggregation
from deepmatching.network.operators.correlation import correlation
from deepmatching.network.operators.disaggregation import disaggregation
from deepmatching.network.operators.pooling import HARD
from deepmatching.network.operators.power import power


@operator()
@torch.no_grad()
def correlate_and_pool(
    cells0: Tensor, cells1: Tensor, geometry: Geometry, patch: int, exponent: float, half: bool = False
) -> tuple[Tensor, Tensor]:
    """Return S_{1/2} and m_0 from the descriptors: correlation, power with ν_0 = ``exponent``, max pooling.

    With ``half``, S_{1/2} is returned in half precision. A GPU then also correlates with one product of float16
    descriptors instead of three: faster, with scores off by 1e-5 and at most 2e-4.
    """
    pooled, switches = HARD.pool(power(correlation(cells0, cells1, geometry, patch), exponent), geometry, 0)
    return pooled.half() if half else pooled, switches


@operator()
@torch.no_grad()
def aggregate_and_pool(pooled: Tensor, geometry: Geometry, l: int, exponent: float) -> tuple[Tensor, Tensor]:
    """Return S_{l+3/2} and m_{l+1} from ``pooled`` = S_{l+1/2}: aggregation, power with ν_{l+1}, max pooling."""
    return HARD.pool(aggregate(pooled, geometry, l, exponent), geometry, l + 1)


@operator()
@torch.no_grad()
def aggregate(pooled: Tensor, geometry: Geometry, l: int, exponent: float) -> Tensor:
    """Return S_{l+1} from ``pooled`` = S_{l+1/2}: aggregation and power with ν_{l+1}."""
    return power(aggregation(pooled, geometry.grid(l + 1), geometry.links(l)), exponent)


@operator()
@torch.no_grad()
def disaggregate(scores: Tensor, geometry: Geometry, l: int) -> Tensor:
    """Return Q_{l+1/2} from ``scores`` = Q_{l+1}."""
    return disaggregation(scores, geometry.grid(l), geometry.links(l))


@operator()
@torch.no_grad()
def unpool_and_disaggregate(coarse: Tensor, pooled: Tensor, switches: Tensor, geometry: Geometry, l: int) -> Tensor:
    """Return Q_{l+1/2} from ``coarse`` = Q_{l+3/2}, ``pooled`` = S_{l+3/2} and ``switches`` = m_{l+1}."""
    return disaggregate(HARD.unpool(coarse + pooled, switches, None, geometry, l + 1), geometry, l)
