"""The outcome of a step, and the metrics that are summed up until they are logged."""

from __future__ import annotations

import math

import pytest
import torch

import deepmatching as dm
from deepmatching.training.checkpoints import Progress
from deepmatching.training.distributed import World
from deepmatching.training.step_metrics import PendingOutcome, StepMetrics


def test_an_outcome_tells_whether_all_losses_and_the_gradient_are_finite() -> None:
    good, bad = torch.tensor(1.0), torch.tensor(math.inf)
    assert PendingOutcome(World(), [good], good, 0, False, 2.5).read() == (True, 0, False, 2.5)
    assert PendingOutcome(World(), [good, bad], good, 15, True, 2.5).read() == (False, 15, True, 2.5)
    assert PendingOutcome(World(), [good], bad * 0, 0, False, 2.5).read() == (False, 0, False, 2.5)


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
