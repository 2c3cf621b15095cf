"""Kill bulk runs by signal 9 at random moments, and check that nothing is lost, done twice or different.

    python benchmarks/bulk_kills.py [--engine local|ray|cluster] [--driver-kills 30] [--worker-kills 10] [--json FILE]

The command ``deepmatching bulk`` matches all pairs of a few small pictures. It is killed and run again until it ends,
and again in a new folder until there were enough kills. A quarter of the moments are drawn from the time that an
undisturbed run takes, most of which passes before the first shard. The others come after a random number of new shards,
up to the time of a shard later. With Ray, workers are then killed while the command goes on, at most two in a run: a
pair that costs five workers is given up. In the end,

* the shards of every run have the same bytes as those of an undisturbed run in one process;
* no shard that was finished when the command was killed is written again, so only those in flight are matched again;
* the death of a worker makes at most one shard be written again, that of which the command had not heard yet.

With ``--engine ray``, every command starts Ray, which dies with it. With ``--engine cluster``, one Ray cluster with a
token serves all commands, and workers outlive a command for a moment. The counts are added to those in ``--json FILE``,
so a benchmark that was stopped goes on.

Needs Linux or macOS.
"""

import argparse
import contextlib
import json
import os
import random
import secrets
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import cv2
import numpy as np
import psutil

from deepmatching.bulk_matching.storage import SHARDS

IN_A_RUN = 2  #: kills of workers in a run at most
ATTEMPTS = 3  #: times that a command is run to its end before its failure counts
PAUSE = 0.005  #: seconds between looks at a run
PATIENCE = 600.0  #: seconds to wait for a process


@dataclass
class Tally:
    """What happened.

    Attributes:
        driver_kills: of the command.
        worker_kills: of its workers.
        before_work: kills before the run's first new shard.
        runs: that were ended and compared.
        shards: of a run.
        rewritten: finished shards that were written again after a kill of the command.
        repeated: finished shards that were written again after a kill of a worker.
        different: shards with other bytes.
    """

    driver_kills: int = 0
    worker_kills: int = 0
    before_work: int = 0
    runs: int = 0
    shards: int = 0
    rewritten: int = 0
    repeated: int = 0
    different: int = 0


