"""The settings: the original's values, and which values are refused."""

from dataclasses import replace

import pytest

from deepmatching.errors import DeepMatchingError
from deepmatching.flow import PRESETS, FlowSettings, InterpolationSettings, RefinementSettings, preset

#: filter neighbours, neighbours, k, steps, α, γ, σ: the table of the original's true values
ORIGINAL = {
    "original": (25, 100, 0.8, 5, 1.0, 0.71, 1.0),
    "sintel": (25, 160, 1.1, 5, 1.0, 0.72, 1.1),
    "kitti": (25, 160, 1.1, 2, 1.0, 0.77, 1.7),
    "middlebury": (15, 65, 0.2, 25, 1.0, 0.72, 1.1),
}


@pytest.mark.parametrize("name", ORIGINAL)
def test_presets_have_the_originals_values(name: str) -> None:
    i, r = PRESETS[name].interpolation, PRESETS[name].refinement
    values = (i.filter_neighbours, i.neighbours, i.falloff, r.steps, r.alpha, r.gamma, r.sigma)
    assert values == ORIGINAL[name]
    assert (i.saliency, i.consistency, i.contrast, i.group) == (0.045, 5.0, 1.0, 0)
    assert (r.iterations, r.edges, r.hold) == (30, 5.0, 0.0)


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
