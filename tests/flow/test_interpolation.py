"""Interpolation: motions that it must reproduce, and malformed input."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from deepmatching.errors import DeepMatchingError
from deepmatching.flow import PRESETS, Interpolation, InterpolationSettings, interpolate
from deepmatching.flow.confidence import probability
from deepmatching.flow.filters import MatchTensors
from deepmatching.flow.interpolation import sparse_to_dense
from helpers.volumes import blobs

quick = settings(max_examples=30, deadline=None)
presets = st.sampled_from(sorted(PRESETS))


def grid(height: int, width: int, step: int = 8) -> np.ndarray:
    """Points at 3.5, 11.5, …, as the matcher's."""
    y, x = np.mgrid[step // 2 : height : step, step // 2 : width : step] - 0.5
    return np.stack([x.ravel(), y.ravel()], axis=1)


def edges_of(seed: int, height: int = 48, width: int = 64) -> np.ndarray:
    return np.random.default_rng(seed).uniform(0, 1, (height, width)).astype(np.float32) ** 4


@quick
@given(st.integers(0, 2**31), presets, st.integers(-40, 40), st.integers(-40, 40), st.sampled_from(["affine", "mean"]))
def test_constant_motion_is_reproduced_exactly(seed: int, name: str, u: int, v: int, model: str) -> None:
    points = grid(48, 64)
    chosen = replace(PRESETS[name].interpolation, model=model)
    flow = interpolate(points, np.add(points, (u / 8, v / 8)), edges_of(seed), settings=chosen).flow
    assert flow.dtype == np.float32 and flow.shape == (48, 64, 2)
    assert (flow == np.float32([u / 8, v / 8])).all()


@quick
@given(st.integers(0, 2**31), st.lists(st.floats(-0.1, 0.1), min_size=4, max_size=4), presets)
def test_affine_motion_is_reproduced(seed: int, gradient: list[float], name: str) -> None:
    """Sub-pixel positions included: to a hundredth of a pixel, because of the ridge."""
    points = grid(96, 128)
    matrix = np.reshape(gradient, (2, 2))
    end, edges = points + points @ matrix.T + (3, -2), edges_of(seed, 96, 128)
    flow = interpolate(points, end, edges, settings=PRESETS[name].interpolation).flow
    y, x = np.mgrid[:96, :128]
    expected = np.stack([x, y], axis=2) @ matrix.T + (3, -2)
    np.testing.assert_allclose(flow, expected, atol=0.01)


def test_two_motions_do_not_mix_across_an_edge() -> None:
    points = grid(64, 96)
    edges = np.zeros((64, 96), dtype=np.float32)
    edges[:, 50] = 20.0  # as if there were many edges one after the other
    end = points + np.where(points[:, :1] < 50, (6, 0), (-3, 1))
    flow = interpolate(points, end, edges, settings=PRESETS["sintel"].interpolation).flow
    np.testing.assert_allclose(flow[:, :50], np.broadcast_to([6, 0], (64, 50, 2)), atol=1e-4)
    np.testing.assert_allclose(flow[:, 51:], np.broadcast_to([-3, 1], (64, 45, 2)), atol=1e-4)


def test_the_higher_the_contrast_the_less_a_weak_edge_parts_what_is_near() -> None:
    """A pixel is nearer to the left match, with a weak edge between them, and a little further from the right one."""
    edges = np.zeros((9, 41), dtype=np.float32)
    edges[:, 12:15] = 0.3
    points, end = np.array([[5.0, 4.0], [35.0, 4.0]]), np.array([[6.0, 4.0], [33.0, 4.0]])
    common = InterpolationSettings("mean", neighbours=1, saliency=0, group=0, consistency=0, camera=0)
    moved = [interpolate(points, end, edges, settings=replace(common, contrast=c)).flow[4, 18, 0] for c in (1.0, 6.0)]
    assert moved == [-2, 1]


def test_outliers_are_dropped() -> None:
    points = grid(64, 96)
    targets = np.add(points, (2, 1))
    wrong = np.array([5, 17, 18, 60])
    targets[wrong] += (25, -30)
    found = interpolate(points, targets, np.full((64, 96), 0.05))
    assert not set(wrong) & set(found.kept.tolist())
    assert (found.flow == np.float32([2, 1])).all()


def test_matches_that_do_not_lead_back_are_dropped_and_backward_ones_that_are_not_finite_ignored() -> None:
    points, edges = grid(64, 96), np.full((64, 96), 0.05)
    targets = np.add(points, (4, 0))
    back = targets.copy()
    back[::2] = np.nan
    assert (interpolate(points, targets, edges, backward=(back, points)).flow == np.float32([4, 0])).all()
    occluded, back = points[:, 0] > 60, points[points[:, 0] < 70]
    targets[occluded] = points[occluded] - (9, 0)
    assert (interpolate(points, targets, edges, backward=(back, back - (4, 0))).flow == np.float32([4, 0])).all()


def test_tiny_weights_do_not_underflow() -> None:
    points = grid(64, 96)
    end, edges, weights = np.add(points, (4, 0)), np.full((64, 96), 0.05), np.where(points[:, 0] < 48, 1.0, 1e-200)
    for each in PRESETS.values():
        found = interpolate(points, end, edges, weights=weights, settings=each.interpolation)
        assert (found.flow == np.float32([4, 0])).all()


def test_of_two_matches_in_a_pixel_the_better_or_heavier_stays() -> None:
    start, end, edges = [[2, 2], [2.1, 2]], [[3, 2], [4.1, 2]], np.zeros((5, 5))
    assert interpolate(start, end, edges).kept.tolist() == [0]
    assert interpolate(start, end, edges, weights=[1e-6, 1]).kept.tolist() == [1]
    assert interpolate(start, end, edges, weights=[1e-6, 1], scores=[2, 1]).kept.tolist() == [0]


def test_one_match_moves_everything() -> None:
    found = interpolate([[10.2, 3.0]], [[12.2, 2.0]], np.zeros((20, 30)))
    np.testing.assert_allclose(found.flow, np.broadcast_to([2, -1], (20, 30, 2)), atol=1e-6)
    assert found.kept.tolist() == [0]


@quick
@given(st.data(), presets)
def test_never_nan(data: st.DataObject, name: str) -> None:
    """Few matches, duplicates, collinear ones, off the image, not finite: a finite flow, or an error that says why."""
    coordinate = st.sampled_from([0.0, 3.0, 3.5, 7.0, 15.0, -0.5, 19.5, -30.0, 500.0, float("nan"), float("inf")])
    number = data.draw(st.integers(0, 12))

    def each(values: st.SearchStrategy) -> st.SearchStrategy:
        return st.lists(values, min_size=number, max_size=number)

    points = np.array(data.draw(each(st.tuples(*[coordinate] * 4)))).reshape(-1, 4)
    scores = data.draw(st.none() | each(st.sampled_from([1.0, 2.0, 0.0, np.nan])))
    weights = data.draw(st.none() | each(st.sampled_from([1.0, 1e-9, 0.0])))
    image = torch.zeros(1, 20, 16) if data.draw(st.booleans()) else None
    more = {"scores": scores, "weights": weights, "settings": PRESETS[name].interpolation}
    try:
        found = interpolate(points[:, :2], points[:, 2:], edges_of(0, 20, 16), image, **more)
    except DeepMatchingError:
        inside = np.isfinite(points).all(axis=1) & ((points[:, :2] > -1) & (points[:, :2] < (16, 20))).all(axis=1)
        inside &= np.isfinite(np.ones(number) if scores is None else scores)
        assert not (inside & (np.ones(number) if weights is None else np.array(weights) > 0).astype(bool)).any()
    else:
        assert np.isfinite(found.flow).all() and np.isfinite(found.spread).all()


def test_the_differentiable_flow_is_the_same() -> None:
    generator = np.random.default_rng(4)
    points = generator.uniform(0, (64, 48), (30, 2))
    targets = points + generator.normal(0, 1, (30, 2))
    weights = torch.from_numpy(generator.uniform(0.5, 1, 30)).requires_grad_()
    found: Interpolation = interpolate(points, targets, edges_of(4), weights=weights.detach())
    start, end = (torch.from_numpy(a).requires_grad_() for a in (points, targets))
    flow = found.differentiable(start, end, weights)
    np.testing.assert_allclose(flow.detach(), found.flow, atol=1e-4)
    flow.square().mean().backward()
    kept = torch.from_numpy(found.kept)
    for tensor in (start, end, weights):
        assert tensor.grad is not None and torch.isfinite(tensor.grad).all() and tensor.grad[kept].any()
    dropped = torch.ones(30, dtype=torch.bool)
    dropped[kept] = False
    assert not end.grad[dropped].any()


ONE = [[1, 1]], [[2, 2]], np.zeros((5, 5))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((*ONE, {"scores": [np.nan]}), "has a finite score"),
        ((*ONE, {"scores": [1], "weights": [0]}), "has a positive weight"),
        ((*ONE, {"scores": [1, 2, 3]}), "1 matches and 3 scores"),
        ((*ONE, {"backward": (ONE[0], ONE[0] * 5)}), "must correspond"),
        (([[0, 0]], [[0, 0], [1, 1]], np.zeros((5, 5))), "1 keypoints in one image and 2"),
        (([[0, 0, 0]], [[0, 0, 0]], np.zeros((5, 5))), "array \\(N,2\\)"),
        (([[0, 0]], [[0, 0]], np.zeros(5)), "edge map must be"),
        (([[0, 0]], [[0, 0]], np.full((5, 5), np.nan)), "edge map must not contain"),
        (([[0, 0]], [[0, 0]], np.full((5, 5), -1.0)), "edge map must not contain"),
        ((*ONE, {"image0": torch.zeros(1, 4, 5)}), "make the edge map from this image"),
        (([], [], np.zeros((5, 5))), "no matches, so there is nothing"),
        (([[0, 0]], [[0, 0]], np.full((5, 5), 1e37)), "edge map must not contain"),
        (([["a", "b"]], [["a", "b"]], np.zeros((5, 5))), "must be arrays of numbers"),
        (([[9, 0]], [[0, 0]], np.zeros((5, 5))), "^No match starts in the image"),
        (([[0, 0]], [[1e200, 0]], np.zeros((5, 5))), "^No match starts in the image"),
    ],
)
def test_errors_say_what_is_wrong(arguments: tuple, message: str) -> None:
    with pytest.raises(DeepMatchingError, match=message):
        interpolate(*arguments[:3], **dict(*arguments[3:]))


