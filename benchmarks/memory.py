"""Predicted and measured peak memory of matching, each case in a process of its own.

    python benchmarks/memory.py [--device cpu] [--json FILE] [--quick]

With --quick, two small cases show in seconds that everything runs.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path

from rich.console import Console
from rich.table import Table

#: width, height, radius (0: full), strips, with kernels
CASES = [
    (1024, 436, 80, 1, True),
    (1024, 436, 80, 6, True),
    (1024, 436, 256, 1, True),
    (1024, 436, 256, 8, True),
    (1024, 436, 0, 1, True),
    (1024, 436, 0, 4, True),
    (1024, 436, 0, 54, True),
    (3840, 2160, 80, 1, True),
    (3840, 2160, 80, 10, True),
    (1024, 436, 80, 1, False),
    (1024, 436, 80, 6, False),
    (512, 384, 0, 1, False),
]
QUICK = [(64, 48, 16, 1, True), (64, 48, 0, 2, False)]

CHILD = """
import sys, torch
from deepmatching.benchmark import demo_images, peak_memory
from deepmatching.descriptors import HOG
from deepmatching.inference import Decoding
from deepmatching.memory import decoding_bytes
from deepmatching.network import Network
width, height, radius, strips = map(int, sys.argv[1:5])
device = torch.device(sys.argv[5])
network = Network(HOG(), radius or None).to(device)
images = [image.to(device) for image in demo_images(width, height)]
before = peak_memory(device)
network.decode(*images, Decoding(strips=strips))
geometry = network.geometry((height, width), (height, width))
print(peak_memory(device) - before, decoding_bytes(geometry, network.descriptor, 1, device.type, strips))
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--json", type=Path, help="write all measurements to this file")
    parser.add_argument("--quick", action="store_true", help="two small cases")
    options = parser.parse_args()
    table = Table("size", "radius", "strips", "kernels", "measured", "predicted", "ratio")
    rows = []
    for width, height, radius, strips, kernels in QUICK if options.quick else CASES:
        command = [sys.executable, "-c", CHILD, *map(str, (width, height, radius, strips)), options.device]
        environment = {**os.environ, "DEEPMATCHING_KERNELS": "on" if kernels else "off"}
        result = subprocess.run(command, capture_output=True, text=True, env=environment, check=True)
        measured, predicted = map(int, result.stdout.split())
        rows.append({"width": width, "height": height, "radius": radius or "full", "strips": strips,
                     "kernels": kernels, "measured": measured, "predicted": predicted})  # fmt: skip
        table.add_row(
            f"{width}x{height}", str(radius or "full"), str(strips), "yes" if kernels else "no",
            f"{measured / 1e6:.0f} MB", f"{predicted / 1e6:.0f} MB", f"{predicted / measured:.2f}" if measured else "–",
        )  # fmt: skip
    Console().print(table)
    if options.json:
        options.json.write_text(json.dumps(rows, indent=1))


if __name__ == "__main__":
    main()
