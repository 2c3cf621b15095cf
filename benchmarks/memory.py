"""Predicted and measured peak memory of matching and flow, each case in a process of its own.

    python benchmarks/memory.py [--device cpu] [--json FILE] [--quick] [--large]

The grid has every model, small and large pairs, pairs of two shapes, radii, batches, budgets that need strips, and
flow. The peak is that of the process above what it held before, with the images in float32 and the kernels that it
loads. With --quick, small cases show in seconds that everything runs. With --large, cases of up to 24 megapixels and
8 GB follow.
"""

import argparse
import json
import os
import subprocess
import sys
from dataclasses import asdict, dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table


@dataclass(frozen=True)
class Case:
    """A pair to match. Sizes are (width, height); radius 0 means no limit; the budget is in MB, 0 for none."""

    model: str
    size0: tuple[int, int]
    radius: int
    budget: int = 0
    size1: tuple[int, int] | None = None
    batch: int = 1
    flow: bool = False
    kernels: bool = True
    max_size: int | None = None

    @property
    def name(self) -> str:
        sizes = [f"{width}x{height}" for width, height in (self.size0, self.size1 or self.size0)]
        words = [sizes[0] if self.size1 is None else " / ".join(sizes)]
        words += [f"batch {self.batch}"] if self.batch > 1 else []
        words += [f"max_size {self.max_size}"] if self.max_size else []
        return ", ".join(words + ["flow"] * self.flow + ["no kernels"] * (not self.kernels))


SINTEL, FLAT, TALL = (1024, 436), (4000, 100), (100, 4000)
CASES = [
    Case("hog", (320, 240), 80),
    Case("hog", SINTEL, 80),
    Case("hog", SINTEL, 80, 240),
    Case("hog", SINTEL, 256, 400),
    Case("hog", SINTEL, 0, 1000),
    Case("hog", SINTEL, 0, 420),
    Case("hog", (2000, 1500), 80),
    Case("hog", (2000, 1500), 80, 500),
    Case("hog", FLAT, 80, size1=TALL),
    Case("hog", (20000, 8), 80, size1=(8, 20000)),
    Case("compact", (320, 240), 80),
    Case("compact", SINTEL, 80),
    Case("compact", SINTEL, 80, 350),
    Case("compact", SINTEL, 256, 500),
    Case("compact", SINTEL, 0, 500),
    Case("compact", (2000, 1500), 80),
    Case("compact", (2000, 1500), 80, 850),
    Case("compact", FLAT, 80, 500, size1=TALL),
    Case("compact", FLAT, 80, 330, size1=TALL),
    Case("compact", (20000, 8), 80, size1=(8, 20000)),
    Case("vgg", (320, 240), 80),
    Case("vgg", SINTEL, 80),
    Case("vgg", (1200, 900), 40),
    Case("vgg", (1200, 900), 80, 700),
    Case("vgg", (480, 640), 80, size1=(800, 240)),
    Case("hog", (640, 480), 80, batch=4),
    Case("compact", (640, 480), 80, batch=4),
    Case("compact", (640, 480), 80, 500, batch=4),
    Case("vgg", (320, 240), 40, batch=3),
    Case("compact", (3000, 2000), 80, max_size=1000),
    Case("compact", (320, 240), 160, flow=True),
    Case("compact", SINTEL, 160, flow=True),
    Case("compact", SINTEL, 160, 400, flow=True),
    Case("compact", (1600, 1200), 80, 950, flow=True),
    Case("compact", (3000, 2000), 80, flow=True, max_size=1000),
    Case("hog", SINTEL, 80, kernels=False),
    Case("compact", (512, 384), 80, kernels=False),
]
LARGE = [
    Case("compact", (4000, 3000), 80),
    Case("compact", (4000, 3000), 80, 4500),
    Case("compact", (4000, 3000), 80, 3000),
    Case("compact", (6000, 4000), 80, 8000),
]
QUICK = [
    Case("hog", (64, 48), 16),
    Case("hog", (64, 48), 0, 1000, kernels=False),
    Case("compact", (64, 48), 16, size1=(48, 64)),
    Case("compact", (64, 48), 16, flow=True),
]

