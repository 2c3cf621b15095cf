import cv2
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from edge_network.evaluation import count_pixels, pair_pixels, summarise, suppress_non_maxima, thin

THRESHOLDS = np.array([0.25, 0.5, 0.75])
needs_thinning = pytest.mark.skipif(not hasattr(cv2, "ximgproc"), reason="this OpenCV has no contrib modules")


@pytest.mark.slow
@settings(max_examples=60, deadline=None)
@given(
    maps=arrays(np.bool_, (2, 9, 11), elements=st.booleans() | st.just(False) | st.just(False)),
    distance=st.sampled_from([0.5, 1.0, 1.5, 2.3, 4.34]),
)
def test_no_larger_set_of_pairs_exists(maps: np.ndarray, distance: float) -> None:
    csgraph = pytest.importorskip("scipy.sparse.csgraph")
    from scipy.sparse import csr_array

    first, second = maps
    a, b = np.argwhere(first), np.argwhere(second)
    near = np.linalg.norm(a[:, None] - b[None], axis=2) <= distance
    expected = (csgraph.maximum_bipartite_matching(csr_array(near)) >= 0).sum() if near.any() else 0
    paired_first, paired_second = pair_pixels(first, second, distance)
    assert paired_first.sum() == paired_second.sum() == expected
    assert not (paired_first & ~first).any() and not (paired_second & ~second).any()


def test_pixels_that_have_a_partner_keep_one() -> None:
    """The nearest first: what is at distance 0 stays paired whatever is around it."""
    first, second = np.random.default_rng(0).random((2, 40, 50)) < 0.3
    for paired in pair_pixels(first, second, 3.0):
        assert paired[first & second].all()


def test_augmenting_paths_are_found_where_the_nearest_partner_is_the_wrong_one() -> None:
    """o x o x in a row: x–o at distance 1 leaves the outer two, too far apart, alone."""
    first, second = np.zeros((1, 8), bool), np.zeros((1, 8), bool)
    first[0, [0, 3]], second[0, [2, 5]] = True, True  # nearest: 3–2; best: 0–2 and 3–5
    assert pair_pixels(first, second, 2.0)[0].sum() == 2


@needs_thinning
def test_a_line_within_the_tolerance_is_perfect_and_beyond_it_worthless() -> None:
    truth = np.zeros((1, 100, 100), bool)
    truth[0, 10:90, 50] = True
    for shift, expected in ((0, 1.0), (1, 1.0), (2, 0.0)):  # 0.0075 of the diagonal is 1.06 pixels
        edges = np.roll(truth[0], shift, axis=1).astype(np.float32)
        scores = summarise(count_pixels(edges, truth, THRESHOLDS)[None], THRESHOLDS)
        assert scores.ods == scores.ois == pytest.approx(expected)


@needs_thinning
def test_recall_counts_every_annotator_and_precision_any() -> None:
    truth = np.zeros((2, 40, 40), bool)
    truth[0, 5:35, 10], truth[1, 5:35, 30] = True, True
    edges = truth[0].astype(np.float32)
    matched_truth, all_truth, matched_edges, all_edges = count_pixels(edges, truth, THRESHOLDS)[0]
    assert matched_truth / all_truth == 0.5 and matched_edges == all_edges == 30


def test_scores_of_a_worked_example() -> None:
    """Two images, two thresholds: R = P in each, so F = R."""
    counts = np.array([[[9, 10, 9, 10], [4, 10, 4, 10]], [[2, 10, 2, 10], [6, 10, 6, 10]]])
    scores = summarise(counts, np.array([0.3, 0.6]))
    assert scores.ods == pytest.approx(0.55) and scores.threshold == 0.3
    assert scores.ois == pytest.approx(0.75)


@pytest.mark.parametrize("angle", np.linspace(0, np.pi, 8, endpoint=False))
def test_a_ridge_of_any_direction_becomes_a_line_on_its_crest(angle: float) -> None:
    y, x = np.mgrid[:80, :80] - 40.0
    distance = np.cos(angle) * x + np.sin(angle) * y + 0.2
    ridges = suppress_non_maxima(np.exp(-(distance**2) / 18).astype(np.float32))
    inside = np.hypot(x, y) < 28
    assert np.abs(distance)[inside & (ridges > 0.1)].max() < 1.2
    assert np.abs(distance)[inside & (ridges > 0.9)].size >= 50  # no gaps along 56 pixels


def test_edges_on_the_rim_are_faded() -> None:
    edges = np.zeros((60, 60), np.float32)
    edges[:, 0] = edges[:, 30] = 1
    ridges = suppress_non_maxima(edges)
    assert ridges[20:40, 0].max() == 0 and ridges[20:40, 30].min() > 0.4


@needs_thinning
def test_thinning_keeps_lines_and_peels_bars() -> None:
    bar = np.zeros((30, 30), bool)
    bar[5:25, 10:15] = True
    skeleton = thin(bar)
    assert 10 <= skeleton.sum() <= 20 and not (skeleton & ~bar).any()
    np.testing.assert_array_equal(thin(skeleton), skeleton)
