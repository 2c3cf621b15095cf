"""Time matching on this machine, and compare it with a floor: a time that no implementation can beat.

The floor is the larger of two times. The first is the bytes that decoding must move (every array of ``operators.fused``
written once and read as often as it is used) at the bandwidth of a large copy. The second is the operations of
correlation at the rate of a large matrix product. Both rates are measured in the same run.
"""

import contextlib
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from importlib.resources import as_file, files
from pathlib import Path
from statistics import median

import cv2
import numpy as np
import torch
from torch import Tensor

from deepmatching.drawing import write_image
from deepmatching.errors import DeepMatchingError
from deepmatching.geometry.discretization import Geometry
from deepmatching.geometry.strips import Tiling
from deepmatching.io.images import load_image
from deepmatching.kernels.limits import release_freed
from deepmatching.matcher import DeepMatcher
from deepmatching.network.inference import Decoding
from deepmatching.network.memory import pooled_cells
from deepmatching.network.network import Network
from deepmatching.settings import MODEL, RADIUS


@dataclass(frozen=True)
class Case:
    """The work that is timed: a batch of pairs of this size, from image tensors to verified matches."""

    model: str = MODEL
    width: int = 1024
    height: int = 436
    radius: int | str = RADIUS
    device: str = "auto"
    batch: int = 1
    threads: int | None = None  #: on the CPU; None for PyTorch's choice


@dataclass(frozen=True)
class Timing:
    """The measurements of one case. Times are in seconds for the whole batch, memory is in bytes."""

    case: Case
    device: str
    threads: int
    first: float  #: of the first run in a fresh process, which loads or compiles kernels
    time: float  #: median of the later runs
    best: float  #: fastest of the later runs
    memory_floor: float
    arithmetic_floor: float
    peak: int  #: minus the memory that the process held before the first run

    @property
    def floor(self) -> float:
        return max(self.memory_floor, self.arithmetic_floor)

    @property
    def ratio(self) -> float:
        return self.time / self.floor

    def as_dict(self) -> dict[str, object]:
        """Return all measurements, JSON-serializable."""
        return {**asdict(self), "floor": self.floor, "ratio": self.ratio}


@dataclass(frozen=True)
class WholeProgram:
    """What running a program costs, from its start to its end."""

    time: float  #: seconds, of the fastest run
    peak: int  #: bytes that the process held at most, of all runs


#: The program of a new process. It imports from where this process does: with ``-m``, Python would look into the
#: current folder first, and run a ``cv2.py`` that lies there.
_CHILD = """
import json, sys
sys.path[:] = json.loads(sys.argv.pop(1))
from {module} import main
main()
"""

#: The program of a small process that runs another: Linux counts the memory of a process's parent at its start, too.
_RUNNER = """
import json, resource, subprocess, sys, time
begin = time.perf_counter()
done = subprocess.run(sys.argv[1:], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
seconds = time.perf_counter() - begin
peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
print(json.dumps([seconds, peak, done.returncode, done.stderr.decode(errors="replace")]))
"""


def measure(case: Case, repeats: int = 20) -> Timing:
    """Time one case in a new process, so that other work affects neither its memory nor its first run."""
    command = _isolated("deepmatching.evaluation.speed", json.dumps({**asdict(case), "repeats": repeats}))
    reading, writing = os.pipe()  # closes when this process ends, however that happens: see `main`
    try:
        result = subprocess.run(command, stdin=reading, capture_output=True, text=True, check=False)
    finally:
        os.close(reading)
        os.close(writing)
    if result.returncode:
        reason = (result.stderr.strip().splitlines() or ["killed"])[-1]
        raise DeepMatchingError(f"Timing {case.width}x{case.height} failed ({reason}): try a smaller case.")
    return Timing(**{**json.loads(result.stdout.splitlines()[-1]), "case": case})


def _isolated(module: str, *arguments: str) -> list[str]:
    """Return the command that runs ``main`` of a module in a new process."""
    return [sys.executable, "-I", "-c", _CHILD.format(module=module), json.dumps(sys.path), *arguments]


def measure_program(command: Sequence[str], repeats: int = 3) -> WholeProgram:
    """Run a program and wait for it: its output is thrown away."""
    if sys.platform == "win32":
        raise DeepMatchingError("Windows does not tell what a program has cost: measure on Linux or macOS.")
    runs = []
    for _ in range(repeats):
        done = subprocess.run([sys.executable, "-I", "-c", _RUNNER, *command], capture_output=True, text=True)
        seconds, peak, code, said = json.loads(done.stdout) if done.stdout else (0, 0, 1, done.stderr)
        if code:
            reason = (said.strip().splitlines() or [f"exit code {code}"])[-1]
            raise DeepMatchingError(f"'{command[0]}' failed ({reason}): correct its command line.")
        runs.append((seconds, peak))
    return WholeProgram(min(seconds for seconds, _ in runs), max(peak for _, peak in runs))


def measure_match(case: Case, repeats: int = 3) -> WholeProgram:
    """Run ``deepmatching match`` on the pair of a case, from two files to its printed matches."""
    with demo_files(case.width, case.height) as pictures:
        options = ["--model", case.model, "--radius", str(case.radius), "--device", case.device]
        options += [] if case.threads is None else ["--threads", str(case.threads)]
        return measure_program(_isolated("deepmatching.cli", "match", *pictures, *options), repeats)


