"""Matching shards on a Ray cluster, or on this machine with Ray: the extra ``bulk``.

Each worker is a Ray actor with a matcher of its own, on a GPU or on a few CPU cores. Ray places the actors, restarts
one that dies and runs its shard again. All machines must see the folders of the images and of the run under the same
paths.
"""

from __future__ import annotations

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

#: A shard is given up once its worker has died this often: one of its pairs is probably the reason.
_MAX_ATTEMPTS = 3

#: Seconds to wait for a cluster's answer.
_TIMEOUT = 5.0

#: Largest number of CPU cores of a worker without a GPU.
_MAX_CORES = 4

#: Words that Ray prints or raises if a cluster asks for a token.
_TOKEN_WORDS = ("AuthToken", "Token authentication")

#: Largest number of characters of Ray's errors that are repeated.
_MAX_REASON = 300

_STDERR = 2


@dataclass(frozen=True)
class Cluster:
    """Where workers run, and what each of them gets.

    Attributes:
        address: of a Ray cluster; ``"auto"`` for the one that this machine belongs to; None to start Ray here.
        workers: number of workers; None for as many as the resources allow.
        gpus_per_worker: GPUs of a worker, perhaps a fraction; None for one if the cluster has GPUs, else none.
        cpus_per_worker: CPU cores of a worker; None for one beside a GPU, else up to four.
    """

    address: str | None = None
    workers: int | None = None
    gpus_per_worker: float | None = None
    cpus_per_worker: int | None = None

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
                if getattr(error, "actor_init_failed", False):  # as it would for every other shard
                    raise _no_worker(error) from error
                yield _give_up(run, number, error)
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
        try:
            yield
        except BaseException:
            file.seek(0)
            caught.append(file.read().decode(errors="replace"))
            raise
        else:
            file.seek(0)
            os.write(saved, file.read())
        finally:
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
    if any(sign in text for sign in _TOKEN_WORDS for text in (printed, str(error))):
        return DeepMatchingError(
            f"The Ray cluster at '{address}' asks for a token, and this command has none or another one: set "
            "RAY_AUTH_MODE=token, and RAY_AUTH_TOKEN to the cluster's token."
        )
    return DeepMatchingError(
        f"There is no Ray cluster at '{address}' that can be used ({reason}): start one with ray start, or correct "
        "--address."
    )


def _no_worker(error: Exception) -> DeepMatchingError:
    """Make the error of a worker that cannot start; Ray gives the remote traceback, which ends with the error."""
    lines = [line.strip() for line in f"{error}".splitlines() if line.strip()]
    reason = lines[-1] if lines else type(error).__name__
    return DeepMatchingError(
        f"A worker of the Ray cluster cannot start ({reason[:_MAX_REASON].rstrip('.')}): every machine needs the same "
        "deepmatching, and the model's file under the same path."
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


def _give_up(run: RunFolder, number: int, error: Exception) -> ShardReport:
    """Record the pairs of a shard that kills its workers as failed."""
    reason = f"Its worker died {_MAX_ATTEMPTS} times ({str(error).strip().splitlines()[0]}); try again with --retry."
    pairs = [MatchedPair(pair, NO_MATCHES, failure=reason) for pair in run.plan.shard(number)]
    write_shard(shard_file(run.path, number), pairs)
    return ShardReport(number, len(pairs), 0, {pair.names: reason for pair in pairs}, 0, 0)
