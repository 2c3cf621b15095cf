"""The confidence of matches: is it calibrated, does it find wrong matches, and which matches should be given out?

    python benchmarks/match_confidence.py MANIFEST.json [--model compact] [--radius 80] [--chosen-on 0 9 13 …]
        [--out DIAGRAM.png] [--json FILE]

Measures the pairs of a manifest that have a flow; all known flow counts, as in ``deepmatching evaluate --no-masks``. A
match is right if it is less than 3 pixels off. Prints three tables, of means over pairs:

* the fraction of right matches beside the mean stated confidence, at all reference points with a known motion and at
  those whose match is verified
* the area under the ROC curve of "the match is right" for the confidence, the score, the verification and the
  forward-backward error; and of "the point is hidden", where the data set has masks
* acc@T and EPE of the verified matches ordered by score, of the same ordered by confidence, and of the matches that are
  given out (verified or confidence of at least ½) ordered by confidence

``--chosen-on`` names pairs, counted from 0 in the manifest, on which settings were chosen: they are reported apart.
``--out`` draws the reliability diagram.
"""

import argparse
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from matplotlib.figure import Figure
from rich.console import Console
from rich.progress import track

import deepmatching as dm
from deepmatching.data.datasets import open_dataset
from deepmatching.drawing import write_image
from deepmatching.drawing.figure import new_figure, picture
from deepmatching.evaluation.metrics import area_under_roc, match_metrics, reliability
from deepmatching.evaluation.report import blank_table, format_number, print_table
from deepmatching.geometry.targets import Decoded
from deepmatching.matches import Matches
from deepmatching.network.inference import Decoding
from deepmatching.network.losses import is_occluded, is_right
from deepmatching.network.network import Network
from deepmatching.settings import MIN_CONFIDENCE, MODEL, RADIUS

ORDERS = ("verified, by score", "verified, by confidence", "given out, by confidence")
RANKED = ("confidence", "score", "verified", "forward-backward", "hidden")
ACCURACY = ("acc@2", "acc@5", "acc@10", "epe", "coverage")
# Colours that people with red-green colour blindness can tell apart (Okabe and Ito).
COLORS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000")
FEWEST = 30  #: intervals of the diagram with fewer matches than this are left out: their share is a matter of luck
Reliability = list[tuple[int, float, float]]


def forward_backward(forward: Decoded, backward: Decoded) -> np.ndarray:
    """By how many pixels the match of the reference point nearest to each match does not lead back: (H_0, W_0)."""
    grid = backward.points0
    rows, columns = grid.shape[:2]
    spacing = float(grid[0, 1, 0] - grid[0, 0, 0]) if columns > 1 else 1.0
    place = torch.nan_to_num((forward.points1[0] - grid[0, 0]) / spacing).round().long()
    row, column = place[..., 1].clamp(0, rows - 1), place[..., 0].clamp(0, columns - 1)
    back = (backward.points1[0] - grid)[row, column]
    error = (forward.points1[0] - forward.points0 + back).norm(dim=-1)
    reached = torch.isfinite(forward.scores[0]) & torch.isfinite(backward.scores[0])[row, column]
    return torch.where(reached, error, torch.inf).numpy()


