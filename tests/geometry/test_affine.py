"""The weighted affine fit: gradients, and least squares by brute force."""

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from deepmatching.geometry.affine import affine_fit


def test_gradient() -> None:
    offsets, values = torch.randn(2, 3, 6, 2, dtype=torch.float64).requires_grad_()
    weights = torch.rand(3, 6, dtype=torch.float64).requires_grad_()
    assert torch.autograd.gradcheck(lambda *tensors: affine_fit(*tensors, 0.1), (offsets, values, weights))


@settings(max_examples=25)
@given(st.integers(0, 2**31), st.integers(4, 9), st.floats(0, 10))
def test_it_is_the_least_squares_solution(seed: int, number: int, ridge: float) -> None:
    generator = np.random.default_rng(seed)
    offsets, values = generator.normal(size=(number, 2)), generator.normal(size=(number, 3))
    weights = generator.uniform(0.1, 1, number)
    rows = np.concatenate([offsets, np.ones((number, 1))], axis=1) * weights[:, None]
    rows = np.concatenate([rows, np.sqrt(ridge) * np.eye(3)[:2]])
    right = np.concatenate([values * weights[:, None], np.zeros((2, 3))])
    found = affine_fit(*(torch.from_numpy(a) for a in (offsets, values, weights)), ridge)
    np.testing.assert_allclose(found, np.linalg.lstsq(rows, right, rcond=None)[0], atol=1e-6)


def test_points_without_weight_do_not_count() -> None:
    offsets, values = torch.randn(2, 5, 2)
    weights = torch.tensor([1.0, 2.0, 0.0, 1.0, 1.0])
    some = weights > 0
    expected = affine_fit(offsets[some], values[some], weights[some])
    torch.testing.assert_close(affine_fit(offsets, values, weights), expected)
