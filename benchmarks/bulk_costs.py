"""What a million pairs cost: processor time and storage of a few pairs of photographs, multiplied.

    OMP_NUM_THREADS=1 PYTHONPATH=src python benchmarks/bulk_costs.py FOLDER [--pairs 6] [--json FILE]

The first pairs of neighbours in FOLDER are matched with several settings as ``deepmatching bulk`` matches them, in one
process on the CPU. Seconds are those of the processor, all threads together: a machine that is busy with other work
changes them less than the time on the wall. How often an image is described depends on the order of the pairs: it is
counted for all pairs of many images. A search describes images again, which is part of its time for a pair.

The storage is that of the shard. It is also given as other forms would take it: compressed by deflate or, if pyarrow is
installed, by zstd, and with coordinates in half precision, whose largest rounding error is printed.
"""

import argparse
import io
import json
import random
import tempfile
import time
from functools import lru_cache
from itertools import chain, combinations
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

import deepmatching as dm
from deepmatching.bulk_matching.engine import ShardMatcher
from deepmatching.bulk_matching.pairs import order_by_image, sequential_pairs
from deepmatching.bulk_matching.storage import write_shard
from deepmatching.settings import FULL

CASES: dict[str, dict[str, Any]] = {
    "512 px, radius 80": {"max_size": 512, "radius": 80},
    "640 px, no limit": {"max_size": 640, "radius": FULL},
    "640 px, no limit, with search": {"max_size": 640, "radius": FULL, "search": True},
}
MILLION = 1_000_000
KB, GB = 1e3, 1e9
IMAGES = 512  #: whose pairs are counted
ROOM = 32  #: images that are kept described, two blocks of a run
SECONDS_OF_HOUR = 3600.0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--pairs", type=int, default=6)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    rows = {name: measured(options.folder, options.pairs, settings) for name, settings in CASES.items()}
    show(rows)
    if options.json is not None:
        options.json.write_text(json.dumps(rows, indent=1))


def measured(folder: Path, count: int, settings: dict[str, Any]) -> dict[str, float]:
    """Return seconds of the processor for a description and for the rest of a pair, and bytes of a pair by form."""
    pairs = sequential_pairs(folder, 1)[:count]
    engine = ShardMatcher(dm.DeepMatcher.from_pretrained(device="cpu", **settings), folder, folder)
    engine.start(pairs[:1])()  # compiles the kernels
    engine.images.forget()
    names = sorted({name for pair in pairs for name in pair})
    begin = time.process_time()
    for name in names:
        engine.images[name]
    described = time.process_time()
    found = engine.start(pairs)()
    end = time.process_time()
    if failed := [pair.failure for pair in found if pair.failure]:
        raise SystemExit(failed[0])
    with tempfile.TemporaryDirectory() as temporary:
        path = Path(temporary, "shard.npz")
        write_shard(path, found)
        engine.close()
        forms, error = sizes(path)
    return {
        "describe": (described - begin) / len(names),
        "match": (end - described) / len(pairs),
        "matches": sum(len(pair.matches) for pair in found) / len(pairs),
        "error": error,
        **{name: size / len(pairs) for name, size in forms.items()},
    }


def sizes(path: Path) -> tuple[dict[str, int], float]:
    """Return the bytes of a shard by form, and the largest error of coordinates in half precision."""
    with np.load(path) as stored:
        arrays = dict(stored)
    points = ("keypoints0", "keypoints1")
    half = {name: array.astype(np.float16) if name in points else array for name, array in arrays.items()}
    error = max(float(np.abs(half[name].astype(np.float32) - arrays[name]).max()) for name in points)
    found = {"as it is": path.stat().st_size}
    for name, content in (("", arrays), ("half", half)):
        plain, deflated = io.BytesIO(), io.BytesIO()
        np.savez(plain, **content)  # type: ignore[arg-type]
        np.savez_compressed(deflated, **content)  # type: ignore[arg-type]
        if name:
            found[name] = plain.getbuffer().nbytes
        found[f"{name} deflate".strip()] = deflated.getbuffer().nbytes
        try:
            import pyarrow

            found[f"{name} zstd".strip()] = len(pyarrow.compress(plain.getvalue(), "zstd", asbytes=True))
        except ImportError:
            pass
    return found, error


def descriptions(is_ordered: bool) -> float:
    """Return how many images are described for each of all pairs of many images, in order or in a random order."""
    names = [f"{number}.jpg" for number in range(IMAGES)]
    pairs = list(combinations(names, 2))
    random.Random(0).shuffle(pairs)
    describe = lru_cache(ROOM)(lambda name: name)
    for name in chain.from_iterable(order_by_image(pairs) if is_ordered else pairs):
        describe(name)
    return describe.cache_info().misses / len(pairs)


def show(rows: dict[str, dict[str, float]]) -> None:
    """Print what a pair costs, and what a million do."""
    console = Console(width=130)
    ordered, shuffled = (descriptions(is_ordered) for is_ordered in (True, False))
    counts = f"{ordered:.2f} descriptions a pair as a run orders them, {shuffled:.2f} in random order"
    print(f"all pairs of {IMAGES} images, with room for {ROOM} described ones: {counts}")
    hours = "h, a million in order", "h, in random order"
    table = Table("settings", "s an image", "s a pair, described", "matches", "kB a pair", *hours, "GB, a million")
    for name, row in rows.items():
        seconds = [row["match"] + images * row["describe"] for images in (ordered, shuffled)]
        table.add_row(
            *(name, f"{row['describe']:.2f}", f"{row['match']:.2f}", f"{row['matches']:.0f}"),
            *(f"{row['as it is'] / KB:.1f}", *(f"{each * MILLION / SECONDS_OF_HOUR:.0f}" for each in seconds)),
            f"{row['as it is'] * MILLION / GB:.0f}",
        )
    console.print(table)
    forms = [name for name in next(iter(rows.values())) if name not in ("describe", "match", "matches", "error")]
    table = Table("storage, of that as it is", *forms, "half: largest error")
    for name, row in rows.items():
        table.add_row(name, *(f"{row[form] / row['as it is']:.0%}" for form in forms), f"{row['error']:.2f} px")
    console.print(table)


if __name__ == "__main__":
    main()
