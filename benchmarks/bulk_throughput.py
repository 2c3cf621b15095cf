"""Pairs per second of bulk matching: the bare matcher, the engine with images in memory, and JPEG files on a disk.

    PYTHONPATH=src python benchmarks/bulk_throughput.py PHOTO… [--device cuda] [--pairs 2000] [--batch 8 16 32]
                                                        [--json FILE]

PHOTO… are photographs or folders of them. Overlapping crops of 640×480 are cut from them, a camera that pans slowly,
and each is matched with the next.

* matcher: ``DeepMatcher.match_pairs`` on images that are on the device already;
* engine: the same pairs from 8-bit images in memory, each described once, with the matches back in memory;
* files: ``deepmatching.bulk`` from JPEG files, with decoding, and with the shards on the disk.

Every case runs for three batches before it is timed. "host" is the processor time of all threads for each pair; on a
busy machine, threads that wait for each other add to it, unless OMP_NUM_THREADS is 1. At the end, the
matches of a few pairs of the run are compared with those of ``DeepMatcher.match``.
"""

import argparse
import json
import os
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import torch
from rich.console import Console
from rich.table import Table

import deepmatching as dm
from deepmatching.bulk_matching.describing import DescribedImages
from deepmatching.bulk_matching.engine import ShardMatcher
from deepmatching.bulk_matching.pairs import list_images, sequential_pairs
from deepmatching.io.images import load_image
from deepmatching.settings import MODEL

CASES = ("matcher", "engine", "files")

SHARD = 64  #: pairs of a shard in the engine's case, as a run on a GPU has
HELD = 64  #: images that are held on the device for the matcher's case; its pairs go round them


@dataclass(frozen=True)
class Rate:
    """What one case reached."""

    case: str
    batch: int
    pairs: int
    seconds: float
    host: float  #: seconds of processor time, all threads together
    matches: int

    @property
    def rate(self) -> float:
        """Pairs per second."""
        return self.pairs / self.seconds


class InMemory(DescribedImages):
    """Images that were decoded before."""

    images: dict[str, Any]

    def read(self, name: str) -> Any:
        return self.images[name]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("photos", type=Path, nargs="+", help="photographs, or folders of them")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--model", default=MODEL)
    parser.add_argument("--radius", type=int, default=80)
    parser.add_argument("--size", type=int, nargs=2, default=(640, 480), metavar=("WIDTH", "HEIGHT"))
    parser.add_argument("--pairs", type=int, default=2000)
    parser.add_argument("--batch", type=int, nargs="+", default=[16], help="batch sizes to try; one may come again")
    parser.add_argument("--profile", type=Path, help="write a trace of the engine's case to this file")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    matcher = dm.DeepMatcher.from_pretrained(options.model, radius=options.radius, device=options.device)
    rates = []
    with tempfile.TemporaryDirectory() as folder:
        images = Path(folder, "images")
        write_crops(list(photographs(options.photos)), images, options.pairs + 1, tuple(options.size))
        for number, batch in enumerate(options.batch):
            run = Path(folder, f"run-{number}")
            rates += [time_matcher(matcher, images, options.pairs, batch), time_engine(matcher, images, batch)]
            rates.append(time_files(matcher, images, run, batch, options.model))
            difference = largest_difference(matcher, images, run)
        if options.profile is not None:
            trace(matcher, images, options.batch[0], options.profile)
    show(matcher.device, rates, difference)
    if options.json is not None:
        rows = [{**asdict(rate), "rate": rate.rate} for rate in rates]
        about = {"device": device_name(matcher.device), "cores": os.cpu_count(), "torch": torch.__version__}
        options.json.write_text(json.dumps({**about, "rates": rows, "difference": difference}, indent=1))


def photographs(given: Iterable[Path]) -> Iterator[Path]:
    """Return the photographs among files and folders."""
    for path in given:
        yield from (path / name for name in list_images(path)) if path.is_dir() else [path]