def demo_images(width: int, height: int, batch: int = 1) -> tuple[Tensor, Tensor]:
    """Return the demo pair, resized and repeated: two tensors (batch, 3, height, width)."""
    images = []
    for i in (0, 1):
        with as_file(files("deepmatching") / "data" / "demo" / f"bunny_{i}.jpg") as path:
            pixels = load_image(path).permute(1, 2, 0).numpy()
        scaled = cv2.resize(pixels, (width, height), interpolation=cv2.INTER_CUBIC).clip(0, 1)
        images.append(torch.from_numpy(np.ascontiguousarray(scaled.transpose(2, 0, 1))).expand(batch, -1, -1, -1))
    return images[0].contiguous(), images[1].contiguous()


@contextlib.contextmanager
def demo_files(width: int, height: int) -> Iterator[list[str]]:
    """Write the demo pair, resized, to two files that exist while the block lasts."""
    with tempfile.TemporaryDirectory() as folder:
        paths = [str(Path(folder) / f"{i}.png") for i in (0, 1)]
        for path, image in zip(paths, demo_images(width, height), strict=True):
            write_image(path, image[0].mul(255).round().byte().permute(1, 2, 0).numpy())
        yield paths


def bytes_moved(geometry: Geometry, network: Network) -> int:
    """Return the bytes that decoding must move: images, descriptors, S_{l+1/2} (read twice), m_l and Q_{l+1/2}."""
    pixels = sum(rows * columns for rows, columns in (geometry.used0, geometry.used1))
    pooled = sum(pooled_cells(geometry, l) for l in range(geometry.L))
    cells = pixels // geometry.gamma**2
    return 4 * 3 * pixels + 2 * 4 * network.descriptor.channels * cells + pooled * (3 * 4 + 2 * 1 + 2 * 4)


def copy_bandwidth(device: torch.device) -> float:
    """Return the bytes read and written per second by a copy too large for any cache."""
    source = torch.rand(2**30 if device.type == "cuda" else 2**26, device=device)
    target = torch.empty_like(source)
    return 2 * source.numel() * 4 / median(run_times(lambda: target.copy_(source), device, 10))


def matrix_rate(device: torch.device) -> float:
    """Return the float32 operations per second of a large matrix product, without tensor cores."""
    n = 8192 if device.type == "cuda" else 2048
    a, b = torch.rand(n, n, device=device), torch.rand(n, n, device=device)
    return 2 * n**3 / median(run_times(lambda: a @ b, device, 5))


def run_times(work: Callable[[], object], device: torch.device, repeats: int) -> list[float]:
    """Return the seconds of each run after a first, untimed one; measured with device events on CUDA."""
    work()
    times = []
    for _ in range(repeats):
        if device.type == "cuda":
            start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            start.record()
            work()
            end.record()
            torch.cuda.synchronize(device)
            times.append(start.elapsed_time(end) / 1000)
        else:
            begin = time.perf_counter()
            work()
            times.append(time.perf_counter() - begin)
    return times


def peak_memory(device: torch.device) -> int:
    """Return the most memory that this process has held so far, in bytes."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    if sys.platform == "win32":
        import psutil

        return psutil.Process().memory_info().peak_wset
    if sys.platform == "linux":  # getrusage would include the peak of the parent process
        return 1024 * int(Path("/proc/self/status").read_text().split("VmHWM:")[1].split()[0])
    import resource

    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def run_case(case: Case, repeats: int) -> dict[str, object]:
    """Return the measurements of one case, taken in this process."""
    if case.threads is not None:
        torch.set_num_threads(case.threads)
    matcher = DeepMatcher.from_pretrained(case.model, radius=case.radius, device=case.device)
    network, device = matcher.network, matcher.device
    image0, image1 = (image.to(device) for image in demo_images(case.width, case.height, case.batch))
    plan = matcher.plan((case.height, case.width), (case.height, case.width), case.batch)
    if plan.batch < case.batch:
        raise DeepMatchingError(f"Only {plan.batch} of {case.batch} pairs fit into memory at once.")

    before = peak_memory(device)
    begin = time.perf_counter()
    network.decode(image0, image1, Decoding(tiling=plan.tiling, between_strips=release_freed))
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    first = time.perf_counter() - begin
    times = run_times(_decoder(network, image0, image1, plan.tiling), device, repeats)
    peak = peak_memory(device) - before

    geometry = network.geometry((case.height, case.width), (case.height, case.width))
    operations = 2 * geometry.cells(0) * network.descriptor.patch**2 * network.descriptor.channels  # of correlation
    return {
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else str(device),
        "threads": torch.get_num_threads(),
        "first": first,
        "time": median(times),
        "best": min(times),
        "memory_floor": case.batch * bytes_moved(geometry, network) / copy_bandwidth(device),
        "arithmetic_floor": case.batch * operations / matrix_rate(device),
        "peak": peak,
    }


def _decoder(network: Network, image0: Tensor, image1: Tensor, tiling: Tiling) -> Callable[[], object]:
    """Return the timed function; on CUDA a recorded graph, since small kernels take longer to launch than to run."""
    if image0.device.type != "cuda" or tiling.strips > 1:
        return lambda: network.decode(image0, image1, Decoding(tiling=tiling, between_strips=release_freed))
    from deepmatching.network.replay import GraphedDecode

    decode, geometry = GraphedDecode(network, patience=0), network.geometry_of(image0, image1)
    return lambda: decode(image0, image1, geometry, Decoding())


def main() -> None:
    """Print the measurements of the case that :func:`measure` hands to its process; end when standard input ends."""

    def watch() -> None:
        while os.read(0, 1):
            pass
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()
    arguments = json.loads(sys.argv[1])
    count = arguments.pop("repeats")
    print(json.dumps(run_case(Case(**arguments), count)))
