"""The settings: which presets there are, and which values are refused."""

from dataclasses import replace

import pytest

from deepmatching.errors import DeepMatchingError
from deepmatching.flow import FlowSettings, InterpolationSettings, RefinementSettings, adapt_to_model, preset


def test_presets_are_found_by_name() -> None:
    assert preset("default") == FlowSettings()
    own = FlowSettings(refinement=RefinementSettings(steps=0))
    assert preset(own) is own
    with pytest.raises(DeepMatchingError, match="no preset 'sintle': use default, classic, original"):
        preset("sintle")


def test_without_a_confidence_classic_takes_the_place_of_the_default_alone() -> None:
    assert adapt_to_model(preset("default"), has_confidence=True) == preset("default")
    assert adapt_to_model(preset("default"), has_confidence=False) == preset("classic")
    assert adapt_to_model(preset("sintel"), has_confidence=False) == preset("sintel")


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