class Runs:
    """Starts the command again and again."""

    def __init__(self, folder: Path, options: argparse.Namespace, environment: dict[str, str], tally: Tally) -> None:
        self.folder, self.tally, self.json = folder, tally, options.json
        self.generator, self.address, self._environment = random.Random(options.seed), "", environment
        write_pictures(folder / "images", options.images)
        matching = ["--exhaustive", "--radius", "32", "--device", "cpu", "--model", "hog", "--quiet"]
        self._command = [sys.executable, "-m", "deepmatching", "bulk", str(folder / "images"), *matching]
        self.engine = "local"
        self.duration, self.pace = self._undisturbed("whole")
        self.expected = contents(folder / "whole")
        self.tally.shards = len(self.expected)

    def use(self, engine: str, address: str) -> None:
        """Go on with Ray, started by each command, or at an address."""
        self.engine, self.address = engine, address
        self.duration, self.pace = self._undisturbed("undisturbed")
        self._compare(self.folder / "undisturbed")

    def _undisturbed(self, name: str) -> tuple[float, float]:
        """Run the command without a kill; returns the seconds that it takes, and those between two of its shards."""
        begin = time.perf_counter()
        self._complete(self.folder / name)
        duration = time.perf_counter() - begin
        times = [written for _, written in stamps(self.folder / name).values()]
        return duration, 1e-9 * (max(times) - min(times)) / (len(times) - 1)

    def _start(self, out: Path) -> subprocess.Popen[bytes]:
        workers = ["--engine", "ray", "--workers", "2", "--cpus-per-worker", "1"] if self.engine != "local" else []
        where = ["--address", self.address] if self.address else []
        command = [*self._command, *workers, *where, "--out", str(out)]
        with (self.folder / "log.txt").open("ab") as log:
            return subprocess.Popen(command, stdout=log, stderr=log, env=self._environment)

    def _complete(self, out: Path) -> None:
        """Run the command to its end. On a busy machine, Ray may not start in time."""
        if not any(self._start(out).wait(PATIENCE) == 0 for _ in range(ATTEMPTS)):
            raise SystemExit(f"The command failed:\n{(self.folder / 'log.txt').read_text()[-3000:]}")

    def kill_drivers(self, count: int) -> None:
        """Kill the command this many times."""
        number = 0
        while self.tally.driver_kills < count:
            out, finished = self.folder / f"driver-{number}", dict[str, tuple[int, int]]()
            while self.tally.driver_kills < count:
                process = self._start(out)
                if not self._wait(process, out, finished):
                    if process.returncode:
                        continue
                    break
                process.kill()
                process.wait(PATIENCE)
                time.sleep(0.2)  # workers outlive the command for a moment
                now = stamps(out)
                self.tally.driver_kills += 1
                self.tally.before_work += len(now) == len(finished)
                self.tally.rewritten += rewritten(finished, now)
                finished = now
                print(f"kill {self.tally.driver_kills}: {len(finished)} of {len(self.expected)} shards", flush=True)
                if len(finished) == len(self.expected):
                    break
            self._complete(out)
            self._compare(out, finished)
            number += 1

    def _wait(self, process: subprocess.Popen[bytes], out: Path, finished: dict[str, tuple[int, int]]) -> bool:
        """Wait for the moment of a kill; returns whether the command is still at work then."""
        if self.generator.random() < 0.25:
            moment = time.perf_counter() + self.generator.uniform(0, self.duration)
            while time.perf_counter() < moment and process.poll() is None:
                time.sleep(PAUSE)
        else:
            wanted = self.generator.randint(len(finished) + 1, max(len(finished) + 1, len(self.expected) - 1))
            self._wait_for(wanted, process, out)
        return process.poll() is None

    def _wait_for(self, shards: int, process: subprocess.Popen[bytes], out: Path) -> None:
        """Wait until there is this number of shards, and a part of the time that the next one takes."""
        while len(stamps(out)) < shards and process.poll() is None:
            time.sleep(PAUSE)
        time.sleep(self.generator.uniform(0, self.pace))

    def kill_workers(self, count: int) -> None:
        """Kill workers this many times, while the command goes on."""
        number = 0
        while self.tally.worker_kills < count:
            out, finished = self.folder / f"worker-{number}", dict[str, tuple[int, int]]()
            number += 1
            process = self._start(out)
            for _ in range(min(IN_A_RUN, count - self.tally.worker_kills)):
                wanted = self.generator.randint(len(finished), max(len(finished), len(self.expected) - 2))
                self._wait_for(wanted, process, out)
                while process.poll() is None and not (found := list(workers())):
                    time.sleep(PAUSE)
                if process.poll() is not None:
                    break
                self.tally.repeated += rewritten(finished, now := stamps(out))
                finished = now
                try:
                    os.kill(self.generator.choice(found), signal.SIGKILL)
                except ProcessLookupError:
                    continue
                self.tally.worker_kills += 1
                print(f"worker {self.tally.worker_kills}: {len(finished)} of {len(self.expected)} shards", flush=True)
            if process.wait(PATIENCE):  # Ray did not start, or not again
                self._complete(out)
            self.tally.repeated += rewritten(finished, stamps(out))
            self._compare(out)

    def _compare(self, out: Path, finished: dict[str, tuple[int, int]] | None = None) -> None:
        """Compare a run that has ended with the undisturbed one."""
        self.tally.rewritten += rewritten(finished or {}, stamps(out))
        found = contents(out)
        names = set(found) | set(self.expected)
        self.tally.different += sum(found.get(name) != self.expected.get(name) for name in names)
        self.tally.runs += 1
        if self.json is not None:
            self.json.write_text(json.dumps(asdict(self.tally), indent=1))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--engine", choices=("local", "ray", "cluster"), default="local")
    parser.add_argument("--driver-kills", type=int, default=30)
    parser.add_argument("--worker-kills", type=int, default=0, help="with Ray")
    parser.add_argument("--images", type=int, default=12)
    parser.add_argument("--seed", type=int, default=None)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    if options.worker_kills and options.engine == "local":
        parser.error("--worker-kills is for --engine ray or cluster")
    is_begun = options.json is not None and options.json.is_file()
    tally = Tally(**json.loads(options.json.read_text())) if is_begun else Tally()
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder, contextlib.ExitStack() as stack:
        environment = dict(os.environ)
        if options.engine == "cluster":
            environment |= {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32)}
        runs = Runs(Path(folder), options, environment, tally)
        if options.engine != "local":
            is_cluster = options.engine == "cluster"
            runs.use(options.engine, stack.enter_context(ray_cluster(environment)) if is_cluster else "")
        runs.kill_drivers(options.driver_kills)
        runs.kill_workers(options.worker_kills)
    print(
        f"{options.engine}: {tally.driver_kills} kills of the command ({tally.before_work} before its first new shard) "
        f"and {tally.worker_kills} of workers in {tally.runs} runs of {tally.shards} shards: {tally.rewritten} "
        f"finished shards written again ({tally.repeated} after a worker died), {tally.different} with other bytes"
    )
    if tally.rewritten or tally.different or tally.repeated > tally.worker_kills:
        raise SystemExit("Something was lost.")


