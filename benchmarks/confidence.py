"""The confidence of a flow: fit its logistic regression, and measure how reliable it is.

    python benchmarks/confidence.py MANIFEST.json [--model compact] [--radius 160] [--cache DIR] [--stated]

With --stated: by data set, how often the flow of a matcher is right, how often its confidence says so, and the
area under the ROC curve, means over pairs. Else, the logistic regression of the interpolated flow. The manifest and the
cache are then those of ``benchmarks/flow.py``. Prints the weights fitted to all data sets, for
``deepmatching.flow.confidence``; for each data set, the area under the ROC curve with weights fitted to the others; and
for the shipped weights, the EPE of the more confident half of the pixels, and the calibration error: the mean
difference of stated and true probability in ten bins. Data sets have equal weight; KITTI 2015 counts as KITTI 2012.
"""

import argparse
from pathlib import Path

import numpy as np
import torch
from rich.console import Console
from rich.progress import track
from rich.table import Table

import deepmatching as dm
from deepmatching.data.datasets import Pair
from deepmatching.evaluation.metrics import area_under_roc
from deepmatching.evaluation.report import print_table
from deepmatching.flow import adapt_to_model, preset, refine
from deepmatching.flow.confidence import CONSTANT, WEIGHTS, evidence
from deepmatching.flow.edges import detect_edges
from deepmatching.settings import CORRECT_WITHIN, PRESET
from flow import add_common_options, cached_matches, interpolated, pairs_with_flow

PIXELS = 20_000  #: sampled from each pair for the regression


def probabilities(features: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """Return the stated probabilities (N,) for features (N, F)."""
    return 1 / (1 + np.exp(-features @ weights))


def fit(features: np.ndarray, right: np.ndarray, importance: np.ndarray) -> np.ndarray:
    """Return the weights (F,) of a logistic regression of ``right`` (N,) on weighted features (N, F)."""
    weights = np.zeros(features.shape[1])
    for _ in range(30):  # Newton's method
        p = probabilities(features, weights)
        curvature = (features * (importance * p * (1 - p))[:, None]).T @ features
        weights += np.linalg.solve(curvature + 1e-6 * np.eye(len(weights)), features.T @ (importance * (right - p)))
    return weights


def measure(pair: Pair, matcher: dm.DeepMatcher, cache: Path | None, name: str) -> np.ndarray:
    """Return a row for every pixel with ground truth: 1, the evidence, and the error, (N, 6)."""
    images = [pair.image0, pair.image1]
    matches = cached_matches(matcher, images[0], images[1], cache, name)
    backward, settings = None, preset(PRESET)
    if matches.confidence is None:
        backward = cached_matches(matcher, images[1], images[0], cache, f"{name}_back").numpy()[:2]
    settings = adapt_to_model(settings, matches.confidence is not None, has_dense=False)
    found = interpolated(matches, detect_edges(images[0]), images[0], settings, backward)
    flow, truth = refine(found.flow, images[0], images[1]).numpy(), pair.flow.numpy()
    known = np.isfinite(truth).all(axis=2)
    dense = torch.as_tensor(flow)
    columns = [values.numpy()[known] for values in evidence(dense, found.source, *images)]
    return np.stack([np.ones(len(columns[0])), *columns, np.hypot(*(flow[known] - truth[known]).T)], axis=1)


def print_stated(manifest: Path, matcher: dm.DeepMatcher) -> None:
    """Print by data set how often flow is right, how often its confidence says so, and how well that ranks pixels."""
    sets: dict[str, list[tuple[float, float, float]]] = {}
    for entry in track(pairs_with_flow(manifest), "flow", console=Console(stderr=True)):
        pair = entry.read()
        result, truth = matcher.flow(pair.image0, pair.image1), pair.flow.numpy()
        known = np.isfinite(truth).all(axis=2)
        right = np.hypot(*(result.flow - truth)[known].T) < CORRECT_WITHIN
        stated = result.confidence[known]
        sets.setdefault(entry.group, []).append((right.mean(), stated.mean(), area_under_roc(stated, right)))
    table = Table("data set", "pairs", "right", "stated", "area under the ROC curve")
    for name, values in sets.items():
        right, stated, area = np.nanmean(values, axis=0)
        table.add_row(name, str(len(values)), f"{100 * right:.1f} %", f"{100 * stated:.1f} %", f"{area:.2f}")
    print_table(table)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("manifest", type=Path)
    add_common_options(parser)
    parser.add_argument("--stated", action="store_true", help="of the flow as it is given out, without a fit")
    options = parser.parse_args()
    if options.stated:
        print_stated(options.manifest, dm.DeepMatcher.from_pretrained(options.model, device=options.device))
        return
    matcher = dm.DeepMatcher.from_pretrained(options.model, radius=options.radius, device=options.device)
    matcher = matcher.for_flow()
    if options.cache:
        options.cache.mkdir(parents=True, exist_ok=True)

    generator = np.random.default_rng(0)
    sets: dict[str, list[np.ndarray]] = {}  # all pixels of each pair
    rows, groups, pairs = [], [], []  # of the sampled pixels
    for n, entry in enumerate(track(pairs_with_flow(options.manifest), "flow", console=Console(stderr=True))):
        name = f"{options.model}_{options.radius}_{n:03d}"
        values = measure(entry.read(), matcher, options.cache, name)
        sets.setdefault(entry.group, []).append(values)
        sample = values[generator.choice(len(values), min(PIXELS, len(values)), replace=False)]
        rows.append(sample)
        groups += [entry.group.replace("kitti2015", "kitti2012")] * len(sample)
        pairs += [n] * len(sample)
    data, group, pair = np.concatenate(rows), np.array(groups), np.array(pairs)
    features, right = data[:, :-1], data[:, -1] < CORRECT_WITHIN
    _, number, counts = np.unique(group, return_inverse=True, return_counts=True)
    importance = 1 / counts[number]

    print("fitted to all:", np.round(fit(features, right, importance), 2), "shipped:", (CONSTANT, *WEIGHTS))
    table = Table("left out", "area under the ROC curve")
    areas = []
    for name in dict.fromkeys(groups):
        others = group != name
        stated = probabilities(features, fit(features[others], right[others], importance[others]))
        areas.append(np.nanmean([area_under_roc(stated[pair == n], right[pair == n]) for n in set(pair[~others])]))
        table.add_row(name, f"{areas[-1]:.3f}")
    table.add_row("mean", f"{np.mean(areas):.3f}")
    print_table(table)

    table = Table("data set", "EPE", "EPE of the confident half", "calibration error", title="the shipped weights")
    shipped = np.array([CONSTANT, *WEIGHTS])
    for name, parts in sets.items():
        halves = []
        for values in parts:
            order = np.argsort(-values[:, :-1] @ shipped)
            halves.append(values[order[: len(order) // 2], -1].mean())
        values = np.concatenate(parts)
        stated, is_right = probabilities(values[:, :-1], shipped), values[:, -1] < CORRECT_WITHIN
        tenth = np.minimum((10 * stated).astype(int), 9)
        gaps = [np.abs((stated - is_right)[tenth == t].sum()) for t in range(10)]
        epe = np.mean([values[:, -1].mean() for values in parts])
        table.add_row(name, f"{epe:.2f}", f"{np.mean(halves):.2f}", f"{100 * sum(gaps) / len(stated):.1f} %")
    print_table(table)


if __name__ == "__main__":
    main()
