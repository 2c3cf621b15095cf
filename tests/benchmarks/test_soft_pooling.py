import math

import numpy as np
import pytest
import torch

from helpers.benchmarks import imported


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
