"""The confidence of a flow: measure how reliable it is, and fit its logistic regression.

    python benchmarks/confidence.py MANIFEST.json … [--model compact]

Prints for each data set how often flow is right, and what its confidence says of that, means over pairs: the stated
share, the area under the ROC curve, and the mean squared error (Brier). "Crossed" is the confidence with weights fitted
to the other half of the scenes, every second by name. Also prints the weights fitted to all pairs, for
``deepmatching.flow.confidence``. The manifests are those of ``deepmatching evaluate``; all known flow of their pairs
counts. In a fit, data sets have equal weight; KITTI 2015 counts as KITTI 2012.
"""

import argparse
from pathlib import Path
from typing import Any, NamedTuple
from unittest.mock import patch

import numpy as np
import torch
from rich.console import Console
from rich.progress import track
from rich.table import Table

import deepmatching as dm
from deepmatching.data.datasets import Entry
from deepmatching.evaluation.metrics import area_under_roc
from deepmatching.evaluation.report import print_table
from deepmatching.flow import pipeline
from deepmatching.flow.confidence import evidence, probability
from deepmatching.settings import CORRECT_WITHIN, MODEL
from flow import pairs_with_flow

PIXELS = 20_000  #: sampled from each pair
#: What is printed of a confidence, and how.
STATED = {"stated": "{:.1f} %", "area": "{:.3f}", "Brier": "{:.4f}"}


class Judged(NamedTuple):
    """Pixels of a pair with known flow, sampled at random."""

    entry: Entry
    features: np.ndarray  #: (N, F), 1 and the evidence
    right: np.ndarray  #: (N,) bool
    stated: np.ndarray  #: (N,)


def judged(entry: Entry, matcher: dm.DeepMatcher, generator: np.random.Generator) -> Judged:
    """Return what the flow of a pair says and what is true."""
    pair, seen = entry.read(), []

    def watched(*arguments: Any) -> torch.Tensor:
        seen.append(evidence(*arguments))
        return probability(*arguments)

    with patch.object(pipeline, "probability", watched):
        result = matcher.flow(pair.image0, pair.image1)
    error = np.hypot(*np.moveaxis(result.flow - pair.flow.numpy(), 2, 0)).ravel()
    known = np.flatnonzero(np.isfinite(error))
    chosen = generator.choice(known, min(PIXELS, len(known)), replace=False)
    columns = [np.ones(len(chosen)), *(values.numpy().ravel()[chosen] for values in seen[-1])]
    right, stated = error[chosen] < CORRECT_WITHIN, result.confidence.ravel()[chosen]
    return Judged(entry, np.stack(columns, axis=1), right, stated)


def probabilities(features: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """Return the stated probabilities (N,) for features (N, F)."""
    return 1 / (1 + np.exp(-features @ weights))


def fit(pairs: list[Judged]) -> np.ndarray:
    """Return the weights (F,) of a logistic regression of what is right on the features."""
    groups = [pair.entry.group.replace("kitti2015", "kitti2012") for pair in pairs for _ in pair.right]
    _, number, counts = np.unique(groups, return_inverse=True, return_counts=True)
    importance = 1 / counts[number]
    features, right = (np.concatenate([pair[n] for pair in pairs]) for n in (1, 2))
    weights = np.zeros(features.shape[1])
    for _ in range(30):  # Newton's method
        p = probabilities(features, weights)
        curvature = (features * (importance * p * (1 - p))[:, None]).T @ features
        weights += np.linalg.solve(curvature + 1e-6 * np.eye(len(weights)), features.T @ (importance * (right - p)))
    return weights


def crossed(pairs: list[Judged]) -> list[np.ndarray]:
    """Return what each pair's pixels are given by a fit to the other half of the scenes, every second by name."""
    scenes = [pair.entry.name.split("/")[0].split()[0] for pair in pairs]
    order = sorted(set(scenes))
    second = [order.index(scene) % 2 for scene in scenes]
    halves = [[pair for pair, half in zip(pairs, second, strict=True) if half == h] for h in (0, 1)]
    weights = [fit(half or pairs) for half in halves]
    return [probabilities(pair.features, weights[1 - half]) for pair, half in zip(pairs, second, strict=True)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("manifest", type=Path, nargs="+")
    parser.add_argument("--model", default=MODEL, help=f"name or .safetensors file (default: {MODEL})")
    options = parser.parse_args()
    matcher = dm.DeepMatcher.from_pretrained(options.model, device="cpu", auto=False)  # a GPU would replay a graph
    generator = np.random.default_rng(0)
    entries = [entry for manifest in options.manifest for entry in pairs_with_flow(manifest)]
    pairs = [judged(entry, matcher, generator) for entry in track(entries, "flow", console=Console(stderr=True))]

    sets: dict[str, list[list[float]]] = {}
    for pair, other in zip(pairs, crossed(pairs), strict=True):
        row = [100 * pair.right.mean()]
        for stated in (pair.stated, other):
            brier = np.square(stated - pair.right).mean()
            row += [100 * stated.mean(), area_under_roc(stated, pair.right), brier]
        sets.setdefault(pair.entry.group, []).append(row)
    sets["all"] = [row for rows in sets.values() for row in rows]
    table = Table("data set", "pairs", "right", *(f"{name}{of}" for of in ("", ", crossed") for name in STATED))
    for name, rows in sets.items():
        means = np.nanmean(rows, axis=0)
        shown = (form.format(mean) for form, mean in zip(("{:.1f} %", *2 * tuple(STATED.values())), means, strict=True))
        table.add_row(name, str(len(rows)), *shown)
    print_table(table)
    print("weights fitted to all:", np.round(fit(pairs), 2))


if __name__ == "__main__":
    main()
