"""The flow of a homography against its definition, spelled out pixel by pixel."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from deepmatching.data.datasets.pairs import homography_flow
from deepmatching.errors import DeepMatchingError


@given(
    matrix=st.lists(st.floats(-0.3, 0.3), min_size=9, max_size=9),
    sign=st.sampled_from([-1.0, 1.0, 7.0]),
)
@settings(max_examples=30, deadline=None)
def test_homography_flow_is_its_definition(matrix: list[float], sign: float) -> None:
    homography = np.eye(3) + np.array(matrix).reshape(3, 3) * [[1, 1, 20], [1, 1, 20], [0.01, 0.01, 0.1]]
    flow = homography_flow(sign * homography, 9, 12, 11, 8)
    assert flow.shape == (9, 12, 2)
    for i in range(9):
        for j in range(12):
            x, y, w = homography @ (j, i, 1.0)
            x, y = x / w, y / w
            if w > 0 and -0.499 < x < 7.499 and -0.499 < y < 10.499:
                np.testing.assert_allclose(flow[i, j], (x - j, y - i), atol=1e-4)
            elif w <= 0 or not (-0.501 <= x <= 7.501 and -0.501 <= y <= 10.501):
                assert np.isnan(flow[i, j]).all()


def test_homography_flow_of_the_identity_and_of_a_shift() -> None:
    assert (homography_flow(np.eye(3), 4, 5, 4, 5) == 0).all()
    shift = np.array([[1.0, 0, 2], [0, 1, 0], [0, 0, 1]])
    flow = homography_flow(shift, 4, 5, 4, 5)
    assert (flow[:, :3] == (2, 0)).all()
    assert np.isnan(flow[:, 3:]).all()
    with pytest.raises(DeepMatchingError, match="3 x 3"):
        homography_flow(np.eye(2), 4, 5, 4, 5)


def test_the_horizon_is_not_crossed() -> None:
    # w = 1 − x/4: beyond x = 4 the points would reappear mirrored inside a large target.
    flow = homography_flow(np.array([[1.0, 0, 0], [0, 1, 0], [-0.25, 0, 1]]), 3, 8, 10**6, 10**6)
    assert np.isfinite(flow[:, :4]).all()
    assert np.isnan(flow[:, 4:]).all()
