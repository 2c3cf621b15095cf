"""The settings of a matcher: what is searched."""

from itertools import pairwise

import pytest

from deepmatching.errors import DeepMatchingError
from deepmatching.settings import Settings


def test_without_a_search_nothing_is_tried() -> None:
    assert not Settings().searches
    assert Settings().describe()["auto"] and not Settings(auto=False).describe()["auto"]  # matches depend on it
    assert "search" not in Settings().describe() and "rotations" not in Settings().describe()


def test_a_number_of_rotations_is_evenly_spaced() -> None:
    settings = Settings(rotations=3, scales=(1, 2))
    assert settings.searches
    assert settings.transformations == [(0, 1), (120, 1), (240, 1), (0, 2), (120, 2), (240, 2)]


def test_rotations_alone_keep_the_scale_and_scales_alone_stay_upright() -> None:
    assert Settings(rotations=[10, 20]).transformations == [(10, 1), (20, 1)]
    assert Settings(scales=[0.5, 2]).transformations == [(0, 0.5), (0, 2)]


def test_a_search_tries_eight_rotations_at_each_scale_and_upright_at_scale_one() -> None:
    tried = Settings(search=True).transformations
    assert (0.0, 1.0) in tried and len(set(tried)) == len(tried)
    for scale in {scale for _, scale in tried}:
        rotations = sorted(rotation for rotation, other in tried if other == scale)
        assert len(rotations) == 8 and {b - a for a, b in pairwise(rotations)} == {45.0}


def test_a_search_is_described_as_json_holds_it() -> None:
    described = Settings(rotations=(0, 90)).describe()
    assert described["rotations"] == [0, 90] and described["search"] is False


@pytest.mark.parametrize(
    "settings", [{"rotations": 0}, {"rotations": "8"}, {"rotations": []}, {"scales": 2}, {"scales": [0]}]
)
def test_what_cannot_be_searched_is_refused(settings: dict[str, object]) -> None:
    with pytest.raises(DeepMatchingError, match=next(iter(settings))):
        Settings(**settings)  # type: ignore[arg-type]


def test_plain_matching_never_searches() -> None:
    plain = Settings(search=True, rotations=4).without_search()
    assert not plain.searches and not plain.auto
