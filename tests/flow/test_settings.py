"""The settings: which presets there are, and which values are refused."""

from dataclasses import replace

import pytest

from deepmatching.errors import DeepMatchingError
from deepmatching.flow import FlowSettings, InterpolationSettings, RefinementSettings, preset


def test_presets_are_found_by_name() -> None:
    assert preset("interpolated") == FlowSettings()
    own = FlowSettings(refinement=RefinementSettings(steps=0))
    assert preset(own) is own
    with pytest.raises(DeepMatchingError, match="no preset 'sintle': use default, interpolated, classic, original"):
        preset("sintle")


@pytest.mark.parametrize(
    ("kind", "name", "value"),
    [
        (InterpolationSettings, "model", "cubic"),
        (InterpolationSettings, "neighbours", 0),
        (InterpolationSettings, "neighbours", 2.5),
        (InterpolationSettings, "falloff", -1.0),
        (InterpolationSettings, "ridge", 0.0),
        (InterpolationSettings, "consistency", float("nan")),
        (RefinementSettings, "steps", -1),
        (RefinementSettings, "relaxation", 2.0),
        (RefinementSettings, "alpha", "much"),
        (RefinementSettings, "sigma", float("inf")),
        (FlowSettings, "fewer_levels", -1),
        (FlowSettings, "fewer_levels", 2.5),
    ],
)
def test_invalid_values_are_refused(kind: type, name: str, value: object) -> None:
    with pytest.raises(DeepMatchingError, match=name):
        replace(kind(), **{name: value})
