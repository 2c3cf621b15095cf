"""``deepmatching train`` as a user runs it: killed, interrupted, misused, and in two processes."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import cv2
import pytest
import torch
from safetensors.torch import load_file

import deepmatching as dm
from deepmatching.commands.train import CONFIGS, train
from deepmatching.errors import DeepMatchingError
from deepmatching.training.checkpoints import RunFolder
from deepmatching.training.config_file import shipped_configs
from deepmatching.training.data import Samples
from deepmatching.training.log import read_log

ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1"}  # small tensors are slower with more threads


def command(*arguments: object, launcher: tuple[str, ...] = ()) -> list[str]:
    return [sys.executable, *launcher, "-m", "deepmatching", "train", *map(str, arguments)]


def equal_weights(first: Path, second: Path) -> bool:
    a, b = load_file(first), load_file(second)
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


@pytest.mark.slow
def test_a_run_killed_at_any_moment_and_resumed_ends_with_the_same_weights(small: Path, tmp_path: Path) -> None:
    changes = ["steps=20", "validation.every=7", "ema=0.9"]
    train(str(small), [*changes, f"out={tmp_path / 'whole'}"])
    state = tmp_path / "run" / "last.state.safetensors"
    for pause in (0.0, 0.3):  # seconds; wherever that leads, the result is the same
        resume = ["--resume"] if state.exists() else []
        arguments = command(small, *changes, "data.workers=1", *resume)
        process = subprocess.Popen(arguments, stderr=subprocess.DEVNULL, env=ENVIRONMENT)
        before = state.stat().st_mtime_ns if state.exists() else 0
        while process.poll() is None and not (state.exists() and state.stat().st_mtime_ns > before):
            time.sleep(0.01)
        time.sleep(pause)
        process.kill()
        process.wait()
    train(str(small), changes, resume=True)
    for name in ("last.safetensors", "best.safetensors"):
        assert equal_weights(tmp_path / "whole" / name, tmp_path / "run" / name)
    assert {f.name for f in (tmp_path / "run").iterdir()} == {f.name for f in (tmp_path / "whole").iterdir()}


def test_what_a_run_leaves_behind(small: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    train(str(small), overfit=2)
    said = capsys.readouterr()
    assert "step 0: acc@2/5/10" in said.err and "6 steps" in said.err
    assert said.out == "" and all(said.err.splitlines())  # nor an empty line in place of the bar
    assert cv2.imread(str(tmp_path / "run" / "curves.png")) is not None
    assert "overfit = 2" in (tmp_path / "run" / "config.toml").read_text()
    dm.DeepMatcher.from_pretrained(tmp_path / "run" / "best.safetensors", device="cpu")


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no SIGINT for others")
def test_control_c_saves_and_says_how_to_resume(small: Path, tmp_path: Path) -> None:
    arguments = command(small, "steps=20000", "data.workers=1")
    process = subprocess.Popen(arguments, stderr=subprocess.PIPE, text=True, env=ENVIRONMENT)
    log = tmp_path / "run" / "log.csv"
    while not any("loss" in row for row in read_log(log)):
        assert process.poll() is None
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    _, said = process.communicate()
    assert process.returncode == 130
    assert said.strip().splitlines()[-1].endswith(f"deepmatching train {tmp_path / 'run' / 'config.toml'} --resume")
    assert "Traceback" not in said
    steps = max(int(row["step"]) for row in read_log(log))
    train(str(tmp_path / "run" / "config.toml"), [f"steps={steps + 4}", "data.workers=0"], resume=True)
    assert max(int(row["step"]) for row in read_log(log)) == steps + 4


@pytest.mark.slow
@pytest.mark.skipif(not torch.distributed.is_available(), reason="PyTorch without torch.distributed")
def test_two_processes_do_what_one_does_with_twice_the_batches(small: Path, tmp_path: Path) -> None:
    changes = ("steps=4", "validation.every=2", "optimizer.name=sgd", "optimizer.lr=0.05")
    launcher = ("-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2")
    arguments = command(small, *changes, f"out={tmp_path / 'two'}", launcher=launcher)
    two = subprocess.run(arguments, capture_output=True, text=True, check=False, env=ENVIRONMENT)
    assert two.returncode == 0, two.stderr
    train(str(small), [*changes, "accumulate=2", f"out={tmp_path / 'one'}"])
    a, b = (load_file(tmp_path / name / "last.safetensors") for name in ("two", "one"))
    start = load_file(tmp_path / "one" / "best.safetensors")
    assert all(torch.allclose(a[name], b[name], rtol=1e-3, atol=1e-5) for name in a)
    assert start.keys() == a.keys()
    logs = [[row for row in read_log(tmp_path / name / "log.csv") if "loss" in row] for name in ("two", "one")]
    for row, other in zip(*logs, strict=True):
        assert row["loss"] == pytest.approx(other["loss"], rel=1e-3)
    judged = [[row for row in read_log(tmp_path / name / "log.csv") if "acc@2" in row] for name in ("two", "one")]
    for row, other in zip(*judged, strict=True):
        assert row["acc@10"] == pytest.approx(other["acc@10"], abs=1.0)
    # What two processes began, one can go on with if the batches of a step stay the same.
    train(str(small), [*changes, "steps=5", "accumulate=2", f"out={tmp_path / 'two'}"], resume=True)


def test_a_run_that_fails_later_says_how_to_resume(
    small: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    original = Samples.__getitem__
    bad = DeepMatchingError("No pair.")
    monkeypatch.setattr(Samples, "__getitem__", lambda self, n: bad if n == 4 else original(self, n))
    with pytest.raises(DeepMatchingError, match="No pair"):
        train(str(small), ["validation.data=[]"])
    assert f"deepmatching train {tmp_path / 'run' / 'config.toml'} --resume" in capsys.readouterr().err
    monkeypatch.undo()
    train(str(tmp_path / "run" / "config.toml"), resume=True)


def test_a_discarded_run_leaves_no_picture_either(
    small: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(Samples, "__getitem__", lambda self, n: DeepMatchingError("No pair."))
    with pytest.raises(DeepMatchingError, match="No pair"):
        train(str(small))
    assert "step 0: acc@2/5/10" in capsys.readouterr().err  # it was validated, and the curves drawn
    assert list((tmp_path / "run").iterdir()) == []


def test_steps_that_could_not_be_saved_are_not_called_saved(
    small: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    save, calls = RunFolder.save_state, []

    def fail_later(*arguments: Any) -> None:
        calls.append(1)
        if len(calls) > 2:
            raise DeepMatchingError("The disk is full.")
        save(*arguments)

    monkeypatch.setattr(RunFolder, "save_state", fail_later)
    with pytest.raises(DeepMatchingError, match="full"):
        train(str(small), ["validation.data=[]"])
    assert "saved" not in capsys.readouterr().err


def test_a_process_of_several_ends_with_its_own_message_or_leaves_it_to_the_other(
    small: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from deepmatching import training
    from deepmatching.commands import train as command_module
    from deepmatching.training.processes import OtherProcessFailed

    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setattr(command_module, "GRACE", 0.0)
    monkeypatch.setattr(os, "_exit", sys.exit)
    for error, says in ((DeepMatchingError("No pair."), "deepmatching: No pair.\n"), (OtherProcessFailed("Else."), "")):

        def fail(*arguments: object, error: DeepMatchingError = error) -> None:
            raise error

        monkeypatch.setattr(training, "train", fail)
        with pytest.raises(SystemExit) as ended:
            train(str(small))
        assert ended.value.code == 2
        assert capsys.readouterr().err == says


def test_the_help_names_every_config() -> None:
    assert sorted(CONFIGS.split(", ")) == shipped_configs()


def test_the_threads_can_be_chosen_and_training_on_the_validation_pairs_is_said_at_the_start(
    small: Path, manifest: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asked: list[int] = []
    monkeypatch.setattr(torch, "set_num_threads", asked.append)
    train(str(small), ["steps=1", f"validation.data={manifest}"], threads=2)
    assert asked == [2]
    assert "4 of the 4 validation pairs are also training pairs" in capsys.readouterr().err
