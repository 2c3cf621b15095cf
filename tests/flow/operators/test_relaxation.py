"""Relaxation against a dense solver."""

from __future__ import annotations

import torch

from deepmatching.flow.operators.refinement_step import relax


def test_relaxation_solves_the_system() -> None:
    generator = torch.Generator().manual_seed(0)
    height, width = 5, 6
    number = height * width

    def random(*shape: int) -> torch.Tensor:
        return torch.rand(*shape, generator=generator, dtype=torch.float64)

    a11, a22 = random(height, width) + 0.5, random(height, width) + 0.5
    a12 = 0.3 * random(height, width)
    across, along = random(height, width), random(height, width)
    across[:, -1], along[-1] = 0, 0
    right, flow = random(2, height, width), random(2, height, width)
    system = torch.zeros(2 * number, 2 * number, dtype=torch.float64)
    side = right.reshape(-1).clone()
    for i in range(height):
        for j in range(width):
            n = i * width + j
            system[n, n] += a11[i, j]
            system[n, number + n] += a12[i, j]
            system[number + n, n] += a12[i, j]
            system[number + n, number + n] += a22[i, j]
            for di, dj, weight in (
                (0, 1, across[i, j]),
                (1, 0, along[i, j]),
                (0, -1, across[i, j - 1] if j else 0),
                (-1, 0, along[i - 1, j] if i else 0),
            ):
                if 0 <= i + di < height and 0 <= j + dj < width:
                    m = n + di * width + dj
                    for c in range(2):
                        system[c * number + n, c * number + n] += weight
                        system[c * number + n, c * number + m] -= weight
                        side[c * number + n] += weight * (flow[c, i + di, j + dj] - flow[c, i, j])
    expected = torch.linalg.solve(system, side).reshape(2, height, width)
    torch.testing.assert_close(relax(torch.stack([a11, a12, a22]), right, across, along, flow, 200, 1.5), expected)
