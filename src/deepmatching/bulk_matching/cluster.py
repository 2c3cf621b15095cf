"""Matching shards on a Ray cluster, or on this machine with Ray: the extra ``bulk``.

Each worker is a Ray actor with a matcher of its own, on a GPU or on a few CPU cores. Ray places them. This process
gives them shards, and starts others in place of lost ones. All machines must see the folders of the images and of the
run under the same paths.
"""

import contextlib
import logging
import math
import os
import socket
import tempfile
import threading
import time
from collections import defaultdict, deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from deepmatching.bulk_matching.engine import ShardMatcher, ShardReport
from deepmatching.bulk_matching.pairs import Pair
from deepmatching.bulk_matching.storage import MatchedPair, RunFolder, shard_file, write_shard
from deepmatching.errors import DeepMatchingError, check_number
from deepmatching.matches import NO_MATCHES

_MAX_WHOLE_DEATHS = 2  #: Workers that a shard may cost before its pairs are matched one by one.
_MAX_DEATHS = 5  #: Workers that a pair may cost, with those of its shard, before it is given up.
_PAUSE = 1.0  #: Seconds from a worker's death to another's start. Each death until a shard is finished doubles them.
_LOOK_EVERY = 5.0  #: Seconds between looks at what machines the cluster has.
_PATIENCE = 600.0  #: Seconds to wait for a machine where a worker can start.
_TIMEOUT = 5.0  #: Seconds to wait for a cluster's answer.
_MAX_CORES = 4  #: Largest number of CPU cores of a worker without a GPU.
_MAX_REASON = 300  #: Largest number of characters of Ray's errors that are repeated.
_STDERR = 2  #: The file descriptor of standard error.


@dataclass(frozen=True)
class Cluster:
    """Where workers run, and what each of them gets."""

    address: str | None = None  #: ``"auto"`` for the cluster that this machine belongs to; None to start Ray here
    workers: int | None = None  #: None for as many as there is room for
    gpus_per_worker: float | None = None  #: perhaps a fraction; None for one if the cluster has GPUs, else none
    cpus_per_worker: int | None = None  #: None for one beside a GPU, else up to four

    def __post_init__(self) -> None:
        for name, minimum in (("workers", 1), ("gpus_per_worker", 0), ("cpus_per_worker", 1)):
            if (value := getattr(self, name)) is not None:
                check_number(name, value, minimum=minimum, whole=name != "gpus_per_worker")


def run_on_ray(run: RunFolder, make_worker: Callable[[], ShardMatcher], cluster: Cluster) -> Iterator[ShardReport]:
    """Match the missing shards with the workers of a cluster; yield reports as shards are finished."""
    if run.missing:
        ray = load_ray()
        with _connected(ray, cluster.address):
            yield from _Crew(ray, run, make_worker, cluster).reports()


class _Task(NamedTuple):
    """What a worker is given: a shard or, where workers have died, one of its pairs."""

    number: int  #: of the shard
    pair: Pair | None = None  #: None for the whole shard
    deaths: int = 0  #: number of workers that have died at it


