"""The occlusion of a flow."""

import numpy as np
import torch

from deepmatching.flow.occlusion import occlusion_of


def test_the_occlusion_is_that_of_the_points_and_one_outside_the_image() -> None:
    occluded = torch.zeros(3, 4)
    occluded[1, 2] = 0.8
    flow = torch.zeros(29, 33, 2)  # 24 × 32 pixels are matched
    flow[:, 30:, 0] = 10.0
    found = occlusion_of(occluded, flow, (29, 33))
    assert found.shape == (29, 33) and (found[:, 30:] == 1).all() and (found[24:, :30] == 0).all()
    assert found[11:13, 19:21].min() > 0.65 and found[12, 19] == found[12, 20]  # at the point (20, 12)
    assert found[12, 11] < 0.1 and (found[:4, :16] == 0).all()
    assert (occlusion_of(occluded, flow, (20, 60))[:, 30:] == np.r_[:29][:, None] // 20).all()  # wider, and lower
