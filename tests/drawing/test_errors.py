"""Pictures of errors."""

from __future__ import annotations

import numpy as np
import pytest

from deepmatching.drawing.errors import (
    NO_TRUTH,
    STEPS,
    UNMATCHED,
    draw_flow_errors,
    draw_match_errors,
    error_colors,
)
from deepmatching.errors import DeepMatchingError


def test_the_colour_changes_at_the_steps_and_nowhere_else() -> None:
    errors = [0.0, *(step + offset for step in STEPS for offset in (-1e-3, 0, 1e-3)), 1e6]
    field = np.zeros((1, len(errors), 2), np.float32)
    field[0, :, 0] = errors
    colors = error_colors(field, np.zeros_like(field))[0]
    kinds = np.unique(colors, axis=0)
    assert len(kinds) == len(STEPS) + 1
    for i, step in enumerate(STEPS):
        below, at, above = colors[1 + 3 * i : 4 + 3 * i]
        assert (below == at).all() and (at != above).any(), step  # acc@T counts an error of T as right


def test_what_is_unknown_is_grey() -> None:
    field, truth = np.zeros((2, 2, 2)), np.zeros((2, 2, 2))
    field[0, 0] = field[0, 1] = np.nan
    truth[0, 1] = truth[1, 1] = np.nan
    colors = error_colors(field, truth)
    assert tuple(colors[0, 0]) == UNMATCHED
    assert tuple(colors[0, 1]) == tuple(colors[1, 1]) == NO_TRUTH
    assert tuple(colors[1, 0]) not in (UNMATCHED, NO_TRUTH)
    with pytest.raises(DeepMatchingError, match="one size"):
        error_colors(field, truth[:1])


@pytest.mark.parametrize("known", [1.0, 0.2, 0.0])
@pytest.mark.parametrize("count", [0, 40])
def test_figures_are_drawn_of_anything(known: float, count: int) -> None:
    rng = np.random.default_rng(0)
    image0, image1 = (rng.integers(0, 255, (48, 64, 3)).astype(np.uint8) for _ in range(2))
    truth = rng.normal(0, 5, (48, 64, 2)).astype(np.float32)
    truth[rng.random((48, 64)) > known] = np.nan
    flow = rng.normal(0, 5, truth.shape).astype(np.float32)
    start = rng.uniform(0, 48, (count, 2))
    matches = (start, start + rng.normal(0, 4, (count, 2)), rng.random(count))
    figure = draw_match_errors(image0, image1, matches, np.full_like(truth, np.nan), truth, "a caption")
    assert figure.dtype == np.uint8 and figure.ndim == 3 and figure.min() < figure.max()
    assert draw_flow_errors(image0, flow, truth, "a caption").shape[2] == 3