class _Crew:
    """The workers of a run. What a lost worker was at goes back into the queue, which belongs to this process."""

    def __init__(self, ray: Any, run: RunFolder, make_worker: Callable[[], ShardMatcher], cluster: Cluster) -> None:
        self.ray, self.run, self.make_worker, self.cluster = ray, run, make_worker, cluster
        self.queue = deque(map(_Task, run.missing))
        self.workers: dict[Any, float] = {}  # and how many GPUs each has; some still wait for a place
        self.idle: list[Any] = []  # workers, each as often as it can take another task
        self.pending: dict[Any, tuple[Any, _Task | None]] = {}  # what workers are at; None while they start
        self.parts: defaultdict[int, list[ShardReport]] = defaultdict(list)  # of shards
        self.deaths, self.hire_at, self.last_seen = 0, 0.0, time.monotonic()

    def reports(self) -> Iterator[ShardReport]:
        """Have all shards matched; yield a report when one is finished."""
        while self.queue or any(task for _, task in self.pending.values()):
            self._hire()
            while self.queue and self.idle:
                worker, task = self.idle.pop(0), self.queue.popleft()
                pairs = self.run.plan.shard(task.number) if task.pair is None else [task.pair]
                self.pending[worker.run.remote(task.number, pairs, task.pair is None)] = worker, task
            if not self.pending:  # all are dead, and it is too early for others
                time.sleep(0.1)
                continue
            for reference in self.ray.wait(list(self.pending), num_returns=1, timeout=_LOOK_EVERY)[0]:
                worker, started = self.pending.pop(reference)
                try:
                    report = self.ray.get(reference)
                except self.ray.exceptions.RayTaskError as error:
                    raise error.cause if isinstance(error.cause, DeepMatchingError) else error from None
                except self.ray.exceptions.RayError as error:  # of the worker, its machine or the way to it
                    report = self._lose(worker, started, error)
                else:  # another task of the worker may have been lost
                    slots = 2 if started is None and self.workers.get(worker) else 1
                    self.idle += slots * [worker] if worker in self.workers else []
                if started is not None and report is not None:
                    yield from self._count(report)

    def _hire(self) -> None:
        """Start workers for the tasks that wait, as many as there is room for by now."""
        now = time.monotonic()
        if self.idle or any(task for _, task in self.pending.values()):
            self.last_seen = now
        wanted = len(self.queue) - len(self.idle) - sum(task is None for _, task in self.pending.values())
        if wanted < 1 or now < self.hire_at:
            return
        room, gpus, cpus = _resources(self.ray, self.cluster)
        if room < 1 and (self.cluster.address is None or now > self.last_seen + _PATIENCE):
            needed = f"{gpus:g} GPUs and {cpus} CPU cores"
            raise DeepMatchingError(f"No machine of the Ray cluster has {needed} for a worker: ask for fewer.")
        # Workers without a place tell a cluster that can grow what is needed.
        if self.cluster.workers is not None:
            wanted = min(wanted, self.cluster.workers - len(self.workers))
        else:
            wanted = min(wanted, max(1, room) - sum(each == gpus for each in self.workers.values()))
        # A GPU matches a shard while the one before is written.
        kind = self.ray.remote(_RayWorker).options(num_cpus=cpus, num_gpus=gpus, max_concurrency=2 if gpus else 1)
        for _ in range(wanted):
            worker = kind.remote(self.make_worker, cpus)
            self.workers[worker] = gpus
            self.pending[worker.__ray_ready__.remote()] = worker, None
        self.hire_at = now + _LOOK_EVERY

    def _lose(self, worker: Any, task: _Task | None, error: Exception) -> ShardReport | None:
        """Give back what a lost worker was at; return a report of its pair if that has cost too many workers."""
        lines = [line.strip() for line in str(error).splitlines() if line.strip()] or [type(error).__name__]
        if getattr(error, "actor_init_failed", False):  # as it would anywhere
            raise DeepMatchingError(
                # Ray gives the remote traceback, which ends with the error.
                f"A worker of the Ray cluster cannot start ({lines[-1][:_MAX_REASON].rstrip('.')}): every "
                "machine needs the same deepmatching, and the model's file under the same path."
            ) from error
        if self.workers.pop(worker, None) is not None:  # the first of its tasks that is lost
            self.ray.kill(worker)  # it may only be out of reach
            self.idle = [other for other in self.idle if other != worker]
            self.hire_at = time.monotonic() + _PAUSE * 2 ** min(self.deaths, 6)
            self.deaths += 1
        if task is None:
            return None
        number, pair, deaths = task.number, task.pair, task.deaths + 1
        if deaths < _MAX_DEATHS or pair is None:
            pairs = self.run.plan.shard(number) if pair is None and deaths >= _MAX_WHOLE_DEATHS else [pair]
            self.queue.extend(_Task(number, each, deaths) for each in pairs)
            return None
        reason = f"Its worker died {deaths} times ({lines[0]}); try again with --retry."
        failed = MatchedPair(pair, NO_MATCHES, failure=reason)
        return ShardReport(number, 1, 0, {pair: reason}, 0, 0, unwritten=(failed,))

    def _count(self, report: ShardReport) -> Iterator[ShardReport]:
        """Yield the report of a whole shard; after a shard's last part, write the shard and yield its report."""
        self.deaths = 0
        if not report.unwritten:
            yield report
            return
        number, parts = report.number, self.parts[report.number]
        parts.append(report)
        if len(parts) == self.run.plan.count(number):
            pairs = {pair.names: pair for part in parts for pair in part.unwritten}
            write_shard(shard_file(self.run.path, number), [pairs[names] for names in self.run.plan.shard(number)])
            failures = {pair: reason for part in parts for pair, reason in part.failures.items()}
            _, _, matches, _, described, memory, doubtful, searched, *_ = zip(*self.parts.pop(number), strict=True)
            yield report._replace(
                **{"pairs": len(pairs), "matches": sum(matches), "failures": failures, "described": sum(described)},
                **{"memory": max(memory), "doubtful": sum(doubtful), "searched": sum(searched), "unwritten": ()},
            )


