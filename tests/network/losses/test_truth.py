"""Where the true match lies."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from deepmatching.geometry.discretization import Geometry
from deepmatching.network.losses import true_cells
from deepmatching.network.losses.truth import neighbourhood


@settings(max_examples=40, deadline=None)
@given(st.floats(-20, 20), st.floats(-20, 20), st.sampled_from([8, 20, None]), st.integers(0, 2))
def test_the_true_cell_lies_where_the_geometry_says(dx: float, dy: float, radius: int | None, l: int) -> None:
    geometry = Geometry.for_downscale((48, 56), (40, 64), 1, radius, 2)
    flow = torch.tensor([dx, dy]).expand(1, 48, 56, 2)
    cells = true_cells(flow, geometry, l)[0]
    rows, columns = geometry.reference_points(l)
    y, x = geometry.target_points(l)
    for i in range(len(rows)):
        for j in range(len(columns)):
            target = (float(rows[i]) + dy, float(columns[j]) + dx)
            starts = float(y[i if len(y) > 1 else 0, 0]), float(x[j if len(x) > 1 else 0, 0])
            index = [(t - s) / geometry.stride(l) for t, s in zip(target, starts, strict=True)]
            spans = [(k, -0.5, n - 0.5) for k, n in zip(index, geometry.window(l), strict=True)]
            spans += [(t, 0, n) for t, n in zip(target, geometry.used1, strict=True)]
            if any(min(abs(k - low), abs(k - high)) < 1e-3 for k, low, high in spans):
                continue
            is_known = all(low <= k <= high for k, low, high in spans)
            assert bool(torch.isnan(cells[i, j]).any()) != is_known
            if is_known:
                assert cells[i, j].tolist() == pytest.approx(index, abs=1e-3)


def test_a_motion_boundary_and_an_unknown_pixel_have_no_truth() -> None:
    geometry = Geometry.for_downscale((24, 24), (24, 24), 1, 8, 1)  # reference points at 4, 12, 20
    flow = torch.zeros(1, 24, 24, 2)
    flow[0, 3, 3] = math.nan
    flow[0, 11, 12, 0] = 1.5
    flow[0, 20, 19, 1] = 0.5
    flow[0, 4, 20] = math.nan
    cells = true_cells(flow, geometry)[0]
    unknown = torch.isnan(cells).any(-1)
    assert unknown.nonzero().tolist() == [[0, 0], [0, 2], [1, 1]]
    assert cells[2, 2].tolist() == pytest.approx([4 + 0.125 / 2, 4])  # the mean of four pixels, in cells of 2 px


def test_a_neighbourhood_surrounds_the_position() -> None:
    index, offset, inside = neighbourhood(torch.tensor([[2.25, 0.5], [math.nan, 0.0]]), (4, 5), reach=1)
    assert index[0, inside[0]].tolist() == [10, 11, 15, 16] and not inside[1].any()
    assert offset[0, inside[0]].tolist() == [[-0.25, -0.5], [-0.25, 0.5], [0.75, -0.5], [0.75, 0.5]]
    index, _, inside = neighbourhood(torch.tensor([3.5, 4.0]), (4, 5), reach=1)
    assert index[inside].tolist() == [18, 19]


@pytest.mark.parametrize("reach", [1, 2])
def test_a_neighbourhood_of_a_cell_is_symmetric(reach: int) -> None:
    _, offset, inside = neighbourhood(torch.tensor([4.0, 5.0]), (9, 11), reach)
    steps = range(-reach, reach + 1)
    assert offset[inside].tolist() == [[y, x] for y in steps for x in steps]
