"""The sum of eq. (6)."""

from __future__ import annotations

import math

import pytest
import torch
from torch.autograd import gradcheck

from deepmatching.network.operators import summation


def test_minus_infinity_stays(device: torch.device, dtype: torch.dtype) -> None:
    scores, unpooled = (torch.tensor(v, device=device, dtype=dtype) for v in ([1.0, 2.0], [-math.inf, 3.0]))
    assert summation(scores, unpooled).tolist() == [-math.inf, 5.0]


def test_without_a_gradient_the_result_takes_the_place_of_the_unpooled_scores() -> None:
    unpooled = torch.ones(2)
    assert summation(torch.ones(2), unpooled) is unpooled


def test_shapes_must_agree() -> None:
    with pytest.raises(RuntimeError):
        summation(torch.ones(2, 3), torch.ones(2, 4))


def test_gradient(device: torch.device) -> None:
    scores, unpooled = (torch.rand(2, 3, dtype=torch.float64, device=device, requires_grad=True) for _ in range(2))
    assert gradcheck(summation, (scores, unpooled))
