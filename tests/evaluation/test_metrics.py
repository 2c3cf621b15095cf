"""The metrics against their definitions, spelled out pixel by pixel."""

import math
from functools import partial
from typing import get_args

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from deepmatching.errors import DeepMatchingError
from deepmatching.evaluation.metrics import (
    accuracy,
    area_under_roc,
    average_precision,
    endpoint_error_of_matches,
    endpoint_metrics,
    flow_metrics,
    match_metrics,
    propagate,
    reliability,
)
from deepmatching.matches import Matches
from deepmatching.settings import Rank


def propagate_by_definition(
    keypoints0: np.ndarray, keypoints1: np.ndarray, scores: np.ndarray, height: int, width: int, radius: float
) -> np.ndarray:
    field = np.full((height, width, 2), np.nan, np.float32)
    for i, j in np.ndindex(height, width):
        best = -np.inf
        for n, (x, y) in enumerate(keypoints0):
            column, row = math.floor(x + 0.5), math.floor(y + 0.5)  # the nearest pixel, the right one of two
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


def test_the_originals_corner_four_is_pixel_four() -> None:
    start = np.array([[19.5, 3.5], [np.nan, 2.0], [19.5, 3.5]])  # what is not finite is no match
    end = np.array([[23.0, 6.0], [2.0, 2.0], [np.inf, 2.0]])
    field = propagate(start, end, np.array([0.0, 1.0, 2.0]), 40, 60)
    rows, columns = np.nonzero(np.isfinite(field).all(axis=2))
    assert (rows.min(), rows.max(), columns.min(), columns.max()) == (0, 12, 12, 28)


def test_propagate_refuses_unequal_lengths() -> None:
    start = np.zeros((7, 2))
    with pytest.raises(DeepMatchingError, match="7 and 7 keypoints and 3 scores"):
        propagate(start, start, np.zeros(3), 10, 10)
    with pytest.raises(DeepMatchingError, match=r"\(N, 2\)"):
        propagate(start.T, start.T, np.zeros(7), 10, 10)


def test_accuracy_counts_by_hand() -> None:
    truth = np.zeros((1, 6, 2), np.float32)
    truth[0, 5] = np.nan  # no ground truth: does not count
    found = np.zeros_like(truth)
    found[0, :, 0] = [0, 2, 0, 10, np.nan, 0]  # errors 0, 2 (exactly), 3, 10 (exactly), no match
    found[0, 2] = (1.8, 2.4)
    assert accuracy(found, truth) == {2: 2 / 5, 5: 3 / 5, 10: 4 / 5}
    mask = np.array([[1, 0, 0, 0, 1, 1]])
    assert accuracy(found, truth, thresholds=(2,), mask=mask) == {2: 1 / 2}
    assert np.isnan(accuracy(found, np.full_like(truth, np.nan))[5])


def test_endpoint_error_takes_the_nearest_pixel_and_ignores_the_unknown() -> None:
    truth = np.zeros((4, 5, 2))
    truth[1, 2] = (10.0, 0.0)
    truth[3, 3] = np.nan
    start = np.array([[2.4, 1.4], [2.5, 1.0], [3.0, 3.0], [-0.6, 0.0], [4.49, 0.0], [np.nan, 0.0]])
    moved = np.array([[10.0, 3.0], [0.0, 5.0], [9.0, 9.0], [9.0, 9.0], [1.0, 0.0], [0.0, 0.0]])
    # Used: the pixel (2,1) with error 3, the pixel (3,1) with error 5, the pixel (4,0) with error 1.
    assert endpoint_error_of_matches(start, start + moved, truth) == pytest.approx(3.0)
    assert np.isnan(endpoint_error_of_matches(np.zeros((0, 2)), np.zeros((0, 2)), truth))


def endpoint_metrics_by_definition(flow: np.ndarray, truth: np.ndarray, mask: np.ndarray) -> dict[str, float]:
    errors: dict[str, list[float]] = {"epe": [], "err@3": [], "fl": [], "s0-10": [], "s10-40": [], "s40+": []}
    for found, true in zip(flow[mask].tolist(), truth[mask].tolist(), strict=True):
        if not any(map(math.isnan, true)):
            error, speed = math.dist(found, true), math.hypot(*true)
            errors["epe"].append(error)
            errors["err@3"].append(100 * (error > 3))
            errors["fl"].append(100 * (error > 3 and error / max(speed, 1e-9) > 0.05))
            errors["s0-10" if speed < 10 else "s10-40" if speed <= 40 else "s40+"].append(error)
    return {name: sum(values) / len(values) if values else math.nan for name, values in errors.items()}


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 2**31), speed=st.sampled_from([0.1, 8, 30, 100]), error=st.sampled_from([0.5, 3, 20]))
def test_endpoint_metrics_are_their_definition(seed: int, speed: float, error: float) -> None:
    rng = np.random.default_rng(seed)
    truth = rng.normal(0, speed, (6, 7, 2)).astype(np.float32)
    flow = truth + rng.normal(0, error, truth.shape).astype(np.float32)
    flow[0, 0] = truth[0, 0] + [3, 0]  # 3 px exactly is not above 3 px
    truth[rng.random((6, 7)) < 0.2] = np.nan
    mask = rng.random((6, 7)) < rng.choice([0.0, 0.5, 1.0])
    found = endpoint_metrics(flow, truth, mask)
    expected = endpoint_metrics_by_definition(flow, truth, mask)
    for name, value in expected.items():
        assert found[name] == pytest.approx(value, nan_ok=True)
    assert found["pixels"] == (mask & np.isfinite(truth).all(axis=2)).sum()
    assert found["pixels"] == sum(found[f"pixels {name}"] for name in ("s0-10", "s10-40", "s40+"))


