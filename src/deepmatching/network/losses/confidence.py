"""The loss of the confidence network: is a match right, is a point hidden?"""

import torch
import torch.nn.functional as F
from torch import Tensor

from deepmatching.geometry.discretization import Geometry
from deepmatching.network.losses.truth import mean_over, true_displacements
from deepmatching.settings import CORRECT_WITHIN

HIDDEN = 0.5  #: weight of the question whether a point is hidden, against whether its match is right


def confidence_loss(
    logits: Tensor, moved: Tensor, flow: Tensor, occluded: Tensor, geometry: Geometry
) -> tuple[Tensor, dict[str, Tensor]]:
    """Return the mean binary cross-entropy of both questions over the reference points with a known answer.

    A match is right if it is less than 3 pixels off. Points at motion boundaries have no answer. Hidden points have
    one: their true motion is known, and a match is usually wrong there. With the loss come metrics to log: ``right``,
    the fraction of right matches, and ``judged``, the fraction that is judged correctly at a probability of ½.

    Args:
        logits: (B, 2, H_0, W_0), of :class:`~deepmatching.network.confidence.ConfidenceNetwork`.
        moved: Γ(p) − p, (B, H_0, W_0, 2), in pixels.
        flow, occluded: (B, H, W, 2), NaN where unknown, and (B, H, W) bool.
    """
    right, is_known = is_right(moved, flow, geometry)
    occluded, hidden_known = is_occluded(occluded, geometry)
    own, other = (
        F.binary_cross_entropy_with_logits(logits[:, n], answer.to(logits.dtype), reduction="none")
        for n, answer in enumerate((right, occluded))
    )
    loss = mean_over(own, is_known) + HIDDEN * mean_over(other, hidden_known & is_known)
    judged = ((logits[:, 0] > 0) == right).to(logits.dtype)
    return loss, {"right": mean_over(right.to(logits.dtype), is_known), "judged": mean_over(judged, is_known).detach()}


def is_right(moved: Tensor, flow: Tensor, geometry: Geometry) -> tuple[Tensor, Tensor]:
    """Return whether each match is less than 3 pixels off, and whether that is known: two (B, H_0, W_0), bool."""
    truth = true_displacements(flow, geometry)
    known = torch.isfinite(truth).all(-1)
    return known & ((moved - truth).norm(dim=-1) < CORRECT_WITHIN), known


def is_occluded(occluded: Tensor, geometry: Geometry) -> tuple[Tensor, Tensor]:
    """Return whether each reference point is hidden, and whether the pixels around it agree: two (B, H_0, W_0)."""
    field = occluded[..., None].expand(*occluded.shape, 2).float()
    truth = true_displacements(field, geometry, agreement=0.5)[..., 0]
    return truth > 0.5, torch.isfinite(truth)
