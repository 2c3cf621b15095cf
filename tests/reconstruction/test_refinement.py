"""Local affine maps of matches."""

import numpy as np
import pytest

from deepmatching.reconstruction.refinement import MAX_DISAGREEMENT, Field, fit, refine, reverse

STEP = 8.0


def grid(rows: int = 12, columns: int = 15) -> np.ndarray:
    return np.stack(np.meshgrid(np.arange(columns), np.arange(rows)), axis=-1).reshape(-1, 2) * STEP + 4


def affine(points: np.ndarray) -> np.ndarray:
    """Return a displacement that changes by 2 % to 5 % of the distance."""
    return points @ np.array([[0.03, -0.02], [0.05, 0.04]]) + (7.0, -3.0)


def test_an_affine_field_stays_as_it_is_up_to_the_ridge() -> None:
    points = grid()
    inside = ((points > 2 * STEP) & (points < points.max(axis=0) - 2 * STEP)).all(axis=1)
    moved = refine(points, points + affine(points), np.ones(len(points)), STEP)
    np.testing.assert_allclose(moved[inside], (points + affine(points))[inside], atol=1e-6)


def test_refinement_halves_the_noise() -> None:
    points, generator = grid(30, 30), np.random.default_rng(0)
    noisy = points + affine(points) + generator.normal(0, 0.3, points.shape)
    moved = refine(points, noisy, np.ones(len(points)), STEP)
    errors = [np.sqrt(((found - points - affine(points)) ** 2).mean()) for found in (noisy, moved)]
    assert errors[1] < 0.6 * errors[0]


def test_a_match_that_disagrees_stays_and_does_not_pull_its_neighbours() -> None:
    points = grid()
    targets = points + 5.0
    targets[len(points) // 2] += 3 * MAX_DISAGREEMENT * STEP
    np.testing.assert_allclose(refine(points, targets, np.ones(len(points)), STEP), targets, atol=1e-9)


def test_reversed_matches_are_those_of_the_inverse_map() -> None:
    points, generator = grid(), np.random.default_rng(0)
    targets = points + affine(points)
    wanted = generator.uniform(targets.min(axis=0) + 2 * STEP, targets.max(axis=0) - 2 * STEP, (200, 2))
    points0, points1, scores = reverse(points, targets, np.full(len(points), 3.0), STEP, wanted)
    assert len(points0) > 150
    np.testing.assert_allclose(points0 + affine(points0), points1, atol=0.1)
    np.testing.assert_allclose(scores, 3.0)


def test_points_far_from_all_matches_and_between_two_motions_get_none() -> None:
    points = grid()
    far = points.max(axis=0, keepdims=True) + 3 * STEP
    assert not fit(Field(points, points * 0, np.ones(len(points)), STEP), far)[2].any()
    random = np.random.default_rng(0).uniform(-40, 40, points.shape)
    assert fit(Field(points, random, np.ones(len(points)), STEP), points + 2)[2].mean() < 0.05


@pytest.mark.parametrize(("matches", "points"), [(0, 5), (5, 0), (1, 1)])
def test_few_matches_are_no_problem(matches: int, points: int) -> None:
    field = Field(grid()[:matches], grid()[:matches], np.ones(matches), STEP)
    displacements, _, is_reliable = fit(field, grid()[:points])
    assert displacements.shape == (points, 2) and not is_reliable.any()
