"""Soft pooling against hard pooling: accuracy, calibration of softmax(Q_0), time and memory.

    python benchmarks/soft_pooling.py MANIFEST.json  [--model compact] [--model runs/soft/last.safetensors] …
    python benchmarks/soft_pooling.py --photos DIR [--pairs 32] [--size 448x320] …
        [--pooling hard --pooling soft] [--radius 80] [--device auto] [--training] [--json FILE]

Measures each model with each way of pooling, on the pairs of a manifest or on synthetic ones of photographs that are
kept for validation. Prints, as means over pairs:

* acc@T and EPE of the verified matches
* the points with a truth in the window that have a score near it: at most one cell away (the hinge needs it) and two
  (the cross-entropy); and the cells of Q_0 that have a score at all
* calibration of π = softmax(β Q_0). A match is stated to be right with the probability of the nine cells around it, and
  it is right if it is less than 3 pixels off. β is the one with the smallest binary cross-entropy on the even pairs;
  the expected calibration error (ECE) in 15 intervals, the cross-entropy and the area under the ROC curve are those of
  the odd pairs.
* milliseconds to match a pair, the median, and on a GPU the peak of the memory

``--training`` measures a training step instead, on batches of four synthetic pairs: milliseconds, and peak memory.
"""

import argparse
import json
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from deepmatching.commands.options import parse_size
from deepmatching.data.datasets import open_dataset
from deepmatching.data.synthesis import Synthesizer
from deepmatching.evaluation.metrics import area_under_roc, match_metrics, reliability
from deepmatching.evaluation.report import blank_table, format_number, print_table
from deepmatching.matches import Matches
from deepmatching.models import load_network
from deepmatching.network.inference import Decoding
from deepmatching.network.losses import Objective, is_right
from deepmatching.network.network import Network
from deepmatching.network.operators.decoding import decode
from deepmatching.settings import MODEL, RADIUS, choose_device
from deepmatching.training.config import DataConfig
from deepmatching.training.data import fixed_pairs, synthesizer
from deepmatching.training.processes import World

BINS = 15
SCALES = tuple(float(scale) for scale in np.geomspace(1, 64, 25))
ACCURACY = ("acc@2", "acc@5", "acc@10", "epe")


@torch.no_grad()
def measure(network: Network, pair: Any, device: torch.device) -> tuple[dict[str, float], np.ndarray, np.ndarray]:
    """Metrics of one pair; and the stated probabilities (scales, N), and which are right (N,), of its matches."""
    image0, image1 = (image[None].to(device) for image in (pair.image0, pair.image1))
    decoding, milliseconds = Decoding(confidence=False), []
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats()
    for _ in range(3):
        start = time.perf_counter()
        decoded = network.decode(image0, image1, decoding)
        _finish(device)
        milliseconds.append(1e3 * (time.perf_counter() - start))
    peak = torch.cuda.max_memory_allocated() / 2**20 if device.type == "cuda" else float("nan")
    metrics = match_metrics(Matches.from_decoded(decoded)[0], pair.flow.numpy())[0]["all"]

    pyramid = network(image0, image1)
    flow, occluded = pair.flow[None].to(device), pair.occluded[None].to(device)
    near = [Objective(kind)(pyramid, flow, occluded)[1]["reachable"].item() for kind in ("hinge", "cross-entropy")]
    Q_0, geometry = pyramid.Q[0], pyramid.geometry
    dense = torch.isfinite(Q_0).float().mean().item()
    on_cells = decode(Q_0, geometry, "none")
    answers = is_right(on_cells.points1 - on_cells.points0, flow, geometry)
    right, known = (answer[0].cpu() for answer in answers)
    stated = torch.stack([_mass(Q_0, on_cells.cells, scale)[0] for scale in SCALES]).cpu()
    row = {name: metrics[name] for name in ACCURACY}
    row |= {"one cell": 100 * near[0], "two cells": 100 * near[1], "cells": 100 * dense}
    row |= {"ms": sorted(milliseconds)[1], "MiB": peak}
    return row, stated[:, known].numpy(), right[known].numpy()