@contextlib.contextmanager
def ray_cluster(environment: dict[str, str]) -> Iterator[str]:
    """Return the address of a Ray cluster of two cores, which is a child of this process."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    program = Path(sys.executable).with_name("ray")
    options = ["--head", "--block", f"--port={port}", "--num-cpus=2", "--include-dashboard=false"]
    command = [str(program), "start", *options, "--disable-usage-stats"]
    cluster = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=environment)
    try:
        begin = time.perf_counter()
        while not is_open(port):
            if cluster.poll() is not None or time.perf_counter() - begin > PATIENCE:
                raise SystemExit("Ray does not start.")
            time.sleep(1.0)
        yield f"127.0.0.1:{port}"
    finally:
        with contextlib.suppress(psutil.NoSuchProcess):  # it has ended
            for process in psutil.Process(cluster.pid).children(recursive=True):
                with contextlib.suppress(psutil.NoSuchProcess):
                    process.kill()
        cluster.kill()
        cluster.wait(PATIENCE)


def is_open(port: int) -> bool:
    """Tell whether somebody listens at a port of this machine."""
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 5.0):
        return True
    return False


def write_pictures(folder: Path, count: int) -> None:
    """Write overlapping pictures of 96×72, each 5 px further to the right."""
    folder.mkdir()
    noise = np.random.default_rng(0).uniform(0, 255, (36, 100, 3)).astype(np.float32)
    scene = cv2.resize(noise, (300, 108), interpolation=cv2.INTER_CUBIC).clip(0, 255).astype(np.uint8)
    for number in range(count):
        encoded = cv2.imencode(".png", scene[20:92, 5 * number : 5 * number + 96])[1]
        (folder / f"{number:02d}.png").write_bytes(encoded.tobytes())


def shards_of(out: Path) -> Iterator[Path]:
    """Return the finished shards of a run."""
    return (out / SHARDS).glob("[0-9]*.npz")


def contents(out: Path) -> dict[str, bytes]:
    """Return the bytes of the finished shards of a run."""
    return {path.name: path.read_bytes() for path in shards_of(out)}


def stamps(out: Path) -> dict[str, tuple[int, int]]:
    """Return what changes if a finished shard is written again."""
    return {path.name: (about.st_ino, about.st_mtime_ns) for path in shards_of(out) if (about := path.stat())}


def rewritten(before: dict[str, tuple[int, int]], now: dict[str, tuple[int, int]]) -> int:
    """Return how many shards that were finished before are gone or were written again."""
    return sum(now.get(name) != stamp for name, stamp in before.items())


def workers() -> Iterator[int]:
    """Return the processes of Ray workers that match, below this process."""
    for process in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.Error):
            if "_RayWorker" in " ".join(process.cmdline()):
                yield process.pid


if __name__ == "__main__":
    main()