def test_matches_of_low_confidence_are_dropped_and_the_round_trip_is_not_asked() -> None:
    start = grid(40, 56)
    end = np.add(start, (2, 1))
    wrong = np.arange(len(start)) % 5 == 0
    end = end + 9.0 * wrong[:, None]
    edges = np.zeros((40, 56), np.float32)
    chosen = InterpolationSettings(consistency=0, group=0, saliency=0, confidence=0.6)
    nowhere = np.zeros((1, 2)), np.full((1, 2), 30.0)  # no match leads back
    found = interpolate(start, end, edges, confidence=np.where(wrong, 0.59, 0.6), backward=nowhere, settings=chosen)
    assert np.array_equal(found.kept, np.flatnonzero(~wrong))
    np.testing.assert_allclose(found.flow, np.broadcast_to([2.0, 1.0], found.flow.shape), atol=1e-4)
    unjudged = interpolate(start, end, edges, settings=chosen)
    classic = interpolate(start, end, edges, confidence=np.zeros(len(start)), settings=replace(chosen, confidence=0))
    assert len(unjudged.kept) == len(classic.kept) == len(start)
    all_low = interpolate(start, end, edges, confidence=np.zeros(len(start)), settings=chosen)
    assert len(all_low.kept) == len(start)  # a filter that would drop all matches is skipped


