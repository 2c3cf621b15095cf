"""Confidence, and a comparison of the whole way from matches to flow with the original."""

import json
import re
from pathlib import Path

import cv2
import numpy as np
import pytest
import torch

from deepmatching.flow import PRESETS, confidence, interpolate, refine
from deepmatching.flow.confidence import WEIGHTS, WEIGHTS_WITHOUT_POINTS, evidence, probability
from deepmatching.io.flow import read_flow
from deepmatching.io.images import load_image


def grid(height: int, width: int) -> np.ndarray:
    y, x = np.mgrid[4:height:8, 4:width:8] - 0.5
    return np.stack([x.ravel(), y.ravel()], axis=1)


Pair = tuple[np.ndarray, np.ndarray]


def judged(start: np.ndarray, end: np.ndarray, pair: Pair, edges: np.ndarray, preset: str = "default") -> np.ndarray:
    """Return the confidence of a refined flow."""
    images = [load_image(image) for image in pair]
    found = interpolate(start, end, edges, images[0], settings=PRESETS[preset].interpolation)
    return confidence(refine(found.flow, *images, PRESETS[preset].refinement), found, *images)


def test_confidence_falls_with_distance_and_disagreement(pair: Pair) -> None:
    points = grid(64, 96)
    points = points[points[:, 0] < 48]
    generator = np.random.default_rng(0)
    calm = points[:, 1] < 32
    targets = np.add(points, (6, -4)) + np.where(calm[:, None], 0, generator.normal(0, 2, points.shape))
    sure = judged(points, targets, pair, np.full((64, 96), 0.05), "sintel")
    assert np.isfinite(sure).all() and sure.min() >= 0 and sure.max() <= 1
    assert sure[16:24, 8:40].mean() > sure[40:56, 8:40].mean()  # matches disagree below
    assert sure[16:24, 8:40].mean() > sure[16:24, 80:].mean()  # there are none on the right


@pytest.mark.slow
@pytest.mark.parametrize("name", ["sintel_clean_alley_1", "flyingchairs_0000001", "middlebury_flow_RubberWhale"])
def test_the_flow_equals_the_originals(shared: Path, name: str) -> None:
    """From the original's matches and edges: its errors within 2 %, and its flow to about a hundredth of a pixel.

    The original measures its matches from pixel corners, but interpolates them as if from pixel centres.
    """
    folder = shared / "oracle" / "epicflow" / name
    info = json.loads((folder / "info.json").read_text())
    images = [load_image(shared / "flow" / info[key]) for key in ("image0", "image1")]
    preset = PRESETS[info["preset"]]
    entries = json.loads((shared / "flow" / "manifest.json").read_text())
    entry = next(e for e in entries if (e["image0"], e["image1"]) == (info["image0"], info["image1"]))
    truth = read_flow(shared / "flow" / entry["flow"])
    edges = cv2.imread(str(folder / "edges.png"), cv2.IMREAD_UNCHANGED) / np.float32(65535)
    matches = np.loadtxt(folder / "matches.txt")
    interpolated = interpolate(matches[:, :2], matches[:, 2:4], edges, images[0], settings=preset.interpolation).flow
    refined = refine(interpolated, *images, preset.refinement).numpy()
    for found, stage in ((interpolated, "interpolation"), (refined, "flow")):
        original = np.load(folder / f"{stage}.npz")["flow"]
        errors = [np.nanmean(np.hypot(*(flow - truth).reshape(-1, 2).T)) for flow in (found, original)]
        assert errors[0] == pytest.approx(errors[1], rel=0.02)
        difference = np.hypot(*(found - original).reshape(-1, 2).T)
        assert np.median(difference) < 0.012  # the original's is stored in 1/64 of a pixel
        assert difference.mean() < 0.03


