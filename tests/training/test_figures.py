"""What is agreed on after a step, and what is summed up until it is logged."""

from __future__ import annotations

import math

import pytest
import torch

import deepmatching as dm
from deepmatching.training.checkpoints import Progress
from deepmatching.training.distributed import World
from deepmatching.training.figures import Figures, Verdict


def test_a_verdict_knows_what_is_not_finite() -> None:
    good, bad = torch.tensor(1.0), torch.tensor(math.inf)
    assert Verdict(World(), [good], good, 0, False, 2.5).read() == (True, 0, False, 2.5)
    assert Verdict(World(), [good, bad], good, 15, True, 2.5).read() == (False, 15, True, 2.5)
    assert Verdict(World(), [good], bad * 0, 0, False, 2.5).read() == (False, 0, False, 2.5)


def test_figures_are_means_over_batches_and_steps() -> None:
    figures = Figures(Progress(), World())
    figures.add([{"loss": torch.tensor(1.0)}, {"loss": torch.tensor(3.0)}], torch.tensor(5.0))
    figures.add([{"loss": torch.tensor(6.0)}], torch.tensor(7.0))
    again = Figures(Progress(sums=figures.totals(), count=figures.count), World())
    network = dm.Network(dm.models.HOG())  # type: ignore[attr-defined]
    for each in (figures, again):
        row = each.row(Progress(step=2), network, 0.1, 3.0)
        assert (row["loss"], row["gradient"], row["step"], row["nu_0"]) == (4.0, 6.0, 2, pytest.approx(1.4))
        assert each.totals() == {} and each.count == 0
