"""Accuracy and speed of the dense flow: its stages, and trials of its settings, on pairs with ground truth.

    python benchmarks/flow.py MANIFEST.json [--model compact] [--radius 160] [--preset default] [--edges network]
        [--set falloff=0.3 steps=5 …] [--backward] [--dataset sintel_final …] [--cache DIR] [--json FILE]
    python benchmarks/flow.py --speed A B [--repeats 7] [--model …]

The manifest is that of ``deepmatching evaluate``; all known flow of its pairs counts. Each --set is one trial
that changes these settings of the preset. Matches are computed once for all trials; --cache keeps them for later runs.
EPE is the mean end-point error in pixels, 3px the percentage of pixels that are off by more than 3 pixels. AUC says how
well the confidence separates these pixels from the others: 1 is perfect, 0.5 is chance. Means over pairs.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.console import Console
from rich.progress import track
from rich.table import Table

import deepmatching as dm
from deepmatching.data.datasets import Entry, Pair, open_dataset
from deepmatching.evaluation.metrics import area_under_roc, endpoint_metrics
from deepmatching.evaluation.report import print_table
from deepmatching.evaluation.speed import peak_memory
from deepmatching.flow import FlowSettings, Interpolation, confidence, interpolate, preset, refine
from deepmatching.flow.edges import detect_edges, gradient_edges
from deepmatching.io.images import load_image
from deepmatching.settings import FLOW_RADIUS, FULL, MODEL, PRESET

EDGES: dict[str, Callable[..., np.ndarray]] = {"network": detect_edges, "gradient": gradient_edges}
NAMES = ("EPE interpolated", "EPE", "EPE visible", "3px", "AUC", "kept", "seconds")


def changed(settings: FlowSettings, changes: list[str]) -> FlowSettings:
    """Return settings with some values replaced, each given as name=value."""
    for change in changes:
        name, _, text = change.partition("=")
        for part in ("interpolation", "refinement"):
            old = getattr(settings, part)
            if name in {field.name for field in fields(old)}:
                kind = type(getattr(old, name))
                settings = replace(settings, **{part: replace(old, **{name: kind(text)})})
                break
        else:
            raise SystemExit(f"There is no setting '{name}'.")
    return settings


def pairs_with_flow(manifest: Path) -> list[Entry]:
    """Return the pairs of a manifest that have a flow, whose unreliable pixels count too."""
    return [replace(entry, invalid=None) for entry in open_dataset(manifest).entries if entry.flow is not None]


def cached_matches(matcher: dm.DeepMatcher, first: Any, second: Any, cache: Path | None, name: str) -> dm.Matches:
    """Return the matches that this matcher gives, from the cache if it has them."""
    file = None if cache is None else cache / f"{name}.npz"
    if file is not None and file.is_file():
        return dm.Matches.load(file)
    matches = matcher.match(first, second)
    if file is not None:
        matches.save(file)
    return matches


def interpolated(
    matches: dm.Matches, edges: np.ndarray, image: Any, settings: FlowSettings, backward: Any = None
) -> Interpolation:
    """Return the interpolation of these matches."""
    return interpolate(
        matches.keypoints0,
        matches.keypoints1,
        edges,
        image,
        scores=matches.scores,
        confidence=matches.confidence,
        backward=backward,
        settings=settings.interpolation,
    )


def measure(
    pair: Pair, edges: np.ndarray, matches: dm.Matches, backward: Any, settings: FlowSettings
) -> dict[str, float]:
    """Metrics of one pair in one trial."""
    begin = time.perf_counter()
    found = interpolated(matches, edges, pair.image0, settings, backward)
    flow = refine(found.flow, pair.image0, pair.image1, settings.refinement).numpy()
    seconds = time.perf_counter() - begin
    stated = confidence(torch.as_tensor(flow), found, pair.image0, pair.image1)
    truth = pair.flow.numpy()
    known = np.isfinite(truth).all(axis=2)
    before, after = (endpoint_metrics(field, truth) for field in (found.flow, flow))
    visible = endpoint_metrics(flow, truth, ~pair.occluded.numpy())
    quality = area_under_roc(stated[known], np.hypot(*(flow[known] - truth[known]).T) < 3)
    values = (before["epe"], after["epe"], visible["epe"], after["err@3"], quality, len(found.kept), seconds)
    return dict(zip(NAMES, map(float, values), strict=True))


def speed(options: argparse.Namespace, settings: FlowSettings) -> None:
    """Time of each stage on one pair, and the peak memory of the process."""
    images = [load_image(path) for path in options.speed]
    with tempfile.TemporaryDirectory() as folder:  # another process matches, so that its memory does not count here
        file = Path(folder) / "matches.npz"
        command = [sys.executable, "-m", "deepmatching", "match", *options.speed, "-o", file, "--device", "cpu"]
        subprocess.run([*command, "--model", options.model, "--radius", str(options.radius)], check=True)
        matches = dm.Matches.load(file)
    edges = EDGES[options.edges](images[0])
    stages: dict[str, list[tuple[float, float]]] = defaultdict(list)
    for _ in range(1 + options.repeats):
        start = time.perf_counter(), time.process_time()

        def done(name: str) -> None:
            nonlocal start
            now = time.perf_counter(), time.process_time()
            stages[name].append((now[0] - start[0], now[1] - start[1]))
            start = now

        EDGES[options.edges](images[0])
        done("edges")
        found = interpolated(matches, edges, images[0], settings)
        done("interpolation")
        flow = refine(found.flow, images[0], images[1], settings.refinement).numpy()
        done("refinement")
        confidence(torch.as_tensor(flow), found, *images)
        done("confidence")
        del found, flow  # as a user, who does not hold two results
    title = f"{len(matches)} matches; best of {options.repeats} after warm-up"
    table = Table("stage", "seconds", "processor seconds", title=title)
    best = {name: np.array(times[1:]).min(axis=0) for name, times in stages.items()}
    for name, times in [*best.items(), ("all", sum(best.values()))]:
        table.add_row(name, *(f"{t:.3f}" for t in times))
    print_table(table)
    print(f"peak memory of the process {peak_memory(torch.device('cpu')) / 1e6:.0f} MB")
    whole(images, options.model, options.repeats)


def whole(images: list[torch.Tensor], model: str, repeats: int) -> None:
    """Time from two images to flow with several presets, one after the other in turns."""
    matcher = dm.DeepMatcher.from_pretrained(model, device="cpu")
    calls: dict[str, dict[str, Any]] = {name: {"preset": name} for name in ("default", "classic")}
    calls[f"default, radius {FLOW_RADIUS}"] = {"radius": FLOW_RADIUS}
    results: dict[str, list[dict[str, float]]] = defaultdict(list)
    for _ in range(1 + repeats):
        for name, settings in calls.items():
            start = time.perf_counter()
            seconds = matcher.flow(images[0], images[1], **settings).seconds
            results[name].append({"all": time.perf_counter() - start, **seconds})
    table = Table("from two images", "seconds", "of which", title=f"median of {repeats} after warm-up, in turns")
    for name, runs in results.items():
        median = {stage: float(np.median([run[stage] for run in runs[1:]])) for stage in runs[0]}
        parts = ", ".join(f"{stage} {value:.2f}" for stage, value in median.items() if stage != "all")
        table.add_row(name, f"{median['all']:.2f}", parts)
    print_table(table)


def add_common_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of a benchmark that matches pairs and keeps the matches."""
    parser.add_argument("--model", default=MODEL, help=f"name or .safetensors file (default: {MODEL})")
    parser.add_argument("--radius", default=FLOW_RADIUS, type=lambda r: r if r == FULL else int(r), metavar="PIXELS")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--cache", type=Path, metavar="DIR", help="keep the matches in this folder")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("manifest", type=Path, nargs="?")
    add_common_options(parser)
    parser.add_argument("--preset", default=PRESET)
    parser.add_argument("--edges", default="network", choices=EDGES)
    parser.add_argument("--set", nargs="+", action="append", default=[], metavar="NAME=VALUE", help="one trial each")
    parser.add_argument("--backward", action="store_true", help="match the second image to the first too")
    parser.add_argument("--dataset", action="append", help="evaluate this data set only; may be repeated")
    parser.add_argument("--json", type=Path, help="write the metrics of every pair to this file")
    parser.add_argument("--speed", nargs=2, metavar=("A", "B"), help="time the stages on one pair of images instead")
    parser.add_argument("--repeats", type=int, default=7, help="runs of --speed after the warm-up (default: 7)")
    options = parser.parse_args()
    base = preset(options.preset)
    if options.speed:
        speed(options, changed(base, options.set[0] if options.set else []))
        return
    trials = {" ".join(changes): changed(base, changes) for changes in options.set} or {options.preset: base}
    matcher = dm.DeepMatcher.from_pretrained(options.model, radius=options.radius, device=options.device)
    if options.cache:
        options.cache.mkdir(parents=True, exist_ok=True)
    results: list[dict[str, Any]] = []
    for n, entry in enumerate(track(pairs_with_flow(options.manifest), "flow", console=Console(stderr=True))):
        if options.dataset and entry.group not in options.dataset:
            continue
        pair = entry.read()
        edges = EDGES[options.edges](pair.image0)
        own, name, back = matcher.for_flow(), f"{options.model}_{options.radius}_{n:03d}", None
        forward = cached_matches(own, pair.image0, pair.image1, options.cache, name)
        if options.backward:
            back = cached_matches(own, pair.image1, pair.image0, options.cache, f"{name}_back").numpy()[:2]
        for trial, settings in trials.items():
            row = measure(pair, edges, forward, back, settings)
            results.append({"dataset": entry.group, "pair": entry.name, "trial": trial, **row})
    if options.json:
        options.json.write_text(json.dumps(results, indent=1))
    table = Table("data set", "trial", *NAMES, title=f"{options.model}, radius {options.radius}, {options.edges} edges")
    for dataset in dict.fromkeys(row["dataset"] for row in results):
        for trial in trials:
            rows = [row for row in results if row["dataset"] == dataset and row["trial"] == trial]
            table.add_row(dataset, trial, *(f"{np.nanmean([row[name] for row in rows]):.3f}" for name in NAMES))
    print_table(table)


if __name__ == "__main__":
    main()
