"""The confidence of a flow: fit its regression, and see how far it can be trusted.

    python benchmarks/confidence.py MANIFEST.json [--model compact] [--radius 160] [--cache DIR]

The manifest is that of ``benchmarks/flow.py``, and so is the cache. Prints the weights that fit all data sets, which
``deepmatching.flow.confidence`` has; the area under the curve for the pixels of each data set, with the others fitted;
and for the confidence that ships: the mean difference of stated and true probability, by tenths, and the EPE of the
surer half of the pixels. Each data set counts alike, KITTI 2015 to KITTI 2012.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import numpy as np
import torch
from rich.console import Console
from rich.progress import track
from rich.table import Table

import deepmatching as dm
from deepmatching.edges import detect_edges
from deepmatching.flow import interpolate, refine
from deepmatching.flow.confidence import CONSTANT, WEIGHTS, evidence
from deepmatching.io.flow import read_flow
from deepmatching.io.images import load_image
from flow import keypoints, rank_quality

PIXELS = 20_000  #: of a pair that the regression is fitted to
RIGHT = 3.0  #: pixels; a flow that is less off is right


def probabilities(features: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """Of rows (N, F)."""
    return 1 / (1 + np.exp(-features @ weights))


def fitted(features: np.ndarray, right: np.ndarray, share: np.ndarray) -> np.ndarray:
    """The weights (F,) of a logistic regression of ``right`` (N,) on rows (N, F), which count by ``share`` (N,)."""
    weights = np.zeros(features.shape[1])
    for _ in range(30):  # Newton's method
        p = probabilities(features, weights)
        curvature = (features * (share * p * (1 - p))[:, None]).T @ features
        weights += np.linalg.solve(curvature + 1e-6 * np.eye(len(weights)), features.T @ (share * (right - p)))
    return weights


def measured(entry: dict[str, str], root: Path, matcher: dm.DeepMatcher, cache: Path | None, name: str) -> np.ndarray:
    """Of every pixel with ground truth: 1, the evidence, and the error, (N, 6)."""
    images = [load_image(root / entry[key]) for key in ("image0", "image1")]
    start, end, scores = keypoints(matcher, images[0], images[1], cache, name)
    backward = keypoints(matcher, images[1], images[0], cache, f"{name}_back")[:2]
    found = interpolate(start, end, detect_edges(images[0]), images[0], scores=scores, backward=backward)
    flow, truth = refine(found.flow, images[0], images[1]), read_flow(root / entry["flow"])
    known = np.isfinite(truth).all(axis=2)
    columns = [values[known] for values in evidence(torch.as_tensor(flow), found, *images)]
    return np.stack([np.ones(len(columns[0])), *columns, np.hypot(*(flow[known] - truth[known]).T)], axis=1)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("manifest", type=Path)
    parser.add_argument("--model", default="compact")
    parser.add_argument("--radius", default="160", type=lambda r: r if r == "full" else int(r))
    parser.add_argument("--cache", type=Path, help="folder for matches")
    options = parser.parse_args()
    matcher = dm.DeepMatcher.from_pretrained(options.model, radius=options.radius)
    entries = [e for e in json.loads(options.manifest.read_text()) if "flow" in e]
    if options.cache:
        options.cache.mkdir(parents=True, exist_ok=True)

    generator = np.random.default_rng(0)
    sets: dict[str, list[np.ndarray]] = {}  # all pixels of each pair
    rows, groups, pairs = [], [], []  # of the sample
    for n, entry in enumerate(track(entries, description="flow", console=Console(stderr=True))):
        name = f"{options.model}_{options.radius}_{n:03d}"
        values = measured(entry, options.manifest.parent, matcher, options.cache, name)
        sets.setdefault(entry["dataset"], []).append(values)
        sample = values[generator.choice(len(values), min(PIXELS, len(values)), replace=False)]
        rows.append(sample)
        groups += [entry["dataset"].replace("kitti2015", "kitti2012")] * len(sample)
        pairs += [n] * len(sample)
    data, group, pair = np.concatenate(rows), np.array(groups), np.array(pairs)
    features, right = data[:, :-1], data[:, -1] < RIGHT
    _, number, counts = np.unique(group, return_inverse=True, return_counts=True)
    share = 1 / counts[number]

    print("fitted to all:", np.round(fitted(features, right, share), 2), "shipped:", (CONSTANT, *WEIGHTS))
    table = Table("left out", "area under the curve")
    areas = []
    for name in dict.fromkeys(groups):
        others = group != name
        sure = probabilities(features, fitted(features[others], right[others], share[others]))
        areas.append(np.nanmean([rank_quality(sure[pair == n], right[pair == n]) for n in set(pair[~others])]))
        table.add_row(name, f"{areas[-1]:.3f}")
    table.add_row("mean", f"{np.mean(areas):.3f}")
    Console().print(table)

    table = Table("data set", "EPE", "EPE of the surer half", "stated − true", title="the confidence that ships")
    shipped = np.array([CONSTANT, *WEIGHTS])
    for name, parts in sets.items():
        halves = []
        for values in parts:
            order = np.argsort(-values[:, :-1] @ shipped)
            halves.append(values[order[: len(order) // 2], -1].mean())
        values = np.concatenate(parts)
        sure, hit = probabilities(values[:, :-1], shipped), values[:, -1] < RIGHT
        tenth = np.minimum((10 * sure).astype(int), 9)
        gaps = [np.abs((sure - hit)[tenth == t].sum()) for t in range(10)]
        epe = np.mean([values[:, -1].mean() for values in parts])
        table.add_row(name, f"{epe:.2f}", f"{np.mean(halves):.2f}", f"{100 * sum(gaps) / len(sure):.1f} %")
    Console().print(table)


if __name__ == "__main__":
    main()
