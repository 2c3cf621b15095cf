"""The null vector of a small symmetric matrix."""

from types import ModuleType

import pytest
import torch
from torch import Tensor

from deepmatching.flow.operators.null_vector import inverse, null_vector


def nearly_singular(n: int, least: float) -> tuple[Tensor, Tensor]:
    """Return a matrix (n, n) with the eigenvalues 1 … n but the first, which is ``least``, and the vector of that."""
    axes, _ = torch.linalg.qr(torch.randn(n, n, dtype=torch.float64))
    values = torch.arange(1, n + 1, dtype=torch.float64)
    values[0] = least
    return axes * values @ axes.T, axes[:, 0]


@pytest.mark.parametrize("n", [1, 3, 9])
@pytest.mark.parametrize("least", [0.0, 1e-9, 0.2])
def test_the_vector_of_the_smallest_eigenvalue_is_found(n: int, least: float) -> None:
    matrix, expected = nearly_singular(n, least)
    found = null_vector.definition(matrix)
    assert float(found.norm()) == pytest.approx(1)
    assert abs(float(found @ expected)) == pytest.approx(1, abs=1e-6)


@pytest.mark.parametrize("n", [3, 9])
def test_the_inverse_undoes_the_matrix(n: int) -> None:
    matrix, _ = nearly_singular(n, 0.5)
    torch.testing.assert_close(inverse(matrix) @ matrix, torch.eye(n, dtype=torch.float64), atol=1e-9, rtol=0)


@pytest.mark.parametrize("n", [2, 3, 9, 16])
@pytest.mark.parametrize("least", [0.0, 0.3])
def test_the_kernel_agrees(n: int, least: float, gpu: ModuleType, gpu_device: str) -> None:
    matrix, _ = nearly_singular(n, least)
    found = gpu.null_vector(matrix.T.to(gpu_device)).cpu()
    torch.testing.assert_close(found, null_vector.definition(matrix), atol=1e-9, rtol=0)
