"""Ray: the same matches on one machine and on a cluster, whatever dies."""

import contextlib
import os
import secrets
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial, wraps
from itertools import count
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest
import torch

import deepmatching as dm
from deepmatching.bulk_matching import Cluster, Progress, RunFolder, ShardReport, exhaustive_pairs
from deepmatching.bulk_matching import cluster as cluster_module
from deepmatching.bulk_matching.engine import ShardMatcher
from deepmatching.bulk_matching.pairs import Pair
from deepmatching.errors import DeepMatchingError
from helpers.bulk_runs import SETTINGS, shards


def test_without_ray_nothing_is_written(photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(DeepMatchingError, match="pip install ray"):
        dm.bulk(exhaustive_pairs(photos), photos, tmp_path / "run", engine="ray", **SETTINGS)
    assert not (tmp_path / "run").exists()


def _stub(init: Any) -> SimpleNamespace:
    return SimpleNamespace(is_initialized=lambda: False, init=init, shutdown=lambda: None)


@pytest.mark.parametrize(
    ("address", "printed", "raised", "words"),
    [
        (None, b"", "The current node timed out.\nMore about it.", r"does not start .* \(The current node timed out"),
        ("auto", b"gcs_client.cc:210: InvalidAuthToken: none\n", "No.", "'auto' asks for a token.*RAY_AUTH_TOKEN"),
        ("auto", b"", "Token authentication is enabled but no token was found.", "'auto' asks for a token"),
        ("auto", b"", "Version mismatch: cluster:\n    Ray: 2.9\nThis process:\n    Ray: 3", r"2\.9 This .*: 3\)"),
    ],
)
def test_a_cluster_that_does_not_answer_is_one_sentence(
    address: str | None, printed: bytes, raised: str, words: str, capfd: pytest.CaptureFixture[str]
) -> None:
    def init(**_: Any) -> None:
        os.write(2, printed)
        raise Exception(raised)  # as Ray raises it

    with pytest.raises(DeepMatchingError, match=words) as error, cluster_module._connected(_stub(init), address):
        pass
    assert capfd.readouterr().err == "" and "\n" not in str(error.value)


def test_what_ray_prints_while_it_connects_is_not_lost(capfd: pytest.CaptureFixture[str]) -> None:
    with cluster_module._connected(_stub(lambda **_: os.write(2, b"A new version is there.\n")), "auto"):
        os.write(2, b"Afterwards.\n")
    assert capfd.readouterr().err == "A new version is there.\nAfterwards.\n"


def test_a_failed_restart_keeps_the_run(photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = shards(dm.bulk(exhaustive_pairs(photos), photos, tmp_path / "run", **SETTINGS))
    monkeypatch.setattr(cluster_module, "load_ray", lambda: _stub(None))
    options: dict[str, Any] = {"engine": "ray", "cluster": Cluster(address="127.0.0.1:1"), "restart": True}
    with pytest.raises(DeepMatchingError, match="There is no Ray cluster at"):
        dm.bulk(exhaustive_pairs(photos), photos, tmp_path / "run", **options, **SETTINGS)
    assert shards(RunFolder(tmp_path / "run")) == before


class _RayError(Exception):
    """Stands for all errors of Ray but those of tasks."""


class _FakeRay:
    """A cluster whose workers match in this process, one task after the other, and die if ``is_deadly`` says so.

    A function stands for the reference of a result.
    """

    exceptions = SimpleNamespace(RayError=_RayError, RayTaskError=KeyError)
    is_initialized = staticmethod(lambda: True)
    wait = staticmethod(lambda pending, num_returns, timeout: (pending[:num_returns], pending[num_returns:]))
    get = staticmethod(lambda reference: reference())
    kill = staticmethod(lambda worker: None)

    def __init__(self, is_deadly: Callable[[Sequence[Pair]], bool], *rooms: dict[str, float]) -> None:
        self.is_deadly, self.rooms = is_deadly, iter(rooms)  # what the machine has, each time somebody looks
        self.room: dict[str, float] = {}
        self.hired: list[dict[str, Any]] = []

    def nodes(self) -> list[dict[str, Any]]:
        self.room = next(self.rooms, self.room)
        return [{"Alive": True, "Resources": self.room}]

    def remote(self, _: object) -> Any:
        return SimpleNamespace(options=lambda **options: SimpleNamespace(remote=partial(self._start, options)))

    def _start(self, options: dict[str, Any], make_worker: Callable[[], ShardMatcher], _: float) -> Any:
        self.hired.append(options)
        worker = make_worker()

        def die_or_match(number: int, pairs: Sequence[Pair], is_whole: bool) -> ShardReport:
            if self.is_deadly(pairs):
                raise _RayError("The actor died.\nMore about it.")
            return worker.submit(number, pairs, is_whole=is_whole).result()

        class Actor:
            __ray_ready__ = SimpleNamespace(remote=lambda: lambda: True)
            run = SimpleNamespace(remote=lambda *task: partial(die_or_match, *task))

        return Actor()


@pytest.fixture
def run_on(monkeypatch: pytest.MonkeyPatch, photos: Path, tmp_path: Path) -> Callable[..., RunFolder]:
    """Match the photographs, ten pairs in three shards, in this process or on a made-up cluster."""
    monkeypatch.setattr("deepmatching.bulk_matching.running._MIN_SHARDS", 3)
    monkeypatch.setattr(cluster_module, "_PAUSE", 0.0)
    monkeypatch.setattr(cluster_module, "_LOOK_EVERY", 0.0)

    def run(ray: _FakeRay | None, **options: Any) -> RunFolder:
        monkeypatch.setattr(cluster_module, "load_ray", lambda: ray)
        out, engine = (tmp_path / "local", "local") if ray is None else (tmp_path / "ray", "ray")
        return dm.bulk(exhaustive_pairs(photos), photos, out, engine=engine, **options, **SETTINGS)

    return run


def test_a_pair_that_kills_its_workers_costs_itself_alone(run_on: Callable[..., RunFolder]) -> None:
    deadly = ("photo 1.png", "wide.png")
    expected = {pair.names: pair for pair in run_on(None)}
    ray = _FakeRay(lambda pairs: deadly in pairs, {"CPU": 2.0})
    reports: list[ShardReport] = []
    run = run_on(ray, on_shard=lambda _, report: reports.append(report))
    assert run.failures() == {deadly: "Its worker died 5 times (The actor died.); try again with --retry."}
    assert run.missing == [] and len(ray.hired) == 5
    assert sum(report.pairs for report in reports) == 10
    for pair in run:
        if pair.names != deadly:
            assert torch.equal(pair.matches.keypoints1, expected[pair.names].matches.keypoints1)


def test_workers_that_die_at_every_second_task_lose_nothing(run_on: Callable[..., RunFolder]) -> None:
    tasks = count()
    ray = _FakeRay(lambda _: next(tasks) % 2 == 0, {"CPU": 8.0})
    assert shards(run_on(ray)) == shards(run_on(None))
    assert len(ray.hired) > 4


def test_later_machines_get_workers(run_on: Callable[..., RunFolder], monkeypatch: pytest.MonkeyPatch) -> None:
    ray = _FakeRay(lambda _: False, {"CPU": 1.0}, {"CPU": 1.0}, {"CPU": 2.0, "GPU": 1.0})
    assert run_on(ray).missing == []
    assert [options["num_gpus"] for options in ray.hired] == [0, 1]
    for address, patience in ((None, 1e9), ("auto", -1.0)):
        monkeypatch.setattr(cluster_module, "_PATIENCE", patience)
        ray, cluster = _FakeRay(lambda _: False, {"CPU": 2.0}), Cluster(address=address, cpus_per_worker=4)
        with pytest.raises(DeepMatchingError, match="0 GPUs and 4 CPU cores"):
            run_on(ray, restart=True, cluster=cluster)


def test_impossible_clusters_are_refused() -> None:
    for options in ({"workers": 0}, {"gpus_per_worker": -1}, {"cpus_per_worker": 0}):
        with pytest.raises(DeepMatchingError, match="must be"):
            Cluster(**options)  # type: ignore[arg-type]


@pytest.fixture
def ray(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Ray, which the tests leave as they found it."""
    module = pytest.importorskip("ray")
    paths = [str(Path(dm.__file__).parents[1]), str(Path(__file__).parents[1]), os.environ.get("PYTHONPATH", "")]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, paths)))  # for the workers
    monkeypatch.setenv("RAY_USAGE_STATS_ENABLED", "0")
    monkeypatch.setattr(module, "init", _patient(module.init))
    yield module
    module.shutdown()


def _patient(start: Any) -> Any:
    """Skip the test if Ray is not started within its own 30 seconds, as on a busy machine."""

    @wraps(start)
    def started(*arguments: Any, **options: Any) -> Any:
        try:
            return start(*arguments, **options)
        except Exception as error:
            if "timed out during startup" not in str(error):
                raise
        pytest.skip("Ray does not start in time here")

    return started


@pytest.mark.slow
def test_a_worker_that_is_killed_loses_nothing(photos: Path, tmp_path: Path, ray: Any) -> None:
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
def test_machines_may_come_and_go(photos: Path, tmp_path: Path, ray: Any) -> None:
    """The only machine with room goes after the third shard, and another comes after that."""
    from ray.cluster_utils import Cluster as SimulatedCluster

    pairs = exhaustive_pairs(photos)
    expected = shards(dm.bulk(pairs, photos, tmp_path / "local", **SETTINGS))
    machines = _patient(SimulatedCluster)(initialize_head=True, head_node_args={"num_cpus": 0})
    try:
        first = _patient(machines.add_node)(num_cpus=1)

        def swap(progress: Progress, _: ShardReport) -> None:
            if progress.done == 3:
                machines.remove_node(first, allow_graceful=False)
                machines.add_node(num_cpus=2)

        cluster = Cluster(address=machines.address, cpus_per_worker=1)
        run = dm.bulk(pairs, photos, tmp_path / "run", engine="ray", cluster=cluster, on_shard=swap, **SETTINGS)
        assert shards(run) == expected
    finally:
        ray.shutdown()
        machines.shutdown()


@pytest.mark.slow
def test_broken_workers_fail_no_pair(photos: Path, tmp_path: Path, ray: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    class Broken:  # here, as other processes cannot import this module
        def __init__(self, make_worker: Any, cores: float) -> None:
            raise DeepMatchingError("There is no model here.")

    monkeypatch.setattr(cluster_module, "_RayWorker", Broken)
    cluster = Cluster(workers=1, cpus_per_worker=1)
    with pytest.raises(DeepMatchingError, match=r"cannot start \(.*There is no model here\): every machine"):
        dm.bulk(exhaustive_pairs(photos), photos, tmp_path / "run", engine="ray", cluster=cluster, **SETTINGS)
    assert len(RunFolder(tmp_path / "run").missing) == 10


@pytest.mark.slow
def test_a_token_guards_a_cluster(photos: Path, tmp_path: Path, ray: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    if not hasattr(ray.exceptions, "AuthenticationError"):
        pytest.skip("this version of Ray has no tokens")
    monkeypatch.delenv("RAY_AUTH_MODE", raising=False)
    expected = shards(dm.bulk(exhaustive_pairs(photos), photos, tmp_path / "local", **SETTINGS))
    token = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32)}
    arguments = ["bulk", photos, "--exhaustive", "--model", "hog", "--radius", 32, "--device", "cpu", "--quiet"]
    with _started_cluster(token) as address:
        command = [sys.executable, "-m", "deepmatching", *map(str, arguments), "--engine", "ray", "--address", address]
        runs = {}
        for name, more in (("none", {}), ("wrong", {**token, "RAY_AUTH_TOKEN": 64 * "0"}), ("right", token)):
            to = [*command, "--cpus-per-worker", "1", "--out", str(tmp_path / name)]
            runs[name] = subprocess.Popen(to, stderr=subprocess.PIPE, text=True, env={**os.environ, **more})
        printed = {name: process.communicate()[1] for name, process in runs.items()}
    assert (runs["right"].returncode, printed["right"]) == (0, "")
    assert shards(RunFolder(tmp_path / "right")) == expected
    for name in ("none", "wrong"):
        assert runs[name].returncode == 2
        assert printed[name].startswith(f"deepmatching: The Ray cluster at '{address}' asks for a token")
        assert len(printed[name].splitlines()) == 1


@contextlib.contextmanager
def _started_cluster(environment: dict[str, str]) -> Iterator[str]:
    """Start a Ray cluster with these variables; yield its address."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        address = probe.getsockname()
    options = ["--head", "--block", f"--port={address[1]}", "--num-cpus=1", "--include-dashboard=false"]
    command = [sys.executable, "-m", "ray.scripts.scripts", "start", *options]
    output = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    process = subprocess.Popen(command, env={**os.environ, **environment}, **output)  # type: ignore[call-overload]
    try:
        while process.poll() is None:
            with contextlib.suppress(OSError), socket.create_connection(address, 5):
                break
            time.sleep(0.2)
        if process.poll() is not None:
            pytest.skip("Ray does not start in time here")
        yield "{}:{}".format(*address)
    finally:
        with contextlib.suppress(psutil.NoSuchProcess):  # it has ended
            for child in psutil.Process(process.pid).children(recursive=True):
                with contextlib.suppress(psutil.NoSuchProcess):
                    child.kill()
        process.kill()
        process.wait()


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
