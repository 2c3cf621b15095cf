"""Scores at any displacement."""

import pytest
import torch

from deepmatching.kernels import cpu
from deepmatching.network.operators.lookups import lookup, lookup_squares, sample


def test_on_cells_a_lookup_is_the_scalar_product() -> None:
    generator = torch.Generator().manual_seed(1)
    vectors = torch.randn(2, 5, 3, 4, generator=generator)
    cells = torch.randn(2, 5, 7, 9, generator=generator)
    row, column = (torch.randint(0, n, (2, 6, 3, 4), generator=generator) for n in (7, 9))
    found = lookup(vectors, cells, 2.0 * torch.stack([column, row], dim=-1), 2)
    for b, k, i, j in torch.cartesian_prod(*(torch.arange(n) for n in (2, 6, 3, 4))).tolist():
        expected = vectors[b, :, i, j] @ cells[b, :, row[b, k, i, j], column[b, k, i, j]]
        torch.testing.assert_close(found[b, k, i, j], expected.clamp(min=0), atol=1e-5, rtol=0)


@pytest.mark.parametrize("kernels", ["cpu", "gpu"])
@pytest.mark.parametrize("channels", [5, 8, 64, 70])
def test_the_kernels_agree_with_the_definition(channels: int, kernels: str, request: pytest.FixtureRequest) -> None:
    package, device = (request.getfixturevalue(n) for n in ("gpu", "gpu_device")) if kernels == "gpu" else (cpu, "cpu")
    generator = torch.Generator().manual_seed(channels)
    vectors, cells = (torch.randn(2, channels, *size, generator=generator) for size in ((3, 7), (7, 9)))
    places = torch.rand(2, 6, 3, 7, 2, generator=generator) * 24 - 4  # some of them outside
    found = package.lookup(*(tensor.to(device) for tensor in (vectors, cells, places)), 2)
    torch.testing.assert_close(found.cpu(), lookup.definition(vectors, cells, places, 2), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("channels", [5, 64])
@pytest.mark.parametrize("squares", [((2, 2.0),), ((1, 2.0), (2, 8.0)), ((0, 3.0), (3, 2.0))])
def test_squares_are_lookups_around_a_target(channels: int, squares: tuple[tuple[int, float], ...]) -> None:
    generator = torch.Generator().manual_seed(channels)
    vectors, cells = (torch.randn(2, channels, *size, generator=generator) for size in ((5, 4), (7, 9)))
    targets = torch.rand(2, 5, 4, 2, generator=generator) * 40 - 10
    targets[0, 0], targets[1, 0, 0] = 1e7, -1e7  # far outside
    targets[0, 1] = targets[0, 1].round()  # on pixels, and some on cells
    steps = [(x, y) for r, step in squares for y in _axis(r, step) for x in _axis(r, step)]
    places = torch.stack([targets + torch.tensor(step) for step in steps], dim=1)
    expected = lookup.definition(vectors, cells, places, 2)
    for found in (lookup_squares, lookup_squares.definition):
        torch.testing.assert_close(found(vectors, cells, targets, 2, squares), expected, atol=1e-5, rtol=1e-5)


def _axis(reach: int, step: float) -> list[float]:
    return [n * step for n in range(-reach, reach + 1)]


def test_gradients_are_those_of_finite_differences() -> None:
    generator = torch.Generator().manual_seed(0)
    vectors, cells = (torch.rand(1, 3, *size, dtype=torch.float64, generator=generator) for size in ((2, 2), (4, 4)))
    places = 1.1 + 4 * torch.rand(1, 2, 2, 2, 2, dtype=torch.float64, generator=generator)
    arguments = [tensor.requires_grad_() for tensor in (vectors, cells, places)]
    assert torch.autograd.gradcheck(lambda *tensors: lookup(*tensors, 2), arguments)


def test_samples_at_cells_are_the_cells_and_between_them_the_mean() -> None:
    maps = torch.rand(2, 3, 4, 5, dtype=torch.float64)
    y, x = torch.meshgrid(torch.arange(4.0), torch.arange(5.0), indexing="ij")
    places = torch.stack([x, y], dim=-1).double().expand(2, 4, 5, 2)
    torch.testing.assert_close(sample(maps, places), maps)
    half = sample(maps, places[:, :3] + torch.tensor([0.0, 0.5], dtype=torch.float64))
    torch.testing.assert_close(half, (maps[:, :, :3] + maps[:, :, 1:]) / 2)
    far = sample(maps, places - 100)
    torch.testing.assert_close(far, maps[:, :, :1, :1].expand_as(far))