def test_at_least_a_fraction_of_the_matches_is_kept_the_most_confident_ones() -> None:
    start = grid(40, 56)
    confidence = np.linspace(0, 0.5, len(start))
    chosen = InterpolationSettings(consistency=0, group=0, saliency=0, confidence=0.6, least_kept=0.25)
    found = interpolate(start, np.add(start, (2, 1)), np.zeros((40, 56)), confidence=confidence, settings=chosen)
    assert np.array_equal(found.kept, np.arange(len(start))[-math.ceil(len(start) / 4) :])


def test_a_confident_match_weighs_more_than_a_doubtful_one() -> None:
    start = grid(40, 56)
    end = np.add(start, (2, 1))
    middle = len(start) // 2
    end[middle] += 4
    chosen = InterpolationSettings(consistency=0, group=0, saliency=0, confidence=0.1)
    errors = []
    for doubtful in (0.9, 0.2):
        confidence = np.full(len(start), 0.9)
        confidence[middle] = doubtful
        flow = interpolate(start, end, np.zeros((40, 56)), confidence=confidence, settings=chosen).flow
        errors.append(np.abs(flow - [2, 1]).mean())
    assert errors[1] < 0.7 * errors[0]


@settings(max_examples=15, deadline=None)
@given(st.integers(0, 2**31), presets, st.booleans())
def test_shapes_that_do_not_depend_on_values_give_the_same_flow(seed: int, name: str, is_weighted: bool) -> None:
    generator = np.random.default_rng(seed)
    start = grid(48, 64)
    shift = np.array([3.0, -2.0]) + 0.05 * start + generator.normal(0, 0.3, start.shape)
    shift += (generator.random(len(start)) < 0.2)[:, None] * generator.normal(0, 15, start.shape)
    there, scores = start + generator.uniform(-3, 3, start.shape), generator.uniform(1, 3, len(start)).round(1)
    counts = generator.random((2, len(start))) < 0.9
    arrays = (start, start + shift, scores, counts[0], scores / 3), (there + 3, there, scores, counts[1])
    forward, backward = (MatchTensors(*(torch.from_numpy(array) for array in each)) for each in arrays)
    weights = torch.from_numpy(generator.uniform(0.1, 1, len(start))) if is_weighted else None
    image = blobs(seed, 1, 3, 48, 64)[0]
    given_to_both = torch.from_numpy(edges_of(seed)), image, backward, PRESETS[name].interpolation
    expected = sparse_to_dense(forward, *given_to_both, weights)
    found = sparse_to_dense(forward, *given_to_both, weights, fixed_shapes=True)
    assert torch.equal(found.numbers[found.counts], expected.numbers)
    np.testing.assert_allclose(found.flow, expected.flow, atol=1e-5)
    likely = [probability(each.flow, each.source, image, image) for each in (found, expected)]
    np.testing.assert_allclose(*likely, atol=1e-5)


def test_without_matches_that_count_fixed_shapes_give_a_finite_flow() -> None:
    points = torch.from_numpy(grid(48, 64))
    nothing = MatchTensors(points, points, points[:, 0], torch.zeros(len(points), dtype=torch.bool))
    found = sparse_to_dense(nothing, torch.from_numpy(edges_of(1)), fixed_shapes=True)
    assert not found.counts.any() and torch.isfinite(found.flow).all()
