"""Two processes act as one: a signal or an error in one of them stops both, and nothing is lost."""

import contextlib
import json
import math
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from deepmatching.errors import DeepMatchingError
from deepmatching.training import read_config, train
from deepmatching.training.log import Row, read_log
from deepmatching.training.processes import World, process_group, start_agreeing
from helpers import two_processes
from helpers.two_processes import TRAININGS

pytestmark = pytest.mark.slow  # nearly every test waits for the two processes

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, manifest: Path) -> Path:
    """Return the results of all trainings of ``two_processes.py``, in the same two processes."""
    if not torch.distributed.is_available():
        pytest.skip("PyTorch without torch.distributed")
    from torch.distributed import TCPStore

    folder = tmp_path_factory.mktemp("processes")
    config = folder / "config.toml"
    config.write_text(
        f"""
        device = "cpu"
        steps = 6
        log_every = 4
        checkpoint_every = 1000
        model = {{ descriptor = "compact", radius = 8, levels = 1, settings = {{ dimensions = 6 }} }}
        data = {{ train = {json.dumps(str(manifest))}, crop = [32, 48], batch = 1, workers = 0 }}
        validation = {{ data = "train", every = 3, radius = 8 }}
        optimizer = {{ lr = 0.003, warmup = 0 }}
        """
    )
    # As under torchrun, the stores through which the processes meet live in the parent: no port is free for a moment.
    stores = [TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False, use_libuv=False) for _ in TRAININGS]
    ports = [str(store.port) for store in stores]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "USE_LIBUV": "0"}
    environment |= {"TORCHELASTIC_USE_AGENT_STORE": "True", "TORCHELASTIC_RESTART_COUNT": "0"}
    commands = [[sys.executable, Path(two_processes.__file__), str(rank), config, folder, *ports] for rank in (0, 1)]
    processes = [subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=environment) for command in commands]
    try:
        for process in processes:
            _, said = process.communicate()
            assert process.returncode == 0, said
    finally:
        for process in processes:
            process.kill()
    return folder


def endings(folder: Path, name: str) -> list[dict[str, Any]]:
    """How each of the two processes ended a training."""
    return [json.loads((folder / f"ended.{rank}.json").read_text())[name] for rank in (0, 1)]


def rows(folder: Path, column: str) -> list[Row]:
    return [row for row in read_log(folder / "log.csv") if column in row]


def test_a_signal_to_one_stops_both_after_the_same_step(folder: Path) -> None:
    assert endings(folder, "signalled") == [{"signal": signal.SIGTERM, "step": 3}] * 2


@pytest.mark.parametrize(("name", "says"), [("unreadable", "No pair."), ("unsuitable", "4x4")])
def test_a_bad_pair_of_one_stops_both_before_the_same_step(folder: Path, name: str, says: str) -> None:
    other, failing = endings(folder, name)
    assert (other["error"], failing["error"]) == ("OtherProcessFailed", "DeepMatchingError")
    assert says in failing["says"] and "another process" in other["says"]
    assert other["step"] == failing["step"] == 4


def test_a_run_stopped_by_a_signal_and_by_errors_ends_like_one_that_never_stopped(folder: Path) -> None:
    """The steps before each stop are kept, or later ones would have read other pairs."""
    assert endings(folder, "resumed") == endings(folder, "whole") == [{"signal": 0, "step": 6}] * 2
    for name in ("last.safetensors", "best.safetensors"):
        whole, resumed = (load_file(folder / run / name) for run in ("whole", "run"))
        assert whole.keys() == resumed.keys() and all(torch.equal(whole[n], resumed[n]) for n in whole)
    for column in ("loss", "acc@2"):
        whole, resumed = (rows(folder / run, column) for run in ("whole", "run"))
        assert [row["step"] for row in whole] == [row["step"] for row in resumed]
        assert [row[column] for row in whole] == pytest.approx([row[column] for row in resumed], rel=1e-5)


def test_one_process_continues_the_metrics_of_two(folder: Path) -> None:
    config = read_config(folder / "config.toml", [f"out={folder / 'alone'}", "accumulate=2", "validation.data=[]"])
    train(config, CPU, resume=True)
    whole, alone = (rows(folder / run, "loss")[0] for run in ("whole", "alone"))
    assert whole["step"] == alone["step"] == 4  # three steps of two processes and one of one
    for name in ("loss", "Q0", "reachable"):
        assert alone[name] == pytest.approx(whole[name], rel=1e-3)


def test_failing_before_the_first_step_leaves_no_trace(folder: Path) -> None:
    for name in ("first", "validating"):
        other, failing = endings(folder, name)
        assert (other["error"], failing["error"]) == ("OtherProcessFailed", "DeepMatchingError")
        assert other["step"] == failing["step"] == 0
    assert not (folder / "empty").exists()


def test_an_outcome_tells_whether_all_losses_and_the_gradient_are_finite() -> None:
    good, bad = torch.tensor(1.0), torch.tensor(math.inf)
    assert start_agreeing(World(), [good], good, 0, False, 2.5)() == (True, 0, False, 2.5)
    assert start_agreeing(World(), [good, bad], good, 15, True, 2.5)() == (False, 15, True, 2.5)
    assert start_agreeing(World(), [good], bad * 0, 0, False, 2.5)() == (False, 0, False, 2.5)


def test_a_broken_environment_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "two")
    with pytest.raises(DeepMatchingError, match="WORLD_SIZE"), process_group(CPU):
        pass


def test_a_run_of_one_process_is_on_its_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Events and streams are those of the current device."""
    entered: list[torch.device] = []

    @contextlib.contextmanager
    def on(device: torch.device) -> Iterator[None]:
        entered.append(device)
        yield

    monkeypatch.setattr(torch.cuda, "device", on)
    for device in (torch.device("cuda:1"), CPU):
        with process_group(device) as world:
            assert world.device == device
    assert entered == [torch.device("cuda:1")]