def _mass(Q_0: Tensor, cells: Tensor, scale: float) -> Tensor:
    """Return the probability of the 3 × 3 cells around each match under softmax(scale · Q_0): (B, H_0, W_0)."""
    h, w = Q_0.shape[-2:]
    logits = scale * Q_0.flatten(-2)
    steps = torch.arange(-1, 2, device=cells.device)
    rows, columns = (cells // w)[..., None] + steps, (cells % w)[..., None] + steps
    inside = ((rows >= 0) & (rows < h))[..., :, None] & ((columns >= 0) & (columns < w))[..., None, :]
    index = rows.clamp(0, h - 1)[..., :, None] * w + columns.clamp(0, w - 1)[..., None, :]
    around = torch.where(inside.flatten(-2), logits.gather(-1, index.flatten(-2)), -torch.inf)
    return (around.logsumexp(-1) - logits.logsumexp(-1)).exp().nan_to_num(0).clamp(0, 1)


def calibration(stated: Sequence[np.ndarray], right: Sequence[np.ndarray]) -> dict[str, float]:
    """Return β that fits the even pairs, and how well the probabilities of the odd ones are calibrated with it."""
    even, odd = (
        (np.concatenate(stated[part], axis=1), np.concatenate(right[part]))
        for part in (slice(0, None, 2), slice(len(stated) > 1, None, 2))
    )
    chosen = int(np.argmin([_entropy(probability, even[1]) for probability in even[0]]))
    probability, answer = odd[0][chosen], odd[1]
    table = reliability(probability, answer, BINS)
    error = sum(count * abs(said - true) for count, said, true in table if count) / max(1, len(answer))
    return {
        "β": SCALES[chosen],
        "ECE": 100 * error,
        "entropy": _entropy(probability, answer),
        "AUC": 100 * area_under_roc(probability, answer),
    }


def _entropy(probability: np.ndarray, right: np.ndarray) -> float:
    """Return the mean binary cross-entropy, in nats."""
    p = np.clip(probability.astype(np.float64), 1e-4, 1 - 1e-4)
    return float(-np.where(right, np.log(p), np.log(1 - p)).mean())


def training_step(network: Network, maker: Synthesizer, device: torch.device) -> dict[str, float]:
    """Return milliseconds of a step, forward and backward, and the peak of the memory."""
    objective, times = Objective(subpixel=0.3).to(device), []
    generator = torch.Generator().manual_seed(0)
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats()
    for _ in range(6):
        batch = maker.batch(4, generator)
        _finish(device)
        start = time.perf_counter()
        objective(network(batch.image0, batch.image1), batch.flow, batch.occluded)[0].backward()
        _finish(device)
        times.append(1e3 * (time.perf_counter() - start))
    peak = torch.cuda.max_memory_allocated() / 2**20 if device.type == "cuda" else float("nan")
    geometry = network.geometry_of(batch.image0, batch.image1)
    scores = len(batch.image0) * sum(geometry.cells(l) for l in range(geometry.L + 1))
    return {"ms": sorted(times[2:])[1], "MiB": peak, "bytes/score": peak * 2**20 / scores}


def _finish(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize()


def main(arguments: Sequence[str] | None = None) -> dict[str, dict[str, float]]:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("manifest", nargs="?")
    parser.add_argument("--photos")
    parser.add_argument("--pairs", type=int, default=32)
    parser.add_argument("--size", default="448x320")
    parser.add_argument("--displacement", type=float, default=64.0)
    parser.add_argument("--model", action="append")
    parser.add_argument("--pooling", action="append", choices=("hard", "soft"))
    parser.add_argument("--radius", type=int, default=RADIUS)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--training", action="store_true")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args(arguments)
    if (options.manifest is None) == (options.photos is None):
        parser.error("give a manifest or --photos")
    if options.training and options.photos is None:
        parser.error("--training needs --photos")
    device = choose_device(options.device)
    maker: Any = None
    pairs: Sequence[Any]
    if options.photos is None:
        data = open_dataset(options.manifest)
        pairs = [pair for pair in (data[n] for n in range(len(data))) if torch.isfinite(pair.flow).any()]
    else:
        width, height = parse_size(options.size)
        synthesis = {"max_displacement": options.displacement}
        config = DataConfig(photos=options.photos, crop=(height, width), synthesis=synthesis)
        maker = synthesizer(config, World(device=device), "val")
        pairs = [] if options.training else fixed_pairs(maker, options.pairs, 1, "benchmark")
    results: dict[str, dict[str, float]] = {}
    for model in options.model or [MODEL]:
        for pooling in options.pooling or ["hard", "soft"]:
            network = load_network(model, options.radius, pooling=pooling).to(device)
            if options.training:
                row = training_step(network.train(), maker, device)
            else:
                measured = [measure(network.eval(), pair, device) for pair in pairs]
                rows = [m[0] for m in measured]
                row = {name: float(np.mean([row[name] for row in rows])) for name in rows[0]}
                row |= {"ms": float(np.median([r["ms"] for r in rows])), "MiB": max(r["MiB"] for r in rows)}
                row |= calibration([m[1] for m in measured], [m[2] for m in measured])
            results[f"{model} {pooling}"] = row
            print(f"{model} {pooling}: " + ", ".join(f"{name} {value:.4g}" for name, value in row.items()), flush=True)
    table = blank_table(["model"], list(next(iter(results.values()))), "Soft and hard pooling")
    for name, row in results.items():
        table.add_row(name, *(format_number(value) for value in row.values()))
    print_table(table)
    if options.json is not None:
        options.json.write_text(json.dumps(results, indent=1), encoding="utf-8")
    return results


if __name__ == "__main__":
    main()