@torch.no_grad()
def measure(network: Network, pair: Any, masked: Any | None) -> tuple[dict[str, float], np.ndarray, np.ndarray]:
    """Metrics of one pair; and the confidence (N,) and whether it is right (N,), of its matches with known truth.

    ``masked`` is the pair with its masks, None if it has none.
    """
    device = network.exponents.device
    image0, image1 = (image[None].to(device) for image in (pair.image0, pair.image1))
    geometry, mirrored = network.geometry_of(image0, image1), network.geometry_of(image1, image0)
    cells0, cells1 = network.describe(image0, image1, geometry)
    forward = network.decode_descriptors(cells0, cells1, geometry)
    backward = network.decode_descriptors(cells1, cells0, mirrored, Decoding(confidence=False))
    forward, backward = (_on_cpu(decoded) for decoded in (forward, backward))
    assert forward.confidence is not None and forward.occluded is not None
    right_map, known_map = is_right(forward.points1 - forward.points0, pair.flow[None], geometry)
    known = known_map[0].numpy()
    right, verified = right_map[0].numpy()[known], forward.verified[0].numpy()[known]
    confidence, scores = forward.confidence[0].numpy()[known], forward.scores[0].numpy()[known]
    row = {
        "right": _mean(right),
        "stated": _mean(confidence),
        "verified": _mean(verified),
        "right, verified": _mean(right[verified]),
        "stated, verified": _mean(confidence[verified]),
        "AUC confidence": area_under_roc(confidence, right),
        "AUC score": area_under_roc(scores, right),
        "AUC verified": area_under_roc(verified.astype(float), right),
        "AUC forward-backward": area_under_roc(-forward_backward(forward, backward)[known], right),
        "AUC hidden": float("nan"),
    }
    if masked is not None:
        occluded, agreed = is_occluded(masked.occluded[None], geometry)
        counted = (agreed & is_right(forward.points1 - forward.points0, masked.flow[None], geometry)[1])[0].numpy()
        row["AUC hidden"] = area_under_roc(forward.occluded[0].numpy()[counted], occluded[0].numpy()[counted])
    scored = forward._replace(confidence=None)
    for name, matches in zip(
        ORDERS,
        (
            Matches.from_decoded(scored)[0],
            Matches.from_decoded(forward)[0],
            Matches.from_decoded(forward, min_confidence=MIN_CONFIDENCE)[0],
        ),
        strict=True,
    ):
        metrics = match_metrics(matches, pair.flow.numpy())[0]["all"]
        row.update({f"{name}: {metric}": metrics[metric] for metric in ACCURACY})
    return row, confidence, right


def _on_cpu(decoded: Decoded) -> Decoded:
    return Decoded._make(None if value is None else value.cpu() for value in decoded)


def _mean(values: np.ndarray) -> float:
    """Return the mean of those that are known, NaN without any."""
    values = np.asarray(values, np.float64)
    values = values[np.isfinite(values)]
    return float(values.mean()) if len(values) else float("nan")


def print_part(title: str, rows: Mapping[str, list[dict[str, float]]]) -> None:
    """Print the three tables of a part of the pairs, which are grouped by data set."""

    def mean(group: str, name: str, decimals: int, factor: float = 1.0) -> str:
        return format_number(factor * _mean(np.array([row[name] for row in rows[group]])), decimals)

    columns = ["right", "stated", "verified", "right, verified", "stated, verified"]
    table = blank_table(["data set"], ["pairs", *(f"{name} %" for name in columns)], f"Calibration{title}")
    for group, pairs in rows.items():
        table.add_row(group, str(len(pairs)), *(mean(group, name, 1, 100) for name in columns))
    print_table(table)
    table = blank_table(["data set"], list(RANKED), f"Area under the ROC curve{title}")
    for group in rows:
        table.add_row(group, *(mean(group, f"AUC {name}", 3) for name in RANKED))
    print_table(table)
    table = blank_table(["data set", "matches"], ["acc@2", "acc@5", "acc@10", "EPE", "cover"], f"Accuracy{title}")
    for group in rows:
        for number, name in enumerate(ORDERS):
            values = (mean(group, f"{name}: {metric}", 1 + (metric == "epe")) for metric in ACCURACY)
            table.add_row("" if number else group, name, *values)
    print_table(table)


