"""One step of variational refinement (see ``deepmatching.flow.refinement``)."""

from __future__ import annotations

from torch import Tensor

from deepmatching.kernels.cpu.flow.linear_system import linear_system
from deepmatching.kernels.cpu.flow.relaxation import relax


def refinement_step(
    flow: Tensor,
    start: Tensor,
    image0: Tensor,
    image1: Tensor,
    smoothness: Tensor,
    gamma: float,
    hold: float,
    iterations: int,
    omega: float,
) -> None:
    """See :func:`deepmatching.flow.operators.refinement_step.refinement_step`."""
    first, second, weights = (tensor.detach().contiguous().numpy() for tensor in (image0, image1, smoothness))
    result = flow.detach().numpy()
    equations = linear_system(first, second, result, start.detach().numpy(), weights, gamma, hold)
    relax(*equations, iterations, omega, result)
