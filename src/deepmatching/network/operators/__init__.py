"""The arithmetic of the network: one operator of the paper a file, plain PyTorch, differentiable.

Score volumes have shape (B, H, W, h, w): pair, reference row and column, target row and column.
"""

from deepmatching.network.operators.aggregation import aggregation
from deepmatching.network.operators.correlation import correlation
from deepmatching.network.operators.disaggregation import disaggregation
from deepmatching.network.operators.max_pooling import max_pooling
from deepmatching.network.operators.power import power
from deepmatching.network.operators.soft_pooling import soft_pooling, soft_unpooling
from deepmatching.network.operators.unpooling import summation, unpooling

__all__ = [
    "aggregation", "correlation", "disaggregation", "max_pooling", "power", "soft_pooling", "soft_unpooling",
    "summation", "unpooling",
]  # fmt: skip
