"""How like the truth warps and pictures between frames are: ours beside OpenCV's DIS, as PSNR in decibels.

    python benchmarks/warps.py [MANIFEST.json] [--frames FOLDER …] [--dataset sintel_final …] [--json FILE]

Warps: the second image of each pair of a manifest, warped to the first one by a flow, and by the true one, at the
pixels whose true flow is known and which the second image shows. Frames: of every three in a row in a folder, the
middle one is made from the other two; beside it, their mean. DIS says what is hidden by a round trip.
"""

import argparse
import json
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.progress import track
from rich.table import Table
from torch import Tensor

import deepmatching as dm
from deepmatching.data.datasets import open_dataset
from deepmatching.drawing import to_uint8_rgb, warp
from deepmatching.drawing.warping import sampled, view_warp
from deepmatching.evaluation.baselines import DenseMethod
from deepmatching.evaluation.report import print_table
from deepmatching.flow import FlowResult, picture_between
from deepmatching.io.video import open_frames

Rows = Iterator[tuple[str, str, dict[str, float]]]  #: group, name, and the PSNR of each method
_APART = 2.0  #: pixels that a round trip of DIS may miss its start by, where the second image shows a pixel


def psnr(picture: np.ndarray, truth: np.ndarray) -> float:
    """Return the peak signal-to-noise ratio of uint8 colours, in decibels."""
    error = np.square(picture.astype(np.float64) - truth).mean()
    return float(10 * np.log10(255**2 / max(error, 1e-9)))


def both_ways(method: DenseMethod, first: Tensor, second: Tensor) -> tuple[FlowResult, FlowResult]:
    """Return the flow of an OpenCV method both ways, with what fails the round trip as hidden."""
    flows = method.flow(first, second), method.flow(second, first)
    results = []
    for there, back in (flows, flows[::-1]):
        missed = np.hypot(*np.moveaxis(there + sampled(back, there), 2, 0))
        results.append(FlowResult(there, np.ones_like(missed), occlusion=(missed > _APART).astype(np.float32)))
    return results[0], results[1]


def warps(matcher: dm.DeepMatcher, manifest: Path, chosen: list[str] | None) -> Rows:
    """Measure the warps of the pairs of a manifest."""
    dis, console = DenseMethod("dis"), Console(stderr=True)
    for entry in track([e for e in open_dataset(manifest).entries if e.flow is not None], "warps", console=console):
        if chosen and entry.group not in chosen:
            continue
        pair = entry.read()
        images, truth = (pair.image0, pair.image1), pair.flow.numpy()
        by_truth, first = warp(pair.image1, truth, pair.occluded.numpy()), to_uint8_rgb(pair.image0)
        shown = by_truth[..., 3] > 0
        flows = {"ours": matcher.flow(*images).flow, "DIS": dis.flow(*images)}
        pictures = {name: warp(pair.image1, flow) for name, flow in flows.items()} | {"true flow": by_truth}
        found = {name: psnr(picture[shown, :3], first[shown]) for name, picture in pictures.items()}
        yield entry.group, entry.name, found


def middles(matcher: dm.DeepMatcher, folder: Path) -> Rows:
    """Measure the middle frames of a folder."""
    frames, dis = open_frames(folder), DenseMethod("dis")
    for number in range(len(frames) - 2):
        first, middle, second = islice(frames.between(number, number + 3), 3)
        truth = to_uint8_rgb(middle)
        opaque = np.dstack([to_uint8_rgb(second), np.full(truth.shape[:2], 255, np.uint8)])
        pictures = {
            "ours": matcher.between(first, second),
            "DIS": picture_between(first, second, *both_ways(dis, first, second)),
            "mean of both": view_warp(first, opaque, "blend"),
        }
        name = frames.names[number + 1]
        yield "/".join(folder.parts[-2:]), name, {name: psnr(each, truth) for name, each in pictures.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("manifest", type=Path, nargs="?")
    parser.add_argument("--frames", type=Path, nargs="+", default=[], metavar="FOLDER")
    parser.add_argument("--dataset", action="append", help="measure this data set only; may be repeated")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--json", type=Path, help="write the figures of every pair to this file")
    options = parser.parse_args()
    matcher = dm.DeepMatcher.from_pretrained(device=options.device)
    parts = {"warps": [] if options.manifest is None else list(warps(matcher, options.manifest, options.dataset))}
    parts["frames"] = [row for folder in options.frames for row in middles(matcher, folder)]
    for title, rows in parts.items():
        if rows:
            table = Table(title, "number", *rows[0][2], title="PSNR in dB, mean over pairs")
            for group in dict.fromkeys(row[0] for row in rows):
                own = [found for name, _, found in rows if name == group]
                table.add_row(group, str(len(own)), *(f"{np.mean([f[m] for f in own]):.2f}" for m in own[0]))
            print_table(table)
    if options.json:
        options.json.write_text(json.dumps(parts, indent=1))


if __name__ == "__main__":
    main()