def test_visible_and_occluded_pixels_make_up_all() -> None:
    rng = np.random.default_rng(0)
    truth, flow = rng.normal(0, 9, (2, 8, 9, 2))
    occluded = rng.random((8, 9)) < 0.3
    metrics = flow_metrics(flow, truth, occluded)
    assert list(metrics) == ["all", "noc", "occ"]
    noc, occ = metrics["noc"], metrics["occ"]
    total = noc["epe"] * noc["pixels"] + occ["epe"] * occ["pixels"]
    assert metrics["all"]["epe"] * 72 == pytest.approx(total) and noc["pixels"] + occ["pixels"] == 72
    assert list(flow_metrics(flow, truth)) == ["all"]


def test_stated_occlusion_is_measured_where_the_truth_is_known() -> None:
    rng = np.random.default_rng(0)
    truth = rng.normal(0, 9, (8, 9, 2))
    truth[:4] = np.nan
    occluded = rng.random((8, 9)) < 0.3
    stated = np.where(occluded, 0.9, 0.1)
    stated[:4] = 1 - stated[:4]
    assert flow_metrics(np.nan_to_num(truth), truth, occluded, stated)["all"]["occlusion"] == 100
    for masks, map_of in ((None, stated), (occluded, None), (np.zeros_like(occluded), stated)):
        assert math.isnan(flow_metrics(np.nan_to_num(truth), truth, masks, map_of)["all"]["occlusion"])


def test_a_flow_with_holes_or_of_another_size_is_refused() -> None:
    truth, flow = np.zeros((4, 5, 2)), np.zeros((4, 5, 2))
    flow[2, 2, 1] = np.nan
    with pytest.raises(DeepMatchingError, match=r"unknown .NaN. at 1 pixels"):
        endpoint_metrics(flow, truth)
    truth[2, 2] = np.nan  # where the truth is unknown, the flow may be, too
    assert endpoint_metrics(flow, truth)["epe"] == 0
    for other, against, mask, words in (
        (flow[:3], truth, None, "size of the first image"),
        (flow[..., 0], truth[..., 0], None, r"\(H, W, 2\)"),
        (flow, truth, np.ones((5, 4)), "mask"),
    ):
        for measure in (endpoint_metrics, partial(accuracy, thresholds=(2,))):
            with pytest.raises(DeepMatchingError, match=words):
                measure(other, against, mask=mask)  # type: ignore[operator]


@pytest.fixture
def matches() -> Matches:
    """Three matches: right, 4 px wrong, and far wrong."""
    start = np.array([[4.0, 4.0], [30.0, 4.0], [50.0, 4.0]], np.float32)
    moved = np.array([[3.0, 0.0], [7.0, 0.0], [3.0, 40.0]], np.float32)
    return Matches(start, start + moved, np.array([1.0, 0.5, 0.2], np.float32), (9, 60), (9, 60))


def test_match_metrics_by_hand(matches: Matches) -> None:
    truth = np.full((9, 60, 2), (3.0, 0.0), np.float32)
    metrics, field = match_metrics(matches, truth)
    # Columns 0 to 12 are right, 22 to 38 off by 4 px, 42 to 58 off by 40 px; the others take nothing.
    assert metrics["all"]["acc@2"] == pytest.approx(100 * 13 / 60)
    assert metrics["all"]["acc@5"] == metrics["all"]["acc@10"] == pytest.approx(100 * 30 / 60)
    assert metrics["all"]["epe"] == pytest.approx(44 / 3)
    assert metrics["all"]["coverage"] == pytest.approx(100 * 47 / 60)
    assert metrics["all"]["matches"] == 3
    assert field[0, 0].tolist() == [3, 0] and np.isnan(field[0, 15]).all()


def test_a_pixel_takes_the_match_of_the_highest_score_or_confidence() -> None:
    start = torch.tensor([[10.0, 10.0], [12.0, 10.0]])
    end, scores, confidence = start + torch.tensor([[0.0], [9.0]]), torch.tensor([2.0, 1.0]), torch.tensor([0.1, 0.9])
    matches = Matches(start, end, scores, confidence=confidence)
    of = {rank: match_metrics(matches, np.zeros((20, 20, 2)), rank=rank)[1][10, 11, 0] for rank in get_args(Rank)}
    assert of == {"score": 0, "confidence": 9}


