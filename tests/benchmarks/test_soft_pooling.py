from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest
import torch

from helpers.benchmarks import imported, output_of
from helpers.fake_datasets import write_pairs


def test_calibration_is_measured_on_the_pairs_that_do_not_choose_the_scale() -> None:
    module = imported("soft_pooling")
    rng = np.random.default_rng(0)
    wanted = 7  # with this scale, the probabilities are those with which the matches are right
    true = rng.uniform(0, 1, (4, 20_000))
    right = [rng.uniform(0, 1, 20_000) < row for row in true]
    exponents = np.arange(len(module.SCALES)) - wanted + 1.0
    stated = [np.stack([row ** (2.0 ** (n - 1)) for n in exponents]) for row in true]
    found = module.calibration(stated, right)
    assert found["β"] == module.SCALES[wanted] and found["ECE"] < 2
    assert found["AUC"] == pytest.approx(100 * 5 / 6, abs=1)  # of a probability that is uniform


def test_the_stated_probability_is_that_of_nine_cells() -> None:
    scores = torch.full((1, 1, 1, 4, 5), -math.inf)
    scores[..., 0, 0], scores[..., 1, 1], scores[..., 3, 3] = math.log(3), math.log(2), math.log(5)
    (mass,) = imported("soft_pooling")._mass(scores, torch.tensor([[[0]]]), 1.0).flatten().tolist()
    assert mass == pytest.approx(0.5)


@pytest.mark.slow
def test_hard_and_soft_pooling_are_compared(tmp_path: Path) -> None:
    file = tmp_path / "rows.json"
    options = ("--model", "hog", "--radius", 16, "--device", "cpu", "--json", file)
    assert "Soft and hard pooling" in output_of("soft_pooling", write_pairs(tmp_path, 2), *options)
    rows = json.loads(file.read_text())
    assert rows["hog hard"]["cells"] < 10 < rows["hog soft"]["cells"]
    assert rows["hog soft"]["one cell"] == rows["hog soft"]["two cells"] == 100
