"""The arithmetic of the network: one operator of the paper a file, plain PyTorch, differentiable.

Score volumes have shape (B, H, W, h, w): pair, reference row and column, target row and column.
"""

from deepmatching.operators.aggregation import aggregation
from deepmatching.operators.correlation import correlation
from deepmatching.operators.disaggregation import disaggregation
from deepmatching.operators.max_pooling import max_pooling
from deepmatching.operators.power import power
from deepmatching.operators.soft_pooling import soft_pooling
from deepmatching.operators.soft_unpooling import soft_unpooling
from deepmatching.operators.summation import summation
from deepmatching.operators.unpooling import unpooling

__all__ = [
    "aggregation",
    "correlation",
    "disaggregation",
    "max_pooling",
    "power",
    "soft_pooling",
    "soft_unpooling",
    "summation",
    "unpooling",
]