def check_cluster(cluster: Cluster) -> None:
    """Raise if Ray is not installed, or if the cluster cannot be reached."""
    if not load_ray().is_initialized():
        _check_address(cluster.address)


def load_ray() -> Any:
    """Return the module ray; raise if it is not installed."""
    try:
        import ray
        import ray.exceptions
    except ImportError:
        raise DeepMatchingError("--engine ray needs Ray: install it with pip install ray.") from None
    return ray


class _RayWorker:
    """A worker in a process of its own."""

    def __init__(self, make_worker: Callable[[], ShardMatcher], cores: float) -> None:
        import torch

        torch.set_num_threads(max(1, int(cores)))
        self._worker, self._lock = make_worker(), threading.Lock()

    def run(self, number: int, pairs: Sequence[Pair], is_whole: bool) -> ShardReport:
        with self._lock:
            writing = self._worker.submit(number, pairs, is_whole=is_whole)
        return writing.result()


@contextlib.contextmanager
def _connected(ray: Any, address: str | None) -> Iterator[None]:
    """Connect to a cluster or start one, unless the program has done so; disconnect from it at the end."""
    if ray.is_initialized():
        yield
        return
    _check_address(address)
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")  # silences a warning about future defaults
    options: dict[str, Any] = {} if address is not None else {"include_dashboard": False}
    printed: list[str] = []
    try:
        with _printed(printed) if address is not None else contextlib.nullcontext():
            ray.init(address=address or "local", logging_level=logging.ERROR, log_to_driver=False, **options)
    except Exception as error:  # Ray raises plain ones too: a busy machine may not start it in time
        raise _no_cluster(address, error, "".join(printed)) from error
    try:
        yield
    finally:
        ray.shutdown()


@contextlib.contextmanager
def _printed(caught: list[str]) -> Iterator[None]:
    """Collect what is printed to the standard error of the process if the block fails; print it if it succeeds.

    Ray prints why it cannot connect, once a second, and raises an error without the reason.
    """
    try:
        saved = os.dup(_STDERR)
    except OSError:  # closed
        yield
        return
    with tempfile.TemporaryFile() as file:
        os.dup2(file.fileno(), _STDERR)
        has_failed = True
        try:
            yield
            has_failed = False
        finally:
            file.seek(0)
            printed = file.read()
            caught.append(printed.decode(errors="replace")) if has_failed else os.write(saved, printed)
            os.dup2(saved, _STDERR)
            os.close(saved)


def _check_address(address: str | None) -> None:
    """Raise if HOST:PORT cannot be reached; Ray itself would wait for minutes."""
    host, _, port = (address or "").removeprefix("ray://").rpartition(":")
    if not host:
        return
    try:
        socket.create_connection((host, int(port)), _TIMEOUT).close()
    except (OSError, ValueError, OverflowError) as error:
        raise _no_cluster(address, error) from error


def _no_cluster(address: str | None, error: Exception, printed: str = "") -> DeepMatchingError:
    reason = " ".join(str(error).split())[:_MAX_REASON].rstrip(".") or type(error).__name__
    if address is None:
        return DeepMatchingError(f"Ray does not start on this machine ({reason}): try again, or use --engine local.")
    if any(words in f"{printed}{error}" for words in ("AuthToken", "Token authentication")):
        return DeepMatchingError(
            f"The Ray cluster at '{address}' asks for a token, and this command has none or another one: set "
            "RAY_AUTH_MODE=token, and RAY_AUTH_TOKEN to the cluster's token."
        )
    return DeepMatchingError(
        f"There is no Ray cluster at '{address}' that can be used ({reason}): start one with ray start, or correct "
        "--address."
    )


def _resources(ray: Any, cluster: Cluster) -> tuple[int, float, float]:
    """Return how many workers there is room for now, and the GPUs and CPU cores of each."""
    nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]
    gpus = cluster.gpus_per_worker
    if gpus is None:
        gpus = 1.0 if any(node.get("GPU", 0) >= 1 for node in nodes) else 0.0
    smallest = min((int(node["CPU"]) for node in nodes if node.get("CPU", 0) >= 1), default=1)
    cpus = cluster.cpus_per_worker or (1 if gpus else min(_MAX_CORES, smallest))
    room = sum(int(min(node.get("CPU", 0) / cpus, node.get("GPU", 0) / gpus if gpus else math.inf)) for node in nodes)
    return room, gpus, cpus
