from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.autograd import gradcheck

from deepmatching.geometry import Geometry
from deepmatching.operators import correlation


def brute_correlation(cells0: torch.Tensor, cells1: torch.Tensor, geometry: Geometry, patch: int) -> torch.Tensor:
    """⟨φ(p), φ(q)⟩ cell by cell; a target patch counts its visible cells only, scaled up to a whole one."""
    result = torch.zeros(*geometry.shape(0), dtype=cells0.dtype)
    ys, xs = (p.tolist() for p in geometry.reference_points(0))
    rows, columns = geometry.target_points(0)
    half = patch // 2
    for i, y in enumerate(ys):
        for j, x in enumerate(xs):
            for a, qy in enumerate(rows[i if geometry.relative else 0].tolist()):
                for b, qx in enumerate(columns[j if geometry.relative else 0].tolist()):
                    if not (0 <= qy <= geometry.used1[0] and 0 <= qx <= geometry.used1[1]):
                        continue
                    total, visible = 0.0, 0
                    for dy in range(patch):
                        for dx in range(patch):
                            v, u = (
                                int(qy) // geometry.gamma - half + dy,
                                int(qx) // geometry.gamma - half + dx,
                            )
                            if 0 <= v < cells1.shape[1] and 0 <= u < cells1.shape[2]:
                                visible += 1
                                row, column = (
                                    int(y) // geometry.gamma - half + dy,
                                    int(x) // geometry.gamma - half + dx,
                                )
                                total += (cells0[:, row, column] * cells1[:, v, u]).sum().item()
                    result[i, j, a, b] = total * patch**2 / visible
    return result


def random_cells(size: tuple[int, int], geometry: Geometry, patch: int, channels: int) -> torch.Tensor:
    extra = 1 if patch == 1 else 0
    shape = [used // geometry.gamma + extra for used in size]
    return torch.randn(2, channels, *shape, dtype=torch.float64)


@settings(max_examples=15, deadline=None)
@given(
    rows=st.integers(1, 2),
    columns=st.integers(1, 3),
    target=st.tuples(st.integers(1, 3), st.integers(1, 2)),
    radius=st.one_of(st.none(), st.sampled_from([2, 6, 12])),
    patch=st.sampled_from([1, 4]),
)
def test_correlation_is_the_rectified_inner_product(
    rows: int, columns: int, target: tuple[int, int], radius: int | None, patch: int
) -> None:
    geometry = Geometry((8 * rows, 8 * columns), (8 * target[0], 8 * target[1]), radius=radius)
    cells0 = random_cells(geometry.used0, geometry, patch, 2)
    cells1 = random_cells(geometry.used1, geometry, patch, 2)
    result = correlation(cells0, cells1, geometry, patch)
    for b in range(2):
        torch.testing.assert_close(result[b], brute_correlation(cells0[b], cells1[b], geometry, patch))


def test_tiles_of_a_long_row_agree_with_the_whole_map() -> None:
    """More than one tile of reference points: the window around p is that part of the unrestricted map."""
    sizes = ((16, 176), (24, 160))
    absolute, relative = Geometry(*sizes, radius=None), Geometry(*sizes, radius=20)
    cells0 = random_cells(relative.used0, relative, 4, 3)
    cells1 = random_cells(relative.used1, relative, 4, 3)
    whole = correlation(cells0, cells1, absolute, 4)
    windows = correlation(cells0, cells1, relative, 4)
    for i in range(relative.grid(0)[0]):
        for j in range(relative.grid(0)[1]):
            for a in range(21):
                for b in range(21):
                    v, u = 2 + 4 * i + a - 10, 2 + 4 * j + b - 10
                    on = 0 <= v < whole.shape[3] and 0 <= u < whole.shape[4]
                    expected = whole[0, i, j, v, u] if on else torch.tensor(0.0, dtype=torch.float64)
                    torch.testing.assert_close(windows[0, i, j, a, b], expected)


@pytest.mark.parametrize("radius", [4, None])
@pytest.mark.parametrize("patch", [1, 4])
def test_gradient_of_correlation(radius: int | None, patch: int) -> None:
    geometry = Geometry((8, 16), (16, 8), radius=radius)
    cells0 = random_cells(geometry.used0, geometry, patch, 2)[:1].requires_grad_()
    cells1 = random_cells(geometry.used1, geometry, patch, 2)[:1].requires_grad_()
    assert gradcheck(lambda a, b: correlation(a, b, geometry, patch), (cells0, cells1), fast_mode=True)
