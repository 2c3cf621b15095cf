"""The way of matches forward and back."""

import numpy as np
import pytest

from deepmatching.geometry.cycles import cycle_errors

GRID = np.stack(np.meshgrid(np.arange(4.0, 100, 8), np.arange(4.0, 80, 8)), axis=2).reshape(-1, 2)
MATRIX = np.array([[1.1, 0.1], [-0.05, 0.95]])
MOTION = np.array([5.0, 3.0])
ONES = np.ones(len(GRID))


def forward(points: np.ndarray) -> np.ndarray:
    return points @ MATRIX.T + (3, -2)


def backward(points: np.ndarray) -> np.ndarray:
    return (points - (3, -2)) @ np.linalg.inv(MATRIX).T


def test_an_affine_motion_leads_back() -> None:
    errors = cycle_errors(GRID, forward(GRID), GRID, backward(GRID), ONES)
    inner = (np.abs(GRID - (50, 40)) < 25).all(axis=1)
    assert errors.dtype == np.float32 and errors[inner].max() < 0.2


def test_a_match_that_is_off_ends_as_far_from_its_start() -> None:
    ends = GRID + MOTION
    ends[40] += (12, 0)
    errors = cycle_errors(GRID, ends, GRID, GRID - MOTION, ONES)
    assert errors[40] == pytest.approx(12, abs=0.01)
    assert np.delete(errors, 40).max() < 1e-3


def test_one_wrong_backward_match_does_not_spoil_the_way_of_its_neighbours() -> None:
    back = GRID - MOTION
    back[40] += (60, -30)
    assert cycle_errors(GRID, GRID + MOTION, GRID, back, ONES).max() < 1.0


def test_what_can_be_trusted_decides() -> None:
    first, second = np.array([[10.0, 10]]), np.array([[12.0, 10]])
    starts, ends = np.array([[12.0, 10], [12, 10]]), np.array([[10.0, 10], [14, 10]])
    sure = [cycle_errors(first, second, starts, ends, np.array(each)).item() for each in ([1.0, 0.01], [0.01, 1.0])]
    assert sure[0] < 0.1 and sure[1] > 3.9


@pytest.mark.parametrize("count", [0, 1, 3])
def test_few_backward_matches_are_enough_and_none_lead_nowhere(count: int) -> None:
    errors = cycle_errors(GRID, GRID + 2, GRID[:count], GRID[:count] - 2, ONES[:count])
    assert np.allclose(errors, 0, atol=1e-3) if count else (errors == 1e6).all()


def test_without_matches_there_are_no_errors() -> None:
    assert cycle_errors(GRID[:0], GRID[:0], GRID, GRID, ONES).shape == (0,)
