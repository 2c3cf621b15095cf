"""Metrics are summed up until they are logged, and the log survives being cut short."""

import importlib
import math
import sys
from pathlib import Path

import pytest
import torch

import deepmatching as dm
from deepmatching.errors import DeepMatchingError
from deepmatching.training.checkpoints import Progress
from deepmatching.training.log import CsvLog, StepMetrics, TensorBoard, read_log
from deepmatching.training.processes import World


def test_rows_come_back_with_the_columns_they_had(tmp_path: Path) -> None:
    log = CsvLog(tmp_path / "log.csv", 0)
    log.add({"step": 1, "loss": 0.5})
    log.add({"step": 1, "acc@2": 81.25})
    log.add({"step": 2, "loss": math.nan})
    rows = read_log(tmp_path / "log.csv")
    assert rows[:2] == [{"step": 1, "loss": 0.5}, {"step": 1, "acc@2": 81.25}]
    assert math.isnan(rows[2]["loss"])
    assert (tmp_path / "log.csv").read_text().splitlines()[0] == "step,loss,acc@2"


def test_resuming_drops_what_lies_ahead_and_keeps_the_rest_to_the_letter(tmp_path: Path) -> None:
    path, texts = tmp_path / "log.csv", []
    log = CsvLog(path, 0)
    for step in range(1, 6):
        log.add({"step": step, "loss": 1 / step, "lr": 1e-5 * step})
        texts.append(path.read_text())
    CsvLog(path, 3)
    assert path.read_text() == texts[2]


def test_a_log_cut_anywhere_loses_at_most_its_last_row(tmp_path: Path) -> None:
    path = tmp_path / "log.csv"
    log = CsvLog(path, 0)
    for step in range(1, 5):
        log.add({"step": step, "loss": 1 / step})
    whole = path.read_text()
    for end in range(len(whole) + 1):
        path.write_text(whole[:end])
        complete = whole[:end].count("\n") - 1
        log = CsvLog(path, 100)
        assert [row["step"] for row in log.rows] == list(range(1, complete + 1))
        log.add({"step": 9, "loss": 1.0})
        assert read_log(path)[-1]["step"] == 9


def test_a_log_that_is_no_table_or_cannot_be_written_is_one_sentence(tmp_path: Path) -> None:
    path = tmp_path / "log.csv"
    log = CsvLog(path, 0)
    log.add({"step": 1})
    path.write_text("step,loss\n1," + "9" * 200_000 + "\n")
    with pytest.raises(DeepMatchingError, match="move it away"):
        read_log(path)
    path.unlink()
    path.mkdir()
    with pytest.raises(DeepMatchingError, match=r"log\.csv' cannot be written"):
        log.add({"step": 2})


def test_tensorboard_writes_events_if_it_is_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("tensorboard")
    board = TensorBoard(tmp_path / "tb", 0)
    board.add({"step": 1, "loss": 0.5})
    board.close()
    assert [file for file in (tmp_path / "tb").iterdir() if "tfevents" in file.name]
    monkeypatch.setitem(sys.modules, "tensorboard", None)
    monkeypatch.delitem(sys.modules, "torch.utils.tensorboard", raising=False)
    with pytest.raises(ImportError):
        TensorBoard(tmp_path / "tb", 0)
    importlib.invalidate_caches()


def test_resuming_drops_a_validation_that_the_saved_state_does_not_know(tmp_path: Path) -> None:
    log = CsvLog(tmp_path / "log.csv", 0)
    validations = [{"step": step, "acc@2": 80.0} for step in (0, 4)]
    report = {"step": 4, "lr": 0.1, "loss": 0.5}
    for row in (validations[0], report, validations[1]):
        log.add(row)
    assert CsvLog(tmp_path / "log.csv", 4, validated=4).rows == [validations[0], report, validations[1]]
    assert CsvLog(tmp_path / "log.csv", 4, validated=0).rows == [validations[0], report]
    assert CsvLog(tmp_path / "log.csv", 0, validated=-1).rows == []


def test_metrics_are_means_over_batches_and_steps() -> None:
    metrics = StepMetrics(Progress(), World())
    metrics.add([{"loss": torch.tensor(1.0)}, {"loss": torch.tensor(3.0)}], torch.tensor(5.0))
    metrics.add([{"loss": torch.tensor(6.0)}], torch.tensor(7.0))
    again = StepMetrics(Progress(sums=metrics.totals(), count=metrics.count), World())
    network = dm.Network(dm.models.HOG())  # type: ignore[attr-defined]
    for each in (metrics, again):
        row = each.row(Progress(step=2), network, 0.1, 3.0)
        assert (row["loss"], row["gradient"], row["step"], row["nu_0"]) == (4.0, 6.0, 2, pytest.approx(1.4))
        assert each.totals() == {} and each.count == 0
