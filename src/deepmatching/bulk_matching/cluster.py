"""Matching shards on a Ray cluster, or on this machine with Ray: the extra ``bulk``.

Each worker is a Ray actor with a matcher of its own, on a GPU or on a few CPU cores. Ray places the actors, restarts
one that dies and runs its shard again. All machines must see the folders of the images and of the run under the same
paths.
"""

import contextlib
import logging
import os
import socket
import tempfile
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from deepmatching.bulk_matching.engine import ShardReport, Worker
from deepmatching.bulk_matching.storage import MatchedPair, RunFolder, shard_file, write_shard
from deepmatching.errors import DeepMatchingError, check_number
from deepmatching.matches import NO_MATCHES

_MAX_ATTEMPTS = 3  #: A shard is given up once its worker has died this often: one of its pairs is probably the reason.
_TIMEOUT = 5.0  #: Seconds to wait for a cluster's answer.
_MAX_CORES = 4  #: Largest number of CPU cores of a worker without a GPU.
_MAX_REASON = 300  #: Largest number of characters of Ray's errors that are repeated.
_STDERR = 2  #: The file descriptor of standard error.


@dataclass(frozen=True)
class Cluster:
    """Where workers run, and what each of them gets."""

    address: str | None = None  #: ``"auto"`` for the cluster that this machine belongs to; None to start Ray here
    workers: int | None = None  #: None for as many as the resources allow
    gpus_per_worker: float | None = None  #: perhaps a fraction; None for one if the cluster has GPUs, else none
    cpus_per_worker: int | None = None  #: None for one beside a GPU, else up to four

    def __post_init__(self) -> None:
        if self.workers is not None:
            check_number("The number of workers", self.workers, minimum=1, whole=True)
        if self.gpus_per_worker is not None:
            check_number("The number of GPUs per worker", self.gpus_per_worker, minimum=0)
        if self.cpus_per_worker is not None:
            check_number("The number of CPU cores per worker", self.cpus_per_worker, minimum=1, whole=True)


def run_on_ray(
    run: RunFolder, make_worker: Callable[[], Worker], missing: Sequence[int], cluster: Cluster
) -> Iterator[ShardReport]:
    """Match the missing shards with the workers of a cluster; yield reports as shards are finished."""
    if not missing:
        return
    ray = load_ray()
    with _connected(ray, cluster.address):
        count, gpus, cpus = _resources(ray, cluster)
        at_once = 2 if gpus else 1  # a GPU matches a shard while the one before is written
        options = {"max_restarts": -1, "max_task_retries": _MAX_ATTEMPTS - 1, "max_concurrency": at_once}
        worker = ray.remote(_RayWorker).options(num_cpus=cpus, num_gpus=gpus, **options)
        idle = deque(at_once * [worker.remote(make_worker, cpus) for _ in range(min(count, len(missing)))])
        waiting, pending = deque(missing), dict[Any, tuple[Any, int]]()
        while waiting or pending:
            while waiting and idle:
                actor, number = idle.popleft(), waiting.popleft()
                pending[actor.run.remote(number, run.plan.shard(number))] = (actor, number)
            (ready, *_), _ = ray.wait(list(pending), num_returns=1)
            actor, number = pending.pop(ready)
            try:
                yield ShardReport(*ray.get(ready))
            except (ray.exceptions.RayActorError, ray.exceptions.OutOfMemoryError) as error:
                lines = [line.strip() for line in str(error).splitlines() if line.strip()] or [type(error).__name__]
                if getattr(error, "actor_init_failed", False):  # as it would for every other shard
                    raise DeepMatchingError(
                        # Ray gives the remote traceback, which ends with the error.
                        f"A worker of the Ray cluster cannot start ({lines[-1][:_MAX_REASON].rstrip('.')}): every "
                        "machine needs the same deepmatching, and the model's file under the same path."
                    ) from error
                reason = f"Its worker died {_MAX_ATTEMPTS} times ({lines[0]}); try again with --retry."
                failed = [MatchedPair(pair, NO_MATCHES, failure=reason) for pair in run.plan.shard(number)]
                write_shard(shard_file(run.path, number), failed)
                yield ShardReport(number, len(failed), 0, {pair.names: reason for pair in failed}, 0, 0)
            except ray.exceptions.RayTaskError as error:
                raise error.cause if isinstance(error.cause, DeepMatchingError) else error from None
            idle.append(actor)


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

    def __init__(self, make_worker: Callable[[], Worker], cores: float) -> None:
        import torch

        torch.set_num_threads(max(1, int(cores)))
        self._worker, self._lock = make_worker(), threading.Lock()

    def run(self, number: int, pairs: Sequence[tuple[str, str]]) -> tuple[Any, ...]:
        with self._lock:
            writing = self._worker.start(number, pairs)
        return tuple(writing.result())


@contextlib.contextmanager
def _connected(ray: Any, address: str | None) -> Iterator[None]:
    """Connect to a cluster or start one, unless the program has done so; disconnect from it at the end."""
    if ray.is_initialized():
        yield
        return
    _check_address(address)
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")  # silences a warning about future defaults
    options: dict[str, Any] = {"logging_level": logging.ERROR, "log_to_driver": False}
    if address is None:
        options["include_dashboard"] = False
    printed: list[str] = []
    try:
        with _printed(printed) if address is not None else contextlib.nullcontext():
            ray.init(address=address or "local", **options)
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
    """Return the number of workers, and the GPUs and CPU cores of each."""
    there = ray.cluster_resources()
    gpus = cluster.gpus_per_worker
    if gpus is None:
        gpus = 1.0 if there.get("GPU", 0) >= 1 else 0.0
    nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]
    smallest = min((int(node.get("CPU", 0)) for node in nodes if node.get("CPU", 0) >= 1), default=1)
    cpus = cluster.cpus_per_worker or (1 if gpus else min(_MAX_CORES, smallest))
    room = sum(int(min([node.get("CPU", 0) / cpus, *([node.get("GPU", 0) / gpus] if gpus else [])])) for node in nodes)
    if room < 1:
        raise DeepMatchingError(
            f"No machine of the Ray cluster has {gpus:g} GPUs and {cpus} CPU cores for a worker: ask for fewer."
        )
    return min(room, cluster.workers or room), gpus, cpus
