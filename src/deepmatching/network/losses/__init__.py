"""Losses on score volumes (paper, Sect. 2.2 "Training and loss functions").

Each takes scores (B, H, W, h, w), −∞ allowed; the truth (B, H, W, 2), fractional (row, column), NaN where unknown; and
σ in cells. It returns L (B, H, W), 0 where it is undefined, and a bool mask (B, H, W) of where it is defined.
"""

from deepmatching.network.losses.confidence import confidence_loss, is_occluded, is_right
from deepmatching.network.losses.cross_entropy import cross_entropy
from deepmatching.network.losses.hinge import structured_hinge
from deepmatching.network.losses.indicator import indicator_distance, smoothed_indicator
from deepmatching.network.losses.objective import Objective
from deepmatching.network.losses.truth import true_cells

__all__ = [
    "Objective",
    "confidence_loss",
    "cross_entropy",
    "indicator_distance",
    "is_occluded",
    "is_right",
    "smoothed_indicator",
    "structured_hinge",
    "true_cells",
]
