"""Ray: the same matches on one machine and on a cluster, whatever dies."""

import contextlib
import functools
import os
import secrets
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest

import deepmatching as dm
from deepmatching.bulk_matching import Cluster, Progress, RunFolder, ShardReport, exhaustive_pairs
from deepmatching.bulk_matching import cluster as cluster_module
from deepmatching.bulk_matching.storage import SHARDS
from deepmatching.errors import DeepMatchingError

SETTINGS: dict[str, Any] = {"model": "hog", "radius": 32, "device": "cpu"}


def shards(run: RunFolder) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted((run.path / SHARDS).iterdir())}


def test_without_ray_the_error_says_how_to_install_it(
    photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(DeepMatchingError, match="pip install ray"):
        dm.bulk(exhaustive_pairs(photos), photos, tmp_path / "run", engine="ray", **SETTINGS)


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


def test_a_restart_without_a_cluster_keeps_the_run(
    photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = shards(dm.bulk(exhaustive_pairs(photos), photos, tmp_path / "run", **SETTINGS))
    monkeypatch.setattr(cluster_module, "load_ray", lambda: _stub(None))
    options: dict[str, Any] = {"engine": "ray", "cluster": Cluster(address="127.0.0.1:1"), "restart": True}
    with pytest.raises(DeepMatchingError, match="There is no Ray cluster at"):
        dm.bulk(exhaustive_pairs(photos), photos, tmp_path / "run", **options, **SETTINGS)
    assert shards(RunFolder(tmp_path / "run")) == before


def test_a_shard_whose_worker_ray_ends_for_want_of_memory_is_given_up_and_the_others_go_on(
    photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class OutOfMemoryError(Exception):
        """Ray's, which is no RayActorError."""

    def get(number: int) -> Any:
        if number == 3:
            raise OutOfMemoryError("The node is low on memory.\nMore about it.")
        return number, 1, 0, {}, 0, 0

    kinds = SimpleNamespace(OutOfMemoryError=OutOfMemoryError, RayActorError=KeyError, RayTaskError=IndexError)
    actor = SimpleNamespace(run=SimpleNamespace(remote=lambda number, pairs: number))
    stub = SimpleNamespace(
        is_initialized=lambda: True,
        cluster_resources=dict,
        nodes=lambda: [{"Alive": True, "Resources": {"CPU": 2.0}}],
        remote=lambda _: SimpleNamespace(options=lambda **_: SimpleNamespace(remote=lambda *_: actor)),
        wait=lambda pending, num_returns: (pending[:1], pending[1:]),
        get=get,
        exceptions=kinds,
    )
    monkeypatch.setattr(cluster_module, "load_ray", lambda: stub)
    reports: list[ShardReport] = []
    pairs = exhaustive_pairs(photos)
    run = dm.bulk(pairs, photos, tmp_path / "run", engine="ray", on_shard=lambda _, r: reports.append(r), **SETTINGS)
    assert len(reports) == 10 and run.done == {3}
    assert [reason for report in reports for reason in report.failures.values()] == [
        "Its worker died 3 times (The node is low on memory.); try again with --retry."
    ]


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
    monkeypatch.setattr(module, "init", _patient(module.init))
    yield module
    module.shutdown()


def _patient(start: Any) -> Any:
    """Skips the test if Ray is not started within its own 30 seconds, as on a busy machine."""

    @functools.wraps(start)
    def started(*arguments: Any, **options: Any) -> Any:
        try:
            return start(*arguments, **options)
        except Exception as error:
            if "timed out during startup" not in str(error):
                raise
        pytest.skip("Ray does not start in time here")

    return started


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
    machines = _patient(SimulatedCluster)(initialize_head=True, head_node_args={"num_cpus": 1})
    try:
        _patient(machines.add_node)(num_cpus=1)
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
    pairs = exhaustive_pairs(photos)
    monkeypatch.setattr(cluster_module, "_RayWorker", _Deadly)
    cluster = Cluster(workers=1, cpus_per_worker=1)
    run = dm.bulk(pairs, photos, tmp_path / "run", engine="ray", cluster=cluster, **SETTINGS)
    failures = run.failures()
    assert len(failures) == 1 and "died 3 times" in next(iter(failures.values()))
    assert len(run.missing) == 0
    again = dm.bulk(pairs, photos, tmp_path / "run", retry=True, **SETTINGS)
    assert again.failures() == {}


class _Deadly:
    """A worker that one shard kills."""

    def __init__(self, make_worker: Any, cores: float) -> None:
        self._worker = make_worker()

    def run(self, number: int, pairs: Any) -> tuple[Any, ...]:
        if number == 3:
            os.kill(os.getpid(), signal.SIGTERM if os.name == "nt" else signal.SIGKILL)
        return tuple(self._worker.start(number, pairs).result())


class _Broken(_Deadly):
    """A worker that cannot start."""

    def __init__(self, make_worker: Any, cores: float) -> None:
        raise DeepMatchingError("There is no model here.")


@pytest.mark.slow
def test_workers_that_cannot_start_end_the_run_and_no_pair_counts_as_failed(
    photos: Path, tmp_path: Path, ray: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cluster_module, "_RayWorker", _Broken)
    cluster = Cluster(workers=1, cpus_per_worker=1)
    with pytest.raises(DeepMatchingError, match=r"cannot start \(.*There is no model here\): every machine"):
        dm.bulk(exhaustive_pairs(photos), photos, tmp_path / "run", engine="ray", cluster=cluster, **SETTINGS)
    assert len(RunFolder(tmp_path / "run").missing) == 10


@pytest.mark.slow
def test_a_cluster_with_a_token_serves_those_who_have_it_and_sends_others_away_with_one_sentence(
    photos: Path, tmp_path: Path, ray: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
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
    """The address of a Ray cluster that was started with these variables."""
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
