"""How long a run of very many pairs takes to begin and to go on, and the memory and disk that its plan needs.

    PYTHONPATH=src python benchmarks/bulk_planning.py [--images 50000] [--pairs 1000000] [--json FILE]

Nothing is matched. ``deepmatching.bulk`` is called with a file of pairs and stopped before the first pair, each time in
a process of its own: first in an empty folder, then with half of the shards there, then with all of them. The images
are empty files on the disk, and so are the shards; a run asks for no more than their names, sizes and times before it
begins.
"""

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path

from deepmatching.bulk_matching.pairs import MANIFEST, SHARDS

#: Begins a run in a process of its own, and prints seconds until the first pair, those of the
#: processor, the peak of the memory, and the pairs that were finished before.
BEGIN = """
import json, sys, time
import torch
import deepmatching as dm
from deepmatching.evaluation.speed import peak_memory

class Begun(Exception):
    pass

def stop(progress):
    peak = peak_memory(torch.device("cpu"))
    print(json.dumps([time.perf_counter() - begin, time.process_time(), peak, progress.before]))
    raise Begun

begin = time.perf_counter()
try:
    dm.bulk(*sys.argv[1:], model="hog", device="cpu", on_start=stop)
except Begun:
    pass
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--images", type=int, default=50_000)
    parser.add_argument("--pairs", type=int, default=1_000_000)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        images, run, pairs = (Path(folder, name) for name in ("images", "run", "pairs.txt"))
        write_pairs(images, pairs, options.images, options.pairs)
        rows = {"begin": begin(pairs, images, run)}
        manifest = run / MANIFEST
        shards = len(json.loads(manifest.read_text())["ends"])
        (run / SHARDS).mkdir(exist_ok=True)
        for name, finished in (("go on after a half", shards // 2), ("go on after all", shards)):
            for number in range(finished):
                (run / SHARDS / f"{number:06d}.npz").touch()
            rows[name] = begin(pairs, images, run)
        size = manifest.stat().st_size
    print(f"{options.pairs} pairs of {options.images} images in {shards} shards; the plan takes {size / 1e6:.1f} MB")
    for name, (seconds, processor, memory, before) in rows.items():
        times = f"{seconds:6.1f} s, {processor:.1f} s of the processor"
        print(f"{name:20} {times}, {memory / 1e9:.2f} GB, {before:.0f} pairs were finished")
    if options.json is not None:
        options.json.write_text(json.dumps({"shards": shards, "bytes": size, "rows": rows}, indent=1))


def write_pairs(images: Path, pairs: Path, count: int, wanted: int) -> None:
    """Make images, and a file of pairs of each with those that follow it."""
    images.mkdir()
    names = [f"{n // 1000:02d}/{n:06d}.jpg" for n in range(count)]
    for name in names:
        (images / name).parent.mkdir(exist_ok=True)
        (images / name).touch()
    neighbours = -(-wanted // count)
    lines = (f"{names[n]} {names[(n + step) % count]}" for step in range(1, neighbours + 1) for n in range(count))
    pairs.write_text("\n".join(line for line, _ in zip(lines, range(wanted), strict=False)) + "\n")


def begin(pairs: Path, images: Path, run: Path) -> list[float]:
    """Begin the run; return what :data:`BEGIN` prints."""
    command = [sys.executable, "-c", BEGIN, str(pairs), str(images), str(run)]
    printed: list[float] = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout)
    return printed


if __name__ == "__main__":
    main()
