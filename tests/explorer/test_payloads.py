"""Blocks of arrays for the page."""

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from hypothesis.extra.numpy import array_shapes, arrays

from deepmatching.explorer.payloads import in_bytes, in_fractions, in_steps, pack
from helpers.explorer import unpack


@given(
    arrays(np.float32, array_shapes(max_dims=3, max_side=5), elements=st.floats(-1e6, 1e6, width=32)),
    arrays(np.uint8, array_shapes(max_dims=3, max_side=5)),
    arrays(np.int16, array_shapes(max_dims=3, max_side=5)),
)
def test_what_is_packed_comes_back(first: np.ndarray, second: np.ndarray, third: np.ndarray) -> None:
    meta, found = unpack(pack({"a": [1, "ü"]}, {"first": first, "second": second, "none": None, "third": third}))
    assert meta == {"a": [1, "ü"]}
    assert list(found) == ["first", "second", "third"]
    for array, back in zip((first, second, third), found.values(), strict=True):
        assert back.dtype == array.dtype
        np.testing.assert_array_equal(back, array)


@example(np.array([[0, 1e-40], [0, -np.inf]], np.float32))  # scores that hardly differ
@given(arrays(np.float32, (4, 5), elements=st.one_of(st.floats(-100, 100, width=32), st.just(-np.inf))))
def test_a_map_in_bytes_is_off_by_half_a_level_at_most_and_keeps_what_has_no_score(scores: np.ndarray) -> None:
    _, found = unpack(pack({}, {"map": in_bytes(scores)}))
    known = np.isfinite(scores)
    np.testing.assert_array_equal(np.isfinite(found["map"]), known)
    if known.any():
        level = (float(scores[known].max()) - float(scores[known].min())) / 254
        assert np.abs(found["map"][known] - scores[known]).max() <= level / 2 + 1e-4


@given(arrays(np.float32, (3, 4, 2), elements=st.floats(-3000, 3000, width=32)))
def test_a_flow_in_steps_is_off_by_half_a_step_at_most(flow: np.ndarray) -> None:
    packed = in_steps(flow)
    _, found = unpack(pack({}, {"flow": packed}))
    assert packed.reading["step"] == 1 / 32 or np.abs(flow).max() > 1000
    assert np.abs(found["flow"] - flow).max() <= packed.reading["step"] / 2 + 1e-3


def test_fractions_are_kept_to_a_255th_and_other_types_are_refused() -> None:
    _, found = unpack(pack({}, {"p": in_fractions(np.array([0.0, 0.5, 1.0], np.float32))}))
    np.testing.assert_allclose(found["p"], [0, 128 / 255, 1], rtol=1e-6)
    with pytest.raises(TypeError, match="float64"):
        pack({}, {"a": np.zeros(3)})
