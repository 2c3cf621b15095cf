"""Flow of images with masks: what is known of it where nothing may be matched."""

from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from deepmatching.flow.result import FlowResult
from deepmatching.io.images import has_mask
from deepmatching.io.masks import is_usable, usable_share


def masked_flow(result: FlowResult, image0: Tensor, image1: Tensor) -> FlowResult:
    """Return the flow between two loaded images with a confidence of 0 where it starts or ends in a mask.

    There it is interpolated from outside. A pixel whose flow leads into the second mask is not visible: its occlusion
    is 1. If nothing else is known of it, that of other pixels is 0. The agreement is that of the points that may be
    matched.
    """
    if not (has_mask(image0) or has_mask(image1)):
        return result
    rows, columns = result.flow.shape[:2]
    y, x = torch.meshgrid(torch.arange(rows), torch.arange(columns), indexing="ij")
    starts = torch.stack([x, y], dim=2).float()
    ends = starts + torch.from_numpy(result.flow)
    from_visible = is_usable(image0, starts.view(-1, 2)).view(rows, columns).cpu().numpy()
    to_visible = is_usable(image1, ends.view(-1, 2)).view(rows, columns).cpu().numpy()
    confidence = result.confidence * (from_visible & to_visible)
    occlusion = result.occlusion
    if has_mask(image1):
        occlusion = np.zeros_like(confidence) if occlusion is None else occlusion.copy()
        occlusion[~to_visible] = 1
    found = replace(result, confidence=confidence, occlusion=occlusion, tensors=None)
    if result.is_searched:  # the matches know how many points may be matched
        return found
    usable = usable_share(image0, image1)
    fraction, agreement = (min(value / usable, 1.0) for value in (result.expected_fraction, result.agreement))  # or NaN
    return replace(found, expected_fraction=fraction, agreement=agreement)