def test_match_metrics_of_visible_and_occluded_pixels(matches: Matches) -> None:
    truth = np.full((9, 60, 2), (3.0, 0.0), np.float32)
    occluded = np.zeros((9, 60), bool)
    occluded[:, 20:] = True
    metrics, _ = match_metrics(matches, truth, occluded)
    assert metrics["noc"]["acc@2"] == pytest.approx(100 * 13 / 20) and metrics["occ"]["acc@2"] == 0
    assert metrics["noc"]["epe"] == 0 and metrics["occ"]["epe"] == pytest.approx(22)
    assert metrics["noc"]["matches"] == 1 and metrics["occ"]["matches"] == 2
    assert metrics["occ"]["coverage"] == pytest.approx(100 * 34 / 40)
    nothing, _ = match_metrics(matches, truth, np.zeros((9, 60), bool))
    assert math.isnan(nothing["occ"]["acc@2"]) and nothing["noc"] == nothing["all"]


def test_without_spread_a_pixel_takes_its_own_match() -> None:
    rng = np.random.default_rng(0)
    flow = rng.normal(0, 5, (7, 8, 2)).astype(np.float32)
    points = np.stack(np.meshgrid(np.arange(8), np.arange(7)), axis=2).reshape(-1, 2).astype(np.float32)
    order = rng.permutation(len(points))
    own = Matches(points[order], (points + flow.reshape(-1, 2))[order], rng.random(len(points)), (7, 8), (7, 8))
    metrics, field = match_metrics(own, flow, spread=0)
    np.testing.assert_allclose(field, flow, atol=1e-5)
    assert metrics["all"]["acc@2"] == 100


def test_a_match_spreads_by_its_transformation() -> None:
    start, table = torch.tensor([[10.0, 12.0], [30.0, 12.0]]), torch.eye(3).repeat(2, 1, 1)
    table[1] = torch.tensor([[0.0, -2.0, 70.0], [2.0, 0.0, -20.0], [0.0, 0.0, 1.0]])  # a quarter turn, zoomed by 2
    end = torch.stack([start[0] + 1, (table[1] @ torch.tensor([30.0, 12.0, 1.0]))[:2]])
    matches = Matches(start, end, torch.ones(2), transformation=torch.tensor([0, 1]), transformations=table)
    x, y = np.meshgrid(np.arange(40.0), np.arange(24.0))
    truth = np.where((x < 20)[..., None], 1.0, np.stack([70 - 2 * y - x, 2 * x - 20 - y], axis=2))
    metrics, field = match_metrics(matches, truth)
    near = np.isfinite(field[..., 0])
    assert near.sum() == 17 * 17 * 2
    assert np.allclose(field[near], truth[near], atol=1e-4)
    assert metrics["all"]["acc@2"] == pytest.approx(100 * near.mean())


@given(st.lists(st.tuples(st.integers(0, 5), st.booleans()), min_size=1, max_size=40))
def test_the_area_is_the_fraction_of_pairs_in_order(values: list[tuple[int, bool]]) -> None:
    scores, right = (np.array(column) for column in zip(*values, strict=True))
    good, bad = scores[right], scores[~right]
    if not len(good) or not len(bad):
        assert math.isnan(area_under_roc(scores, right))
        return
    wins = (good[:, None] > bad).sum() + 0.5 * (good[:, None] == bad).sum()
    assert area_under_roc(scores, right) == pytest.approx(wins / (len(good) * len(bad)))


@given(st.lists(st.tuples(st.sampled_from([0.1, 0.2, 0.5, 0.9]), st.booleans()), min_size=1))
def test_the_average_precision_is_that_of_its_definition(values: list[tuple[float, bool]]) -> None:
    scores, positive = (np.array(column) for column in zip(*values, strict=True))
    if not positive.any():
        assert math.isnan(average_precision(scores, positive))
        return
    expected, before = 0.0, 0.0
    for threshold in sorted(set(scores), reverse=True):
        passes = scores >= threshold
        recall = (passes & positive).sum() / positive.sum()
        expected += (recall - before) * (passes & positive).sum() / passes.sum()
        before = recall
    assert average_precision(scores, positive) == pytest.approx(expected)


def test_reliability_compares_what_is_stated_with_what_is_true() -> None:
    table = reliability(np.array([0.05, 0.05, 0.95, 1.0, 0.95]), np.array([False, True, True, True, False]))
    assert table[0] == (2, pytest.approx(0.05), 0.5)
    assert table[9] == (3, pytest.approx((0.95 + 1 + 0.95) / 3), pytest.approx(2 / 3))
    assert [row[0] for row in table[1:9]] == [0] * 8 and math.isnan(table[4][1])
