"""Matching many pairs into a folder: which pairs, in which order, and what is stored."""

from deepmatching.bulk_matching.cluster import Cluster
from deepmatching.bulk_matching.engine import ShardReport
from deepmatching.bulk_matching.pairs import (
    exhaustive_pairs,
    list_images,
    read_pairs,
    retrieved_pairs,
    sequential_pairs,
)
from deepmatching.bulk_matching.running import Progress, bulk
from deepmatching.bulk_matching.storage import MatchedPair, RunFolder

__all__ = [
    "Cluster",
    "MatchedPair",
    "Progress",
    "RunFolder",
    "ShardReport",
    "bulk",
    "exhaustive_pairs",
    "list_images",
    "read_pairs",
    "retrieved_pairs",
    "sequential_pairs",
]