@picture
def draw_reliability(parts: Mapping[str, Mapping[str, Reliability]]) -> Figure:
    """Draw true against stated probability, a line for each data set, above the share of the matches in each interval.

    There is a column of panels for each part of the pairs. Intervals with fewer than 30 matches have no point.
    """
    width = 440 * len(parts) + 180
    figure = new_figure(width, 520)
    sides = {"left": 62 / width, "right": 1 - 170 / width}
    grid = {**sides, "bottom": 0.1, "top": 0.93, "hspace": 0.08, "wspace": 0.16, "height_ratios": (3, 1)}
    axes = figure.subplots(2, len(parts), squeeze=False, gridspec_kw=grid)
    names = list(dict.fromkeys(name for sets in parts.values() for name in sets))
    lines: dict[str, Any] = {}
    for (upper, lower), (title, sets) in zip(axes.T, parts.items(), strict=True):
        upper.plot((0, 100), (0, 100), color="0.6", linestyle="--", linewidth=1)
        for name, table in sets.items():
            counts, stated, true = np.array(table, np.float64).T
            stated, true = (np.where(counts >= FEWEST, 100 * values, np.nan) for values in (stated, true))
            color = COLORS[names.index(name) % len(COLORS)]
            (lines[name],) = upper.plot(stated, true, "o-", color=color, markersize=3.5)
            edges = np.linspace(0, 100, len(counts) + 1)
            lower.stairs(100 * counts / max(1, counts.sum()), edges, color=color, linewidth=1.3)
        upper.set_title(title, loc="left", fontsize=11)
        upper.set_ylabel("right matches, %", fontsize=9)
        upper.set_xticklabels(())
        lower.set_ylabel("matches, %", fontsize=9)
        lower.set_xlabel("stated confidence, %", fontsize=9, labelpad=1)
        upper.set_ylim(0, 100)
        lower.set(yscale="log", ylim=(0.05, 100), yticks=(0.1, 1, 10, 100))
        lower.yaxis.set_major_formatter("{x:g}")
        for panel in (upper, lower):
            panel.set(xlim=(0, 100), xticks=range(0, 101, 20))
            panel.tick_params(labelsize=9)
            panel.grid(color="0.92")
            panel.spines[["top", "right"]].set_visible(False)
    handles, anchor = [lines[name] for name in names], (sides["right"], 0.6)
    legend = figure.legend(handles, names, fontsize=9, frameon=False, loc="center left", bbox_to_anchor=anchor)
    for text in legend.get_texts():
        text.set_parse_math(False)  # a dollar sign in a name is a dollar sign
    return figure


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("manifest", type=Path)
    parser.add_argument("--model", default=MODEL)
    parser.add_argument("--radius", default=RADIUS, type=int)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--chosen-on", type=int, nargs="+", metavar="INDEX")
    parser.add_argument("--out", type=Path, metavar="PICTURE")
    parser.add_argument("--json", type=Path, metavar="FILE")
    options = parser.parse_args()
    network = dm.DeepMatcher.from_pretrained(options.model, radius=options.radius, device=options.device).network
    if network.confidence is None:
        raise SystemExit(f"The model '{options.model}' does not judge its matches: choose another, such as 'compact'.")
    pairs, masked = (open_dataset(options.manifest, masks=masks) for masks in (False, True))
    numbers = [n for n, entry in enumerate(pairs.entries) if entry.flow is not None]
    if not numbers:
        raise SystemExit("None of the pairs has a flow.")

    results: list[dict[str, Any]] = []
    judged: dict[tuple[str, str], list[tuple[np.ndarray, np.ndarray]]] = {}
    for n in track(numbers, description="pairs", console=Console(stderr=True)):
        entry = masked.entries[n]
        has_masks = entry.occluded is not None or entry.flow_noc is not None
        row, confidence, right = measure(network, pairs[n], masked[n] if has_masks else None)
        part = "all pairs"
        if options.chosen_on is not None:
            part = "settings chosen on these" if n in options.chosen_on else "the other pairs"
        results.append({"part": part, "dataset": entry.group, "pair": entry.name, "index": n, **row})
        judged.setdefault((part, entry.group), []).append((confidence, right))

    diagram: dict[str, dict[str, Reliability]] = {}
    for (part, group), values in judged.items():
        stated, true = (np.concatenate(arrays) for arrays in zip(*values, strict=True))
        diagram.setdefault(part, {})[group] = reliability(stated, true)
    for part, sets in diagram.items():
        rows = {group: [r for r in results if (r["part"], r["dataset"]) == (part, group)] for group in sets}
        print_part(f", {part} ({options.model}, radius {options.radius})", rows)
    if options.json:
        options.json.write_text(json.dumps({"pairs": results, "reliability": diagram}, indent=1))
    if options.out:
        write_image(options.out, draw_reliability(diagram))


if __name__ == "__main__":
    main()
