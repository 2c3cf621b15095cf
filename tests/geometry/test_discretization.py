import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from deepmatching.errors import DeepMatchingError
from deepmatching.geometry.discretization import Geometry

SINTEL = (436, 1024)


def test_sintel_has_the_levels_and_radii_of_the_original() -> None:
    geometry = Geometry(SINTEL, SINTEL)
    assert geometry.L == 6
    assert [geometry.R(l) for l in range(7)] == [40, 20, 10, 5, 3, 2, 1]
    assert geometry.grid(0) == (54, 128)
    assert geometry.grid(1) == geometry.grid(6) == (55, 129)


def test_radii_shrink_by_the_ceiling_and_padding_is_one_or_two_cells() -> None:
    assert [Geometry(SINTEL, SINTEL, radius=160).R(l) for l in range(7)] == [80, 40, 20, 10, 5, 3, 2]
    geometry = Geometry(SINTEL, SINTEL)
    assert [geometry.pool_reach - geometry.pool_offset(l) for l in range(6)] == [1, 1, 1, 2, 2, 1]


def test_tau_and_children_of_level_one() -> None:
    geometry = Geometry((64, 64), (64, 64))
    assert [geometry.tau(l) for l in (0, 1, 3)] == [0, -0.5, -0.5]
    # The printed sign of the paper would give (0, 1) at level 0.
    assert [geometry.child_shifts(l) for l in (0, 1, 3)] == [(-1, 0), (-1, 1), (-4, 4)]
    denser = Geometry((64, 64), (64, 64), alpha=4)
    assert (denser.tau(1), denser.child_shifts(0)) == (0, (-1, 1))
    assert denser.grid(0) == denser.grid(1) == (15, 15)


@given(st.integers(16, 200), st.integers(16, 200), st.integers(0, 2), st.none() | st.integers(1, 20))
def test_children_lie_where_the_paper_puts_them(rows: int, columns: int, downscale: int, radius: int | None) -> None:
    f = 2**downscale
    geometry = Geometry.for_downscale((rows, columns), (rows, columns), downscale, radius and radius * f)
    for l in range(geometry.L):
        parents, children = (geometry.reference_points(level)[0] for level in (l + 1, l))
        for i, p in enumerate(parents.tolist()):
            expected = [p + sign * 2**l * geometry.delta / 2 for sign in (-1, 1)]
            on_grid = [c for c in expected if c in children.tolist()]
            found = [children[i + shift].item() for shift in geometry.child_shifts(l) if 0 <= i + shift < len(children)]
            assert found == on_grid


@given(size=st.integers(8, 150), target=st.integers(8, 150))
def test_absolute_maps_shrink_as_the_original_says(size: int, target: int) -> None:
    geometry = Geometry((size, size), (target, target), radius=None)
    n = target // 8 * 8 // 2 + 1
    for l in range(geometry.L + 1):
        assert geometry.window(l) == (n, n)
        n = (n + 1) // 2 if n % 2 else n // 2 + 1


@given(cells=st.integers(1, 60), level=st.integers(0, 4))
def test_pooled_centres_are_the_same_points(cells: int, level: int) -> None:
    """Cell k of the pooled map and the centre of its window are the same target point."""
    geometry = Geometry((160, 160), (160, 160), radius=2 * cells, levels=level + 1 if level < 4 else 4)
    for l in range(geometry.L):
        for k in range(2 * geometry.R(l + 1) + 1):
            centre = 2 * k + geometry.pool_offset(l)
            assert geometry.stride(l) * (centre - geometry.R(l)) == geometry.stride(l + 1) * (k - geometry.R(l + 1))


def test_every_level_has_children_on_a_narrow_image() -> None:
    geometry = Geometry((64, 1024), (64, 1024))
    for l in range(1, geometry.L + 1):
        for parents, children in zip(geometry.grid(l), geometry.grid(l - 1), strict=True):
            assert any(0 <= i + shift < children for i in range(parents) for shift in geometry.child_shifts(l - 1))
    assert geometry.L == 5  # patches of 512 pixels would have no child inside 64 rows


def test_on_target_keeps_the_border_for_scores_but_not_for_matches() -> None:
    geometry = Geometry((16, 16), (16, 16), radius=8)
    rows, _ = geometry.on_target()
    assert torch.equal(geometry.target_points(0)[0][0], torch.arange(-4.0, 13.0, 2, dtype=torch.float64))
    assert rows[0].tolist() == [False] * 2 + [True] * 7
    assert rows[1].tolist()[-3:] == [True, False, False]  # 18 and 20 are off, 16 is the border
    assert geometry.on_target(border=False)[0][1].tolist()[-3] is False


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"radius": 7}, "multiple of 2"),
        ({"radius": 0}, "at least 2"),
        ({"radius": -8}, "at least 2"),
        ({"size0": (7, 100)}, "100x7 pixels, smaller than one patch: use an image of at least 8x8 pixels"),
        ({"size1": (100, 7)}, "smaller than one patch"),
        ({"levels": -1}, "at least 0"),
        ({"levels": 9}, "too large"),
        ({"gamma": 3}, "must divide"),
        ({"alpha": 16}, "must divide"),
        ({"gamma": 0}, "at least 1"),
        ({"beta": 2}, "stick out"),
        ({"gamma": 8, "beta": 8, "eta": 8}, "even number of cells"),
        ({"gamma": 4, "eta": 4, "radius": None}, "4\\*gamma"),
        ({"eta": 16}, "one byte"),
    ],
)
def test_bad_geometry_raises_a_clear_error(arguments: dict, words: str) -> None:
    with pytest.raises(DeepMatchingError, match=words):
        Geometry(**{"size0": (100, 100), "size1": (100, 100), **arguments})


def test_the_nearest_point_is_the_nearest_in_pixels() -> None:
    """Reference points are pixel corners; the pixel (3, 3) has its centre at the corner position 3.5."""
    geometry = Geometry((64, 96), (64, 96))
    assert geometry.nearest_point(0, (3, 3)) == (0, 0)
    assert geometry.nearest_point(0, (95, 0)) == (0, 11)
    assert geometry.nearest_point(0, (12, 30)) == (3, 1)  # p = 12 in x, 28 in y
    assert geometry.nearest_point(1, (12, 30)) == (4, 2)  # p = 16 in x, 32 in y
