"""Kill bulk runs by signal 9 at random moments, and check that nothing is lost, done twice or different.

    python benchmarks/bulk_kills.py [--engine local|ray] [--driver-kills 30] [--worker-kills 10] [--json FILE]

The command ``deepmatching bulk`` matches all pairs of a few small pictures. It is killed and run again until it ends,
and again in a new folder until there were enough kills. Half of the moments are drawn from the time that an undisturbed
run takes, the others shortly after a random number of new shards. With Ray, workers are then killed while the command
goes on, at most two in a run: a shard whose worker dies three times is given up. In the end,

* the shards of every run have the same bytes as those of an undisturbed run in one process;
* no shard that was finished is written again, so only those that a kill interrupted are matched again.

Needs Linux or macOS.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
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

#: Kills of workers in a run at most.
IN_A_RUN = 2

#: Times that a command is run to its end before its failure counts.
ATTEMPTS = 3

#: Seconds between looks at a run.
PAUSE = 0.005

#: Seconds to wait for a process.
PATIENCE = 600.0


@dataclass
class Tally:
    """What happened.

    Attributes:
        driver_kills: of the command.
        worker_kills: of its workers.
        before_work: kills before the run's first new shard.
        runs: that were ended and compared.
        shards: of a run.
        rewritten: finished shards that were written again.
        different: shards with other bytes.
    """

    driver_kills: int = 0
    worker_kills: int = 0
    before_work: int = 0
    runs: int = 0
    shards: int = 0
    rewritten: int = 0
    different: int = 0


class Runs:
    """Starts the command again and again."""

    def __init__(self, folder: Path, engine: str, images: int, generator: random.Random) -> None:
        self.folder, self.generator, self.tally = folder, generator, Tally()
        write_pictures(folder / "images", images)
        matching = ["--exhaustive", "--radius", "32", "--device", "cpu", "--model", "hog", "--quiet"]
        self._command = [sys.executable, "-m", "deepmatching", "bulk", str(folder / "images"), *matching]
        begin = time.perf_counter()
        self._complete(folder / "whole", "local")
        self.expected = contents(folder / "whole")
        self.tally.shards = len(self.expected)
        self.engine, self.duration = engine, time.perf_counter() - begin
        if engine == "ray":
            begin = time.perf_counter()
            self._complete(folder / "undisturbed", engine)
            self.duration = time.perf_counter() - begin
            self._compare(folder / "undisturbed", {})

    def _start(self, out: Path, engine: str) -> subprocess.Popen[bytes]:
        workers = ["--engine", "ray", "--workers", "2", "--cpus-per-worker", "1"] if engine == "ray" else []
        log = (self.folder / "log.txt").open("ab")
        with log:
            return subprocess.Popen([*self._command, *workers, "--out", str(out)], stdout=log, stderr=log)

    def _complete(self, out: Path, engine: str) -> None:
        """Run the command to its end. On a busy machine, Ray may not start in time."""
        if not any(self._start(out, engine).wait(PATIENCE) == 0 for _ in range(ATTEMPTS)):
            raise SystemExit(f"The command failed:\n{(self.folder / 'log.txt').read_text()[-3000:]}")

    def kill_drivers(self, count: int) -> None:
        """Kill the command so many times."""
        number = 0
        while self.tally.driver_kills < count:
            out, finished = self.folder / f"driver-{number}", dict[str, tuple[int, int]]()
            while self.tally.driver_kills < count:
                process = self._start(out, self.engine)
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
                self._check(finished, now)
                finished = now
                print(f"kill {self.tally.driver_kills}: {len(finished)} of {len(self.expected)} shards", flush=True)
                if len(finished) == len(self.expected):
                    break
            self._complete(out, self.engine)
            self._compare(out, finished)
            number += 1

    def _wait(self, process: subprocess.Popen[bytes], out: Path, finished: dict[str, tuple[int, int]]) -> bool:
        """Wait for the moment of a kill; returns whether the command is still at work then."""
        if self.generator.random() < 0.5:
            moment = time.perf_counter() + self.generator.uniform(0, self.duration)
            while time.perf_counter() < moment and process.poll() is None:
                time.sleep(PAUSE)
        else:
            wanted = self.generator.randint(len(finished), len(self.expected) - 1)
            while len(stamps(out)) <= wanted and process.poll() is None:
                time.sleep(PAUSE)
            time.sleep(self.generator.uniform(0, 0.05))
        return process.poll() is None

    def kill_workers(self, count: int) -> None:
        """Kill workers so many times, while the command goes on."""
        number = 0
        while self.tally.worker_kills < count:
            out = self.folder / f"worker-{number}"
            number += 1
            process = self._start(out, self.engine)
            for _ in range(min(IN_A_RUN, count - self.tally.worker_kills)):
                wanted = self.generator.randint(0, len(self.expected) - 2)
                while len(stamps(out)) < wanted and process.poll() is None:
                    time.sleep(PAUSE)
                while process.poll() is None and not (found := list(workers_of(process.pid))):
                    time.sleep(PAUSE)
                time.sleep(self.generator.uniform(0, 0.05))
                if process.poll() is not None:
                    break
                try:
                    os.kill(self.generator.choice(found), signal.SIGKILL)
                except ProcessLookupError:
                    continue
                self.tally.worker_kills += 1
                print(
                    f"worker {self.tally.worker_kills}: {len(stamps(out))} of {len(self.expected)} shards", flush=True
                )
            if process.wait(PATIENCE):  # Ray did not start, or not again
                self._complete(out, self.engine)
            self._compare(out, {})

    def _check(self, before: dict[str, tuple[int, int]], now: dict[str, tuple[int, int]]) -> None:
        self.tally.rewritten += sum(now.get(name) != stamp for name, stamp in before.items())

    def _compare(self, out: Path, finished: dict[str, tuple[int, int]]) -> None:
        """Compare a run that has ended with the undisturbed one."""
        self._check(finished, stamps(out))
        found = contents(out)
        names = set(found) | set(self.expected)
        self.tally.different += sum(found.get(name) != self.expected.get(name) for name in names)
        self.tally.runs += 1


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--engine", choices=("local", "ray"), default="local")
    parser.add_argument("--driver-kills", type=int, default=30)
    parser.add_argument("--worker-kills", type=int, default=0, help="with --engine ray")
    parser.add_argument("--images", type=int, default=12)
    parser.add_argument("--seed", type=int, default=None)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    if options.worker_kills and options.engine != "ray":
        parser.error("--worker-kills is for --engine ray")
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        runs = Runs(Path(folder), options.engine, options.images, random.Random(options.seed))
        runs.kill_drivers(options.driver_kills)
        runs.kill_workers(options.worker_kills)
    tally = runs.tally
    print(
        f"{options.engine}: {tally.driver_kills} kills of the command ({tally.before_work} before its first new shard) "
        f"and {tally.worker_kills} of workers in {tally.runs} runs of {tally.shards} shards: {tally.rewritten} "
        f"finished shards written again, {tally.different} with other bytes"
    )
    if options.json is not None:
        options.json.write_text(json.dumps({"engine": options.engine, **asdict(tally)}, indent=1))
    if tally.rewritten or tally.different:
        raise SystemExit("Something was lost.")


def write_pictures(folder: Path, count: int) -> None:
    """Overlapping pictures of 96×72, each 5 px further to the right."""
    folder.mkdir()
    noise = np.random.default_rng(0).uniform(0, 255, (36, 100, 3)).astype(np.float32)
    scene = cv2.resize(noise, (300, 108), interpolation=cv2.INTER_CUBIC).clip(0, 255).astype(np.uint8)
    for number in range(count):
        encoded = cv2.imencode(".png", scene[20:92, 5 * number : 5 * number + 96])[1]
        (folder / f"{number:02d}.png").write_bytes(encoded.tobytes())


def shards_of(out: Path) -> Iterator[Path]:
    """The finished shards of a run."""
    return (out / SHARDS).glob("[0-9]*.npz")


def contents(out: Path) -> dict[str, bytes]:
    """The bytes of the finished shards of a run."""
    return {path.name: path.read_bytes() for path in shards_of(out)}


def stamps(out: Path) -> dict[str, tuple[int, int]]:
    """What changes if a finished shard is written again."""
    return {path.name: (about.st_ino, about.st_mtime_ns) for path in shards_of(out) if (about := path.stat())}


def workers_of(driver: int) -> Iterator[int]:
    """The processes of a command's Ray workers that match."""
    try:
        for process in psutil.Process(driver).children(recursive=True):
            try:
                if "_RayWorker" in " ".join(process.cmdline()):
                    yield process.pid
            except psutil.Error:
                continue
    except psutil.Error:
        return


if __name__ == "__main__":
    main()