CHILD = """
import json, sys
from pathlib import Path
import torch
from deepmatching.evaluation.speed import demo_images, peak_memory
from deepmatching.errors import OutOfMemoryError
from deepmatching.kernels.first_run import at_compilation
from deepmatching.kernels.limits import release_freed
from deepmatching.matcher import DeepMatcher
at_compilation.append(lambda: print("compiling the kernels", file=sys.stderr))
case, device = json.loads(sys.argv[1]), torch.device(sys.argv[2])
sizes = [case["size0"], case["size1"] or case["size0"]]
images = [(demo_images(*size)[n][0] * 255).byte() for n, size in enumerate(sizes)]
settings = {"radius": case["radius"] or "full", "memory": case["budget"] * 10**6 or None}
matcher = DeepMatcher.from_pretrained(case["model"], device=device, max_size=case["max_size"], **settings)
release_freed()
if device.type == "cuda":
    torch.cuda.reset_peak_memory_stats()
elif sys.platform == "linux":
    Path("/proc/self/clear_refs").write_text("5")  # the peak of the process is counted anew
before = peak_memory(device)
try:
    plan = matcher.plan(*(tuple(size[::-1]) for size in sizes), case["batch"], flow=case["flow"])
except OutOfMemoryError as error:
    print(json.dumps({"refused": str(error)}))
else:
    if case["flow"]:
        matcher.flow(*images)
    else:
        for _ in matcher.match_pairs([images] * case["batch"], case["batch"]):
            pass
    measured = peak_memory(device) - before
    pieces = {"pairs": plan.batch, "strips": plan.tiling.strips, "levels": plan.tiling.levels}
    print(json.dumps({"measured": measured, "predicted": plan.needed, **pieces}))
"""


def measure(case: Case, device: str) -> dict[str, object]:
    """Return the measurements of one case, taken in a process of its own."""
    command = [sys.executable, "-c", CHILD, json.dumps(asdict(case)), device]
    environment = {"OMP_NUM_THREADS": "2", **os.environ, "DEEPMATCHING_KERNELS": "on" if case.kernels else "off"}
    for _ in range(5):
        result = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
        if "compiling the kernels" not in result.stderr:
            break  # a compiler takes memory too, so a process that had to compile kernels does not count
    if result.returncode:
        reason = (result.stderr.strip().splitlines() or ["killed"])[-1]
        sys.exit(f"{case.model} {case.name} failed ({reason})")
    return {**asdict(case), **json.loads(result.stdout)}


def columns(case: Case, found: dict[str, object]) -> list[str]:
    """Return a row of the table."""
    left = [case.model, case.name, str(case.radius or "full"), f"{case.budget} MB" if case.budget else "–"]
    if "refused" in found:
        return [*left, "refused", "", "", "", ""]
    measured, predicted = (int(str(found[name])) for name in ("measured", "predicted"))
    strips = f"{found['strips']} of {found['levels']} levels" if found["strips"] != 1 else "–"
    strips = f"{found['pairs']} at a time" if case.batch > 1 else strips
    below = "–" if not case.budget else "yes" if measured <= 1e6 * case.budget else "NO"
    ratio = f"{predicted / measured:.2f}" if measured else "–"
    return [*left, strips, f"{predicted / 1e6:.0f} MB", f"{measured / 1e6:.0f} MB", ratio, below]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--json", type=Path, help="write all measurements to this file")
    parser.add_argument("--quick", action="store_true", help="a few small cases")
    parser.add_argument("--large", action="store_true", help="also cases of up to 15 GB")
    options = parser.parse_args()
    table = Table("model", "pair", "radius", "budget", "pieces", "predicted", "measured", "ratio", "below budget")
    rows = []
    for case in QUICK if options.quick else CASES + LARGE * options.large:
        rows.append(measure(case, options.device))
        table.add_row(*columns(case, rows[-1]))
        if options.json:
            options.json.write_text(json.dumps(rows, indent=1))
    Console(width=140 if not sys.stdout.isatty() else None).print(table)


if __name__ == "__main__":
    main()
