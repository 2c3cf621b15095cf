"""Curves of training runs."""

import math
from inspect import unwrap

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from deepmatching.drawing.curves import draw_training_curves

build_training_curves = unwrap(draw_training_curves)


def test_curves_show_both_panels_and_grow_with_the_log() -> None:
    rows = [{"step": float(step), "loss": 2.0 / (1 + step)} for step in range(1, 60)]
    empty, loss_only = draw_training_curves([]), draw_training_curves(rows)
    judged = draw_training_curves([*rows, {"step": 0.0, "acc@2": 50.0, "acc@5": 60.0, "acc@10": 70.0}])
    assert empty.shape == loss_only.shape == judged.shape and judged.dtype == np.uint8
    half = judged.shape[1] // 2
    assert not np.array_equal(empty[:, :half], loss_only[:, :half])
    assert np.array_equal(loss_only[:, :half], judged[:, :half])
    assert not np.array_equal(loss_only[:, half:], judged[:, half:])


def test_a_loss_that_spans_a_lot_is_on_a_logarithmic_scale() -> None:
    def scale(*losses: float) -> str:
        rows = [{"step": float(step), "loss": loss} for step, loss in enumerate(losses)]
        return build_training_curves(rows).axes[0].get_yscale()

    assert scale(1.0, 19.0) == scale(0.0, 100.0) == scale(-1.0, 100.0) == "linear"
    assert scale(1.0, 21.0) == "log"


def test_axes_are_labelled_and_the_legend_has_the_last_accuracies() -> None:
    rows = [{"step": 100.0, "acc@2": 50.0, "acc@5": math.nan}, {"step": 200.0, "acc@2": 61.25, "acc@10": 70.0}]
    loss, accuracy = build_training_curves(rows).axes
    assert loss.get_xlabel() == accuracy.get_xlabel() == "step"
    assert (loss.get_ylabel(), accuracy.get_ylabel()) == ("loss", "% of pixels")
    legend = accuracy.get_legend()
    assert legend is not None
    assert [text.get_text() for text in legend.get_texts()] == ["acc@2: 61.2 %", "acc@10: 70.0 %"]
    assert [text.get_text() for text in loss.texts] == ["no values yet"] and not accuracy.texts


def test_the_strong_line_is_the_running_mean_of_the_pale_one() -> None:
    rows = [{"step": float(step), "loss": float(step % 2)} for step in range(100)]
    pale, strong = build_training_curves(rows).axes[0].lines
    np.testing.assert_array_equal(pale.get_ydata(), [row["loss"] for row in rows])
    np.testing.assert_allclose(strong.get_ydata()[10:90], 0.5, atol=0.06)


loss = st.floats(-1e9, 1e9) | st.just(math.nan)
optional = {"loss": loss, "acc@2": st.floats(0, 100), "acc@10": st.just(math.inf)}


@settings(max_examples=15, deadline=None)
@given(st.lists(st.fixed_dictionaries({"step": st.integers(0, 10**7).map(float)}, optional=optional), max_size=6))
def test_any_log_can_be_drawn(rows: list[dict[str, float]]) -> None:
    assert draw_training_curves(rows).std() > 0