def write_crops(photos: list[Path], folder: Path, count: int, size: tuple[int, int]) -> None:
    """Write JPEG files: crops of each photograph in turn, each a few pixels away from the last."""
    folder.mkdir()
    width, height = size
    each = -(-count // len(photos))
    for number in range(count):
        if number % each == 0:
            pixels: np.ndarray = (
                (load_image(photos[number // each]).permute(1, 2, 0).numpy() * 255).round().astype(np.uint8)
            )
            scale = 1.25 * max(width / pixels.shape[1], height / pixels.shape[0])  # a quarter of the crop to pan over
            larger = (int(np.ceil(pixels.shape[1] * scale)), int(np.ceil(pixels.shape[0] * scale)))
            pixels = cv2.resize(pixels, larger, interpolation=cv2.INTER_AREA if scale < 1 else cv2.INTER_CUBIC)
            room = np.array([pixels.shape[1] - width, pixels.shape[0] - height])
        angle = 0.1 * (number % each)
        left, top = ((0.5 + 0.5 * np.array([np.cos(angle), np.sin(angle)])) * room).astype(int)
        crop = np.ascontiguousarray(pixels[top : top + height, left : left + width, ::-1])
        encoded = cv2.imencode(".jpg", crop, [cv2.IMWRITE_JPEG_QUALITY, 92])[1]
        (folder / f"{number:06d}.jpg").write_bytes(encoded.tobytes())


def timed(case: str, batch: int, device: torch.device, work: Callable[[], Iterable[dm.Matches]], pairs: int) -> Rate:
    """Run the work, which gives the matches of pairs, until the device has finished."""
    begin, host = time.perf_counter(), time.process_time()
    matches = sum(len(found) for found in work())
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return Rate(case, batch, pairs, time.perf_counter() - begin, time.process_time() - host, matches)


def time_matcher(matcher: dm.DeepMatcher, images: Path, count: int, batch: int) -> Rate:
    """Time ``match_pairs`` on images that are on the device."""
    names = list_images(images)[: min(HELD, count) + 1]
    loaded = [matcher.load(images / name).to(matcher.device) for name in names]
    held = [(loaded[n % (len(loaded) - 1)], loaded[n % (len(loaded) - 1) + 1]) for n in range(count)]
    for _ in matcher.match_pairs(held[: 3 * batch], batch):
        pass
    return timed("matcher", batch, matcher.device, lambda: matcher.match_pairs(held, batch), count)


def engine_of(matcher: dm.DeepMatcher, images: Path, batch: int) -> ShardMatcher:
    """Return the engine with all images in memory."""
    engine = ShardMatcher(matcher, images, images, batch)
    read, memory = engine.images, InMemory(matcher, images)
    memory.images = {name: read.read(name) for name in list_images(images)}
    read.close()
    engine.images = memory
    return engine


def engine_matches(engine: ShardMatcher, pairs: list[tuple[str, str]]) -> Iterator[dm.Matches]:
    """Return the matches of all pairs, shard after shard; one is on its way while the one before is taken."""
    before = None
    for first in range(0, len(pairs), SHARD):
        started = engine.start(pairs[first : first + SHARD], pairs[first + SHARD : first + 2 * SHARD])
        if before is not None:
            yield from (pair.matches for pair in before())
        before = started
    if before is not None:
        yield from (pair.matches for pair in before())


def time_engine(matcher: dm.DeepMatcher, images: Path, batch: int) -> Rate:
    """Time the bulk engine with images in memory."""
    pairs = sequential_pairs(images, 1)
    engine = engine_of(matcher, images, batch)
    for _ in engine_matches(engine, pairs[: 3 * batch]):
        pass
    engine.images.forget()
    rate = timed("engine", batch, matcher.device, lambda: engine_matches(engine, pairs), len(pairs))
    engine.images.close()
    return rate


def time_files(matcher: dm.DeepMatcher, images: Path, run: Path, batch: int, model: str) -> Rate:
    """Time ``deepmatching.bulk`` from files to shards."""
    pairs = sequential_pairs(images, 1)
    settings: dict[str, Any] = {"radius": matcher.settings.radius, "device": matcher.settings.device}
    begin, host, rate = 0.0, 0.0, None
    counted = 0

    def on_shard(progress: object, report: object) -> None:
        nonlocal counted
        counted += report.matches  # type: ignore[attr-defined]

    def on_start(progress: object) -> None:  # the model is loaded
        nonlocal begin, host
        begin, host = time.perf_counter(), time.process_time()

    for warm, some in ((True, pairs[: 3 * batch]), (False, pairs)):
        counted = 0
        out = run.with_name(f"{run.name}-first") if warm else run
        dm.bulk(some, images, out, model=model, batch_size=batch, on_start=on_start, on_shard=on_shard, **settings)
        rate = Rate("files", batch, len(some), time.perf_counter() - begin, time.process_time() - host, counted)
    assert rate is not None
    return rate


def largest_difference(matcher: dm.DeepMatcher, images: Path, run: Path, pairs: int = 8) -> float:
    """Return how far the matches of a run lie from those of the matcher, in pixels; infinite if there are others."""
    largest = 0.0
    for pair, _ in zip(dm.bulk_matching.RunFolder(run), range(pairs), strict=False):
        expected = matcher.match(*(images / name for name in pair.names)).to("cpu")
        if not torch.equal(expected.keypoints0, pair.matches.keypoints0):
            both = {tuple(point) for point in expected.keypoints0.tolist()}
            other = both.symmetric_difference(tuple(point) for point in pair.matches.keypoints0.tolist())
            print(f"{pair.names}: {len(other)} of {len(expected)} matches are in one of the two only")
            return float("inf")
        largest = max(largest, float((expected.keypoints1 - pair.matches.keypoints1).abs().max()))
    return largest


def trace(matcher: dm.DeepMatcher, images: Path, batch: int, path: Path) -> None:
    """Profile a shard of the engine's case: a table of where the time goes, and a trace for Chrome."""
    pairs = sequential_pairs(images, 1)[: 2 * SHARD]
    engine = engine_of(matcher, images, batch)
    list(engine_matches(engine, pairs))
    engine.images.forget()
    activities = [torch.profiler.ProfilerActivity.CPU]
    if matcher.device.type == "cuda":
        activities.append(torch.profiler.ProfilerActivity.CUDA)
    with torch.profiler.profile(activities=activities) as profiler:
        list(engine_matches(engine, pairs))
    order = "self_cuda_time_total" if matcher.device.type == "cuda" else "self_cpu_time_total"
    path.write_text(profiler.key_averages().table(sort_by=order, row_limit=40, max_name_column_width=80))
    engine.images.close()


def device_name(device: torch.device) -> str:
    """Return the device in words."""
    return torch.cuda.get_device_name(device) if device.type == "cuda" else str(device)


def share(rates: list[Rate], case: str, batch: int) -> float:
    """Return the pairs a second of a case over the matcher's before it; the median if a batch size comes again."""
    timed = {name: [rate.rate for rate in rates if (rate.case, rate.batch) == (name, batch)] for name in CASES}
    return float(np.median([of / matcher for of, matcher in zip(timed[case], timed["matcher"], strict=True)]))


def show(device: torch.device, rates: list[Rate], difference: float) -> None:
    """Print the table."""
    title = f"{device_name(device)}, {os.cpu_count()} cores"
    table = Table("case", "batch", "pairs", "pairs/s", "ms/pair", "host ms/pair", "matches/pair", title=title)
    for rate in rates:
        table.add_row(
            rate.case, str(rate.batch), str(rate.pairs), f"{rate.rate:.1f}", f"{1e3 / rate.rate:.2f}",
            f"{1e3 * rate.host / rate.pairs:.2f}", f"{rate.matches / rate.pairs:.0f}",
        )  # fmt: skip
    console = Console()
    console.print(table)
    for batch in sorted({rate.batch for rate in rates}):
        shares = [f"{case} {100 * share(rates, case, batch):.0f} %" for case in CASES[1:]]
        console.print(f"pairs a second in batches of {batch}, of those of the matcher: {', '.join(shares)}")
    console.print(f"largest difference between the run and DeepMatcher.match: {difference:.2g} px")


if __name__ == "__main__":
    main()
