"""Figures of one pair against their definitions, pixel by pixel."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from deepmatching.errors import DeepMatchingError
from deepmatching.evaluation import flow_figures, flow_metrics, match_figures
from deepmatching.matches import Matches


def flow_metrics_by_definition(flow: np.ndarray, truth: np.ndarray, mask: np.ndarray) -> dict[str, float]:
    errors: dict[str, list[float]] = {"epe": [], "err@3": [], "fl": [], "s0-10": [], "s10-40": [], "s40+": []}
    for i in range(truth.shape[0]):
        for j in range(truth.shape[1]):
            if not mask[i, j] or math.isnan(truth[i, j, 0]) or math.isnan(truth[i, j, 1]):
                continue
            error = math.dist(flow[i, j].tolist(), truth[i, j].tolist())
            speed = math.hypot(*truth[i, j].tolist())
            errors["epe"].append(error)
            errors["err@3"].append(100 * (error > 3))
            errors["fl"].append(100 * (error > 3 and error / max(speed, 1e-9) > 0.05))
            errors["s0-10" if speed < 10 else "s10-40" if speed <= 40 else "s40+"].append(error)
    return {name: sum(values) / len(values) if values else math.nan for name, values in errors.items()}


@settings(max_examples=40, deadline=None)
@given(
    seed=st.integers(0, 2**31), speed=st.sampled_from([0.1, 8.0, 30.0, 100.0]), error=st.sampled_from([0.5, 3.0, 20])
)
def test_flow_metrics_are_their_definition(seed: int, speed: float, error: float) -> None:
    rng = np.random.default_rng(seed)
    truth = rng.normal(0, speed, (6, 7, 2)).astype(np.float32)
    flow = truth + rng.normal(0, error, truth.shape).astype(np.float32)
    truth[rng.random((6, 7)) < 0.2] = np.nan
    mask = rng.random((6, 7)) < rng.choice([0.0, 0.5, 1.0])
    found = flow_metrics(flow, truth, mask)
    expected = flow_metrics_by_definition(flow, truth, mask)
    for name, value in expected.items():
        assert found[name] == pytest.approx(value, nan_ok=True)
    assert found["pixels"] == (mask & np.isfinite(truth).all(axis=2)).sum()
    assert found["pixels"] == sum(found[f"pixels {name}"] for name in ("s0-10", "s10-40", "s40+"))


def test_fl_forgives_errors_that_are_small_beside_the_motion() -> None:
    truth = np.zeros((1, 4, 2), np.float32)
    truth[0, :, 0] = [0, 100, 100, 10]
    flow = truth + np.float32([[[4, 0], [4, 0], [6, 0], [3, 0]]])
    figures = flow_metrics(flow, truth)
    assert figures["err@3"] == 75 and figures["fl"] == 50  # 3 px exactly is not above 3 px
    assert figures["epe"] == 17 / 4


def test_visible_and_occluded_pixels_make_up_all() -> None:
    rng = np.random.default_rng(0)
    truth, flow = rng.normal(0, 9, (2, 8, 9, 2))
    occluded = rng.random((8, 9)) < 0.3
    figures = flow_figures(flow, truth, occluded)
    assert list(figures) == ["all", "noc", "occ"]
    noc, occ = figures["noc"], figures["occ"]
    total = noc["epe"] * noc["pixels"] + occ["epe"] * occ["pixels"]
    assert figures["all"]["epe"] * 72 == pytest.approx(total) and noc["pixels"] + occ["pixels"] == 72
    assert list(flow_figures(flow, truth)) == ["all"]


def test_a_flow_with_holes_or_of_another_size_is_refused() -> None:
    truth, flow = np.zeros((4, 5, 2)), np.zeros((4, 5, 2))
    flow[2, 2, 1] = np.nan
    with pytest.raises(DeepMatchingError, match=r"unknown .NaN. at 1 pixels"):
        flow_metrics(flow, truth)
    truth[2, 2] = np.nan  # where the truth is unknown, the flow may be, too
    assert flow_metrics(flow, truth)["epe"] == 0
    with pytest.raises(DeepMatchingError, match="size of the first image"):
        flow_metrics(flow[:3], truth)


@pytest.fixture
def matches() -> Matches:
    """Three matches: right, 4 px wrong, and far wrong."""
    start = np.array([[4.0, 4.0], [30.0, 4.0], [50.0, 4.0]], np.float32)
    moved = np.array([[3.0, 0.0], [7.0, 0.0], [3.0, 40.0]], np.float32)
    return Matches(start, start + moved, np.array([1.0, 0.5, 0.2], np.float32), (9, 60), (9, 60))


def test_match_figures_by_hand(matches: Matches) -> None:
    truth = np.full((9, 60, 2), (3.0, 0.0), np.float32)
    figures, field = match_figures(matches, truth)
    # Columns 0 to 12 are right, 22 to 38 off by 4 px, 42 to 58 off by 40 px; the others take nothing.
    assert figures["all"]["acc@2"] == pytest.approx(100 * 13 / 60)
    assert figures["all"]["acc@5"] == figures["all"]["acc@10"] == pytest.approx(100 * 30 / 60)
    assert figures["all"]["epe"] == pytest.approx(44 / 3)
    assert figures["all"]["coverage"] == pytest.approx(100 * 47 / 60)
    assert figures["all"]["matches"] == 3
    assert field[0, 0].tolist() == [3, 0] and np.isnan(field[0, 15]).all()


def test_match_figures_of_visible_and_occluded_pixels(matches: Matches) -> None:
    truth = np.full((9, 60, 2), (3.0, 0.0), np.float32)
    occluded = np.zeros((9, 60), bool)
    occluded[:, 20:] = True
    figures, _ = match_figures(matches, truth, occluded)
    assert figures["noc"]["acc@2"] == pytest.approx(100 * 13 / 20) and figures["occ"]["acc@2"] == 0
    assert figures["noc"]["epe"] == 0 and figures["occ"]["epe"] == pytest.approx(22)
    assert figures["noc"]["matches"] == 1 and figures["occ"]["matches"] == 2
    assert figures["occ"]["coverage"] == pytest.approx(100 * 34 / 40)
    nothing, _ = match_figures(matches, truth, np.zeros((9, 60), bool))
    assert math.isnan(nothing["occ"]["acc@2"]) and nothing["noc"] == nothing["all"]


def test_without_spread_a_pixel_takes_its_own_match() -> None:
    rng = np.random.default_rng(0)
    flow = rng.normal(0, 5, (7, 8, 2)).astype(np.float32)
    points = np.stack(np.meshgrid(np.arange(8), np.arange(7)), axis=2).reshape(-1, 2).astype(np.float32)
    order = rng.permutation(len(points))
    own = Matches(points[order], (points + flow.reshape(-1, 2))[order], rng.random(len(points)), (7, 8), (7, 8))
    figures, field = match_figures(own, flow, spread=0)
    np.testing.assert_allclose(field, flow, atol=1e-5)
    assert figures["all"]["acc@2"] == 100


def test_no_matches_are_all_wrong() -> None:
    empty = Matches(np.zeros((0, 2)), np.zeros((0, 2)), np.zeros(0), (9, 9), (9, 9))
    figures, _ = match_figures(empty, np.zeros((9, 9, 2)))
    assert figures["all"]["acc@10"] == 0 and figures["all"]["coverage"] == 0 and math.isnan(figures["all"]["epe"])
