"""The metrics against their definitions, spelled out pixel by pixel."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from deepmatching.datasets.homography import homography_flow
from deepmatching.errors import DeepMatchingError
from deepmatching.evaluation.metrics import accuracy, coverage, endpoint_error_of_matches, propagate


def propagate_by_definition(
    keypoints0: np.ndarray, keypoints1: np.ndarray, scores: np.ndarray, height: int, width: int, radius: float
) -> np.ndarray:
    field = np.full((height, width, 2), np.nan, np.float32)
    for i in range(height):
        for j in range(width):
            best = -np.inf
            for n, (x, y) in enumerate(keypoints0):
                column, row = (
                    math.floor(x + 0.5),
                    math.floor(y + 0.5),
                )  # the nearest pixel, the right one of two
                if max(abs(column - j), abs(row - i)) <= radius and scores[n] > best:
                    best = scores[n]
                    field[i, j] = keypoints1[n] - keypoints0[n]
    return field


@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_propagate_is_its_definition(data: st.DataObject) -> None:
    height, width = data.draw(st.integers(1, 12)), data.draw(st.integers(1, 12))
    count = data.draw(st.integers(0, 6))
    rng = np.random.default_rng(data.draw(st.integers(0, 2**32 - 1)))
    # Quarter pixels: some matches fall on centres, some at exactly the radius, some outside.
    start = rng.integers(-16, 64, (count, 2)) / 4.0
    end = rng.normal(0, 5, (count, 2))
    scores = rng.integers(0, 3, count).astype(float)  # ties are frequent
    radius = data.draw(st.sampled_from([0, 1, 2.5, 8]))
    expected = propagate_by_definition(start, end, scores, height, width, radius)
    np.testing.assert_array_equal(propagate(start, end, scores, height, width, radius), expected)


def test_propagate_reaches_exactly_eight_pixels() -> None:
    field = propagate(np.array([[20.0, 10.0]]), np.array([[23.0, 6.0]]), np.ones(1), 40, 60)
    rows, columns = np.nonzero(np.isfinite(field).all(axis=2))
    assert (rows.min(), rows.max(), columns.min(), columns.max()) == (2, 18, 12, 28)
    assert len(rows) == 17 * 17
    assert (field[2:19, 12:29] == (3, -4)).all()


def test_propagate_ignores_matches_that_are_not_finite() -> None:
    start = np.array([[2.0, 2.0], [np.nan, 2.0], [2.0, 2.0]])
    end = np.array([[3.0, 2.0], [2.0, 2.0], [np.inf, 2.0]])
    field = propagate(start, end, np.array([0.0, 1.0, 2.0]), 4, 4)
    assert (field == (1, 0)).all()


def test_the_originals_corner_four_is_pixel_four() -> None:
    field = propagate(np.array([[19.5, 3.5]]), np.array([[23.0, 6.0]]), np.ones(1), 40, 60)
    rows, columns = np.nonzero(np.isfinite(field).all(axis=2))
    assert (rows.min(), rows.max(), columns.min(), columns.max()) == (0, 12, 12, 28)


def test_propagate_refuses_unequal_lengths() -> None:
    start = np.zeros((7000, 2))
    scores = np.zeros(7000)
    with pytest.raises(DeepMatchingError, match="7000 and 7000 keypoints and 3 scores"):
        propagate(start, start, np.zeros(3), 10, 10)
    with pytest.raises(DeepMatchingError, match=r"\(N,2\)"):
        propagate(start.T, start.T, scores, 10, 10)


def test_accuracy_counts_by_hand() -> None:
    truth = np.zeros((1, 6, 2), np.float32)
    truth[0, 5] = np.nan  # no ground truth: does not count
    found = np.zeros_like(truth)
    found[0, :, 0] = [0, 2, 3, 10, np.nan, 0]  # errors 0, 2 (exactly), 3, 10 (exactly), no match
    assert accuracy(found, truth) == {2: 2 / 5, 5: 3 / 5, 10: 4 / 5}
    mask = np.array([[1, 0, 0, 0, 1, 1]])
    assert accuracy(found, truth, thresholds=(2,), mask=mask) == {2: 1 / 2}
    assert np.isnan(accuracy(found, np.full_like(truth, np.nan))[5])


def test_accuracy_uses_the_euclidean_norm() -> None:
    found = np.full((2, 2, 2), (3.0, 4.0), np.float32)
    assert accuracy(found, np.zeros_like(found), (4.999, 5)) == {4.999: 0.0, 5: 1.0}


def test_accuracy_refuses_other_sizes() -> None:
    with pytest.raises(DeepMatchingError, match="size of the first image"):
        accuracy(np.zeros((2, 3, 2)), np.zeros((3, 2, 2)))
    with pytest.raises(DeepMatchingError, match="mask"):
        accuracy(np.zeros((2, 3, 2)), np.zeros((2, 3, 2)), mask=np.ones((3, 2)))
    with pytest.raises(DeepMatchingError, match=r"\(H,W,2\)"):
        accuracy(np.zeros((2, 3)), np.zeros((2, 3)))


def test_coverage() -> None:
    field = np.zeros((2, 2, 2))
    field[0, 0, 1] = np.nan
    assert coverage(field) == 3 / 4
    assert coverage(field, mask=np.array([[1, 1], [0, 0]])) == 1 / 2
    assert np.isnan(coverage(field, mask=np.zeros((2, 2))))


def test_endpoint_error_takes_the_nearest_pixel_and_ignores_the_unknown() -> None:
    truth = np.zeros((4, 5, 2))
    truth[1, 2] = (10.0, 0.0)
    truth[3, 3] = np.nan
    start = np.array([[2.4, 1.4], [2.5, 1.0], [3.0, 3.0], [-0.6, 0.0], [4.49, 0.0], [np.nan, 0.0]])
    moved = np.array([[10.0, 3.0], [0.0, 5.0], [9.0, 9.0], [9.0, 9.0], [1.0, 0.0], [0.0, 0.0]])
    # Used: the pixel (2,1) with error 3, the pixel (3,1) with error 5, the pixel (4,0) with error 1.
    assert endpoint_error_of_matches(start, start + moved, truth) == pytest.approx(3.0)
    assert np.isnan(endpoint_error_of_matches(np.zeros((0, 2)), np.zeros((0, 2)), truth))


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
