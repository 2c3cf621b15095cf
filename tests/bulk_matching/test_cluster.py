"""Ray: the same matches on one machine and on a cluster, whatever dies."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest

import deepmatching as dm
from deepmatching.bulk_matching import Cluster, Progress, RunFolder, ShardReport, exhaustive_pairs
from deepmatching.bulk_matching.storage import SHARDS
from deepmatching.errors import DeepMatchingError

SETTINGS: dict[str, Any] = {"model": "hog", "radius": 32, "device": "cpu"}


def shards(run: RunFolder) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted((run.path / SHARDS).iterdir())}


def test_without_ray_the_error_says_how_to_install_it(
    photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(DeepMatchingError, match=r"pip install 'deepmatching\[bulk\]'"):
        dm.bulk(exhaustive_pairs(photos), photos, tmp_path / "run", engine="ray", **SETTINGS)


def test_a_machine_that_does_not_start_ray_is_one_sentence(
    photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def init(**_: Any) -> None:
        raise Exception("The current node timed out during startup.\nMore about it.")  # as Ray raises it

    stub = SimpleNamespace(is_initialized=lambda: False, init=init)
    monkeypatch.setattr("deepmatching.bulk_matching.cluster.load_ray", lambda: stub)
    with pytest.raises(DeepMatchingError, match=r"does not start on this machine \(The current node timed out"):
        dm.bulk(exhaustive_pairs(photos), photos, tmp_path / "run", engine="ray", **SETTINGS)


def test_impossible_clusters_are_refused() -> None:
    for options in ({"workers": 0}, {"gpus_per_worker": -1}, {"cpus_per_worker": 0}):
        with pytest.raises(DeepMatchingError, match="must be"):
            Cluster(**options)  # type: ignore[arg-type]


@pytest.fixture
def ray(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Ray, which the tests leave as they found it."""
    module = pytest.importorskip("ray")
    paths = [str(Path(dm.__file__).parents[1]), os.environ.get("PYTHONPATH", "")]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, paths)))  # for the workers
    monkeypatch.setenv("RAY_USAGE_STATS_ENABLED", "0")
    yield module
    module.shutdown()


@pytest.mark.slow
def test_two_workers_on_one_machine_give_the_same_bytes_and_one_that_is_killed_loses_nothing(
    photos: Path, tmp_path: Path, ray: Any
) -> None:
    pairs = exhaustive_pairs(photos)
    expected = shards(dm.bulk(pairs, photos, tmp_path / "local", **SETTINGS))
    ray.init(address="local", num_cpus=2, include_dashboard=False, log_to_driver=False)
    killed: list[int] = []

    def kill_once(_: Progress, report: ShardReport) -> None:
        workers = [process for process in psutil.Process().children(recursive=True) if "_RayWorker" in _title(process)]
        if not killed and workers:
            killed.append(workers[0].pid)
            os.kill(workers[0].pid, signal.SIGTERM if os.name == "nt" else signal.SIGKILL)

    cluster = Cluster(workers=2, cpus_per_worker=1)
    run = dm.bulk(pairs, photos, tmp_path / "run", engine="ray", cluster=cluster, on_shard=kill_once, **SETTINGS)
    assert killed
    assert shards(run) == expected and run.failures() == {}


@pytest.mark.slow
def test_a_cluster_of_two_machines_gives_the_same_bytes(photos: Path, tmp_path: Path, ray: Any) -> None:
    from ray.cluster_utils import Cluster as SimulatedCluster

    pairs = exhaustive_pairs(photos)
    expected = shards(dm.bulk(pairs, photos, tmp_path / "local", **SETTINGS))
    machines = SimulatedCluster(initialize_head=True, head_node_args={"num_cpus": 1})
    try:
        machines.add_node(num_cpus=1)
        cluster = Cluster(address=machines.address, cpus_per_worker=1)
        run = dm.bulk(pairs, photos, tmp_path / "run", engine="ray", cluster=cluster, **SETTINGS)
        assert shards(run) == expected
    finally:
        ray.shutdown()
        machines.shutdown()


@pytest.mark.slow
def test_a_shard_that_kills_its_workers_is_given_up_and_the_others_go_on(
    photos: Path, tmp_path: Path, ray: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    from deepmatching.bulk_matching import cluster as module

    pairs = exhaustive_pairs(photos)
    monkeypatch.setattr(module, "_RayWorker", _Deadly)
    cluster = Cluster(workers=1, cpus_per_worker=1)
    run = dm.bulk(pairs, photos, tmp_path / "run", engine="ray", cluster=cluster, **SETTINGS)
    failures = run.failures()
    assert len(failures) == 1 and "died 3 times" in next(iter(failures.values()))
    assert len(run.missing) == 0
    again = dm.bulk(pairs, photos, tmp_path / "run", retry=True, **SETTINGS)
    assert again.failures() == {}


class _Deadly:
    """A worker that one shard kills."""

    def __init__(self, job: Any, cores: float) -> None:
        from deepmatching.bulk_matching.work import Worker

        self._worker = Worker(job)

    def run(self, number: int, pairs: Any) -> tuple[Any, ...]:
        if number == 3:
            os.kill(os.getpid(), signal.SIGTERM if os.name == "nt" else signal.SIGKILL)
        return tuple(self._worker.run(number, pairs))


@pytest.mark.parametrize("address", ["127.0.0.1:1", "ray://127.0.0.1:1", "127.0.0.1:port"])
def test_an_address_without_a_cluster_is_one_sentence(address: str, photos: Path, tmp_path: Path, ray: Any) -> None:
    cluster = Cluster(address=address)
    with pytest.raises(DeepMatchingError, match=f"There is no Ray cluster at '{address}'"):
        dm.bulk(exhaustive_pairs(photos), photos, tmp_path / "run", engine="ray", cluster=cluster, **SETTINGS)


def _title(process: psutil.Process) -> str:
    try:
        return " ".join(process.cmdline())
    except psutil.Error:
        return ""
