"""Ranking and calibration of a confidence."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from deepmatching.evaluation.calibration import area_under_roc, reliability


@given(st.lists(st.tuples(st.integers(0, 5), st.booleans()), min_size=1, max_size=40))
def test_the_area_is_the_fraction_of_pairs_in_order(values: list[tuple[int, bool]]) -> None:
    scores, right = (np.array(column) for column in zip(*values, strict=True))
    good, bad = scores[right], scores[~right]
    if not len(good) or not len(bad):
        assert math.isnan(area_under_roc(scores, right))
        return
    wins = (good[:, None] > bad).sum() + 0.5 * (good[:, None] == bad).sum()
    assert area_under_roc(scores, right) == pytest.approx(wins / (len(good) * len(bad)))


def test_reliability_compares_what_is_stated_with_what_is_true() -> None:
    confidence = np.array([0.05, 0.05, 0.95, 1.0, 0.95])
    table = reliability(confidence, np.array([False, True, True, True, False]))
    assert table[0] == (2, pytest.approx(0.05), 0.5)
    assert table[9] == (3, pytest.approx((0.95 + 1 + 0.95) / 3), pytest.approx(2 / 3))
    assert [row[0] for row in table[1:9]] == [0] * 8 and math.isnan(table[4][1])
