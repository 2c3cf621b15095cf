"""Rotations and scales at a reduced size."""

from dataclasses import replace
from functools import cache

import numpy as np
import pytest

from deepmatching import DeepMatcher
from deepmatching.geometry.homographies import apply, centre, inside, similarity
from deepmatching.network.network import Network
from deepmatching.search import candidates, verification
from deepmatching.search.candidates import Candidate, try_all
from deepmatching.search.settings import SETTINGS
from deepmatching.search.transformations import Transformation
from deepmatching.search.verification import find_transformations
from helpers.synthetic_pictures import draw_photo

SIZE = (160, 208)


@cache
def network() -> Network:
    return DeepMatcher.from_pretrained(device="cpu").network


def photo(seed: int) -> np.ndarray:
    return draw_photo(seed, *SIZE).astype(np.float32) / 255


def share_right(candidate: Candidate, matrix: np.ndarray) -> float:
    off = np.hypot(*(apply(matrix, candidate.points0) - candidate.points1).T)
    return float((off < candidate.spacing / 2).mean())


@pytest.mark.parametrize("rotation", [90, 180])
def test_the_true_rotation_is_the_best_candidate_and_its_matches_are_in_pixels_of_both_images(rotation: int) -> None:
    picture = photo(1)
    second = np.ascontiguousarray(np.rot90(picture, -rotation // 90))
    matrix = similarity(rotation, 1, centre(SIZE), centre(second.shape[:2]))
    best = try_all((picture, second), network(), [(0.0, 1.0), (90.0, 1.0), (180.0, 1.0), (90.0, 0.5)])[0]
    assert best.agreement > 0.8 and share_right(best, matrix) > 0.95


@pytest.mark.parametrize(
    ("first", "second", "area"),
    [
        ((800, 640), (800, 640), 10_000),  # large images: the same number
        ((384, 600), (384, 600), 384 * 600 / 33),  # smaller ones: a fraction
        ((400, 400), (200, 800), 6_000),  # but not too few; images of different shapes have a mean
    ],
)
def test_small_images_are_reduced_to_fewer_pixels(first: tuple[int, int], second: tuple[int, int], area: float) -> None:
    assert candidates.reduced_area((np.zeros((*first, 3)), np.zeros((*second, 1)))) == pytest.approx(area)


@pytest.mark.parametrize("rotation", [0.0, 22.5, 45.0, 90.0, 135.0, 300.0])
def test_a_turned_image_loses_at_most_its_corners(rotation: float) -> None:
    rows, columns = 90, 120
    whole, frame = (
        candidates._bounding((rows, columns), rotation),
        candidates._bounding((rows, columns), rotation, SETTINGS.border_crop),
    )
    turn = similarity(rotation, 1, centre((rows, columns)), centre(whole))
    points = np.stack(np.meshgrid(np.arange(columns), np.arange(rows)), axis=2).reshape(-1, 2).astype(float)
    assert inside(apply(turn, points), whole).all()
    turn = similarity(rotation, 1, centre((rows, columns)), centre(frame))
    assert inside(apply(turn, points), frame).mean() >= (1 if rotation % 90 == 0 else 0.955)
    assert frame[0] * frame[1] <= 1.56 * rows * columns


def test_few_candidates_are_looked_at_if_they_fail(monkeypatch: pytest.MonkeyPatch) -> None:
    looks: list[int] = []
    monkeypatch.setattr(verification, "refine", lambda *_: looks.append(1))
    monkeypatch.setattr(verification, "on_planes", lambda *_: [])
    agreeing = [Candidate(*_affine_matches(n), 0.5, 8.0) for n in range(6)]
    monkeypatch.setattr(verification, "try_all", lambda *_: agreeing)
    find_transformations((photo(5), photo(6)), network(), [(0.0, 1.0)], 80)
    assert len(looks) == SETTINGS.max_failed_candidates


def _affine_matches(seed: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Points, where a rotation takes them, and weights."""
    points = np.random.default_rng(seed).uniform(20, 140, (40, 2))
    return points, apply(similarity(30 + 40 * seed, 1, (80.0, 80.0), (80.0, 80.0)), points), np.ones(40)


def test_only_the_rotations_whose_matches_agree_most_get_a_confidence(monkeypatch: pytest.MonkeyPatch) -> None:
    picture = photo(2)
    images = picture, np.ascontiguousarray(np.rot90(picture, 2))
    tried = [(0.0, 1.0), (90.0, 1.0), (180.0, 1.0)]
    everything = try_all(images, network(), tried)
    monkeypatch.setattr(candidates, "SETTINGS", replace(SETTINGS, num_scored=1))
    (best,) = try_all(images, network(), tried)
    assert len(everything) == 3 and np.array_equal(best.points1, everything[0].points1)
    assert np.allclose(best.weights, everything[0].weights) and best.weights.max() < 1


def test_a_pair_that_is_explained_without_a_transformation_is_not_searched(monkeypatch: pytest.MonkeyPatch) -> None:
    picture = photo(4)

    def fail(*_: object) -> list[Candidate]:
        raise AssertionError

    monkeypatch.setattr(verification, "try_all", fail)
    (model,) = find_transformations((picture, np.roll(picture, 2, 1)), network(), [(0.0, 1.0), (90.0, 1.0)], 80)
    assert np.array_equal(model.matrix, np.eye(3)) and model.support > 0.95
    with pytest.raises(AssertionError):
        find_transformations(
            (picture, picture[:-8]), network(), [(0.0, 1.0)], 80
        )  # what is cut off may have gone elsewhere


def test_a_plane_of_sparse_features_is_found_with_less_support(monkeypatch: pytest.MonkeyPatch) -> None:
    points, ends, weights = _affine_matches(1)
    matrix = similarity(70, 1, (80.0, 80.0), (80.0, 80.0))
    weak = Transformation(matrix, points, ends, weights, 8.0, round(len(points) / 0.1))
    monkeypatch.setattr(verification, "check", lambda *_, **__: weak)
    candidate, images = Candidate(points, ends, weights, 0.5, 8.0), (photo(5), photo(6))
    for planar in (True, False):
        found: list[Transformation] = []
        verification._add(found, [candidate], images, network(), planar)
        assert bool(found) == planar
