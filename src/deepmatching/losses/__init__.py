"""Losses on score volumes (paper, Sect. 2.2 "Training and loss functions")."""

from deepmatching.losses.confidence import confidence_loss, is_hidden, is_right
from deepmatching.losses.cross_entropy import cross_entropy
from deepmatching.losses.flow import dense_loss, interpolation_loss
from deepmatching.losses.hinge import structured_hinge
from deepmatching.losses.indicator import indicator_distance, smoothed_indicator
from deepmatching.losses.objective import Objective
from deepmatching.losses.truth import true_cells

__all__ = [
    "Objective",
    "confidence_loss",
    "cross_entropy",
    "dense_loss",
    "indicator_distance",
    "interpolation_loss",
    "is_hidden",
    "is_right",
    "smoothed_indicator",
    "structured_hinge",
    "true_cells",
]
