"""Flow of images that are turned or zoomed."""

from dataclasses import replace

import cv2
import numpy as np
import pytest
import torch

from deepmatching import DeepMatcher, Matches
from deepmatching.data.datasets.pairs import homography_flow
from deepmatching.flow import FlowSettings, RefinementSettings, matches_to_flow
from deepmatching.flow.warped_images import views_of
from deepmatching.geometry.homographies import apply, centre, inside, similarity
from deepmatching.search.transformations import tensor_of
from helpers.synthetic_pictures import draw_photo

SIZE = (120, 160)
PLANE = np.array([[0.5, -0.8, 95.0], [0.75, 0.55, -35.0], [3e-4, -2e-4, 1.0]])
GRID = np.stack(np.meshgrid(np.arange(3.5, SIZE[1], 8), np.arange(3.5, SIZE[0], 8)), axis=2).reshape(-1, 2)


def photo(seed: int, size: tuple[int, int] = SIZE) -> np.ndarray:
    return draw_photo(seed, *size).astype(np.float32) / 255


def seen(picture: np.ndarray, matrix: np.ndarray) -> np.ndarray:
    return np.clip(cv2.warpPerspective(picture, matrix, picture.shape[1::-1], flags=cv2.INTER_CUBIC), 0, 1)


def matches_of(*parts: tuple[np.ndarray, np.ndarray], noise: float = 0.0) -> Matches:
    """Return matches from the points of each part, as its transformation says; exact but for some noise."""
    generator = np.random.default_rng(0)
    start = np.concatenate([points for points, _ in parts])
    end = np.concatenate([apply(matrix, points) for points, matrix in parts])
    numbers = np.repeat(np.arange(len(parts)), [len(points) for points, _ in parts])
    kept = inside(end, SIZE)
    end = end + generator.normal(0, noise, end.shape)
    floats = (torch.from_numpy(points[kept].astype(np.float32)) for points in (start, end))
    ones, table = torch.ones(int(kept.sum())), np.stack([matrix for _, matrix in parts]).astype(np.float32)
    return Matches(*floats, ones, SIZE, SIZE, ones, torch.from_numpy(numbers[kept]), torch.from_numpy(table))


def mean_error(flow: np.ndarray, matrix: np.ndarray, where: np.ndarray | None = None) -> float:
    truth = homography_flow(matrix, *SIZE, *SIZE)
    counted = np.isfinite(truth[..., 0]) & (True if where is None else where)
    return float(np.hypot(*(flow - truth)[counted].T).mean())


@pytest.mark.parametrize("channels", [(3, 3), (1, 3)])
def test_exact_matches_of_a_plane_have_its_exact_flow(channels: tuple[int, int]) -> None:
    picture = photo(1)
    images = (tensor_of(image)[:count] for image, count in zip((picture, seen(picture, PLANE)), channels, strict=True))
    result = matches_to_flow(matches_of((GRID, PLANE)), *images, FlowSettings(), "gradient")
    assert mean_error(result.flow, PLANE) < 0.2
    assert np.isfinite(result.flow).all()


def test_refinement_lowers_the_error_of_a_turned_pair() -> None:
    picture = photo(2)
    images = tensor_of(picture), tensor_of(seen(picture, PLANE))
    matches = matches_of((GRID, PLANE), noise=1.0)
    unrefined = FlowSettings(refinement=RefinementSettings(steps=0))
    before, after = (matches_to_flow(matches, *images, s, "gradient").flow for s in (unrefined, FlowSettings()))
    assert mean_error(after, PLANE) < 0.8 * mean_error(before, PLANE)


def test_two_parts_that_turn_differently_keep_their_own_flow() -> None:
    left = GRID[:, 0] < 80
    turns = [similarity(turn, 1, np.array([x, 60.0]), np.array([x, 60.0])) for turn, x in ((120.0, 40.0), (0.0, 120.0))]
    picture = photo(3)
    parts = [seen(picture, matrix) for matrix in turns]
    second = np.where(np.arange(SIZE[1])[:, None] < 80, parts[0], parts[1])
    edges = np.zeros(SIZE, np.float32)
    edges[:, 79:81] = 1
    matches = matches_of((GRID[left], turns[0]), (GRID[~left], turns[1]))
    result = matches_to_flow(matches, tensor_of(picture), tensor_of(second), FlowSettings(), edges)
    for matrix, x in zip(turns, (40, 120), strict=True):
        near = np.hypot(*np.meshgrid(np.arange(SIZE[1]) - x, np.arange(SIZE[0]) - 60)) < 34
        assert mean_error(result.flow, matrix, near) < 0.5


def test_matches_without_a_transformation_need_no_views() -> None:
    upright = matches_of((GRID, np.eye(3)))
    degenerate = replace(matches_of((GRID, PLANE)), transformations=torch.zeros(1, 3, 3))
    for matches in (upright, replace(upright, transformation=None, transformations=None), degenerate):
        assert views_of(matches, *(torch.rand(3, *SIZE),) * 2) is None


def test_a_horizon_has_a_finite_flow() -> None:
    matrix = np.array([[1.0, 0, 0], [0, 1.0, 0], [-0.012, 0, 1.0]])
    near = GRID[GRID[:, 0] < 60]
    result = matches_to_flow(matches_of((near, matrix)), *(torch.rand(3, *SIZE),) * 2, FlowSettings(), "gradient")
    assert np.isfinite(result.flow).all() and np.isfinite(result.confidence).all()


@pytest.mark.slow
def test_the_flow_of_a_turned_pair_needs_a_search_and_that_of_an_upright_pair_is_the_same_with_it() -> None:
    picture = photo(5)
    turned = np.ascontiguousarray(np.rot90(picture, 2))
    matrix = similarity(180, 1, centre(SIZE), centre(SIZE))
    plain, searching = (
        DeepMatcher.from_pretrained(device="cpu", **s) for s in ({"auto": False}, {"rotations": (0, 180)})
    )
    without, found = (matcher.flow(picture, turned, edges="gradient") for matcher in (plain, searching))
    assert mean_error(found.flow, matrix) < 0.5 < 10 < mean_error(without.flow, matrix)
    assert found.agreement > 0.5 and "matching" in found.seconds
    upright = [matcher.flow(picture, np.roll(picture, 3, 1), edges="gradient") for matcher in (plain, searching)]
    assert np.array_equal(upright[0].flow, upright[1].flow)
    assert upright[1].occlusion is not None


@pytest.mark.slow
def test_the_flow_of_reduced_turned_images_is_that_of_their_own_size() -> None:
    picture = photo(6, (240, 320))
    matcher = DeepMatcher.from_pretrained(device="cpu", rotations=(0, 180), max_size=160)
    result = matcher.flow(picture, np.ascontiguousarray(np.rot90(picture, 2)), edges="gradient")
    truth = homography_flow(similarity(180, 1, centre((240, 320)), centre((240, 320))), 240, 320, 240, 320)
    assert result.flow.shape == (240, 320, 2)
    assert np.hypot(*(result.flow - truth).transpose(2, 0, 1)).mean() < 1