def test_a_lone_match_or_one_that_leaves_the_image_has_low_confidence(pair: Pair) -> None:
    flat = np.zeros((64, 96), dtype=np.float32)
    assert judged(np.array([[20.0, 20]]), np.array([[40.0, 30]]), pair, flat).max() < 0.7
    points = grid(64, 96)
    assert judged(points, np.add(points, (6, -4)), pair, flat)[16:-16, 16:-16].min() > 0.9
    assert judged(points, np.add(points, (1e5, 0)), pair, flat).max() < 0.2


def test_confidence_does_not_show_the_grid_of_matches(pair: Pair) -> None:
    """It is as high between matches 8 pixels apart as at the matches, and lower further away."""
    points = grid(64, 96)
    points = points[points[:, 0] < 50]
    still = (np.zeros_like(pair[0]), np.zeros_like(pair[0]))
    sure = judged(points, points, still, np.zeros((64, 96), dtype=np.float32))
    assert np.ptp(sure[8:-8, 8:44]) < np.ptp(sure[8:-8]) / 10


def test_confidence_falls_at_edges(pair: Pair) -> None:
    points = grid(64, 96)
    edges = np.zeros((64, 96), dtype=np.float32)
    edges[:, 48] = 1
    sure = judged(points, np.add(points, (6, -4)), pair, edges)
    assert sure[24:40, 48].mean() < sure[24:40, 30].mean()


def test_unmatched_points_lower_the_confidence_around_them_and_nowhere_else(pair: Pair) -> None:
    points = grid(64, 96)
    images = [load_image(image) for image in pair]
    found = interpolate(points, np.add(points, (6, -4)), np.zeros((64, 96), dtype=np.float32), images[0])
    unmatched = torch.zeros(8, 12)
    unmatched[4, 3] = 0.5
    arguments = torch.from_numpy(found.flow), found.source, *images
    calm, doubted = (probability(*arguments, each) for each in (torch.zeros(8, 12), unmatched))
    near = torch.zeros(64, 96, dtype=torch.bool)
    near[12:60, 4:52] = True  # up to 2.5 points away, and what lies between two points
    assert torch.equal(doubted[~near], calm[~near])
    assert (doubted[20:52, 12:44] < calm[20:52, 12:44]).all()


def test_the_window_of_unmatched_points_ends_with_the_image(pair: Pair) -> None:
    """Points that do not exist are neither matched nor unmatched."""
    points = grid(64, 96)
    images = [load_image(image) for image in pair]
    found = interpolate(points, points, np.zeros((64, 96), dtype=np.float32), images[0])
    last = evidence(torch.from_numpy(found.flow), found.source, *images, torch.full((8, 12), 0.3))[-1]
    torch.testing.assert_close(last, torch.full((64, 96), 0.3))


@pytest.mark.parametrize("has_points", [True, False])
def test_the_formula_is_that_of_the_docstring(pair: Pair, has_points: bool) -> None:
    start = grid(64, 96)
    end = np.add(start, (6, -4)) + np.random.default_rng(0).normal(0, 1, start.shape)
    images = [load_image(image) for image in pair]
    found = interpolate(start, end, np.full((64, 96), 0.1), images[0])
    unmatched = torch.rand(8, 12, generator=torch.Generator().manual_seed(0)) if has_points else None
    arguments = torch.from_numpy(found.flow), found.source, *images, unmatched
    formula = (probability.__doc__ or "").split("without reference points")[0 if has_points else 1]
    number = r"(\d+\.\d+)"
    constant, *weights = (
        float(text) for text in re.findall(rf"exp\(−\({number}|− {number}", formula) for text in text if text
    )
    logit = constant - sum(w * values for w, values in zip(weights, evidence(*arguments), strict=True))
    torch.testing.assert_close(probability(*arguments), logit.sigmoid())


def test_all_evidence_counts_against_a_flow() -> None:
    assert max(WEIGHTS[1:]) < 0 and max(WEIGHTS_WITHOUT_POINTS[1:]) < 0
