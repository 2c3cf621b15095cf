"""Scores at any displacement."""

from __future__ import annotations

import torch

from deepmatching.dense.lookups import lookup, square


def test_on_cells_a_lookup_is_the_scalar_product() -> None:
    generator = torch.Generator().manual_seed(1)
    vectors = torch.randn(2, 5, 3, 4, generator=generator)
    cells = torch.randn(2, 5, 7, 9, generator=generator)
    row, column = (torch.randint(0, n, (2, 6, 3, 4), generator=generator) for n in (7, 9))
    found = lookup(vectors, cells, 2.0 * torch.stack([column, row], dim=-1), 2)
    for b, k, i, j in torch.cartesian_prod(*(torch.arange(n) for n in (2, 6, 3, 4))).tolist():
        expected = vectors[b, :, i, j] @ cells[b, :, row[b, k, i, j], column[b, k, i, j]]
        torch.testing.assert_close(found[b, k, i, j], expected.clamp(min=0), atol=1e-5, rtol=0)


def test_between_two_cells_a_lookup_is_their_mean() -> None:
    vectors, cells = torch.rand(1, 3, 1, 1), torch.rand(1, 3, 4, 4)
    found = lookup(vectors, cells, torch.tensor([3.0, 2.0]).view(1, 1, 1, 1, 2), 2)
    expected = (vectors[0, :, 0, 0] @ (cells[0, :, 1, 1] + cells[0, :, 1, 2])) / 2
    torch.testing.assert_close(found[0, 0, 0, 0], expected)


def test_a_square_has_its_middle_at_zero() -> None:
    steps = square(1, 8.0, torch.device("cpu"))
    assert steps.tolist()[4] == [0, 0]
    assert steps.tolist()[0] == [-8, -8] and steps.tolist()[1] == [0, -8]
