"""Methods to evaluate that need no network."""

import numpy as np
from torch import Tensor

from deepmatching.matches import Matches
from helpers.fake_datasets import FLOW, SIZE


class Perfect:
    """Knows FLOW; counts its calls and can be interrupted at one of them."""

    def __init__(self, interrupt: int | None = None) -> None:
        self.calls, self.interrupt = 0, interrupt

    def match(self, image0: Tensor, image1: Tensor) -> Matches:
        if self.calls == self.interrupt:
            raise KeyboardInterrupt
        self.calls += 1
        points = np.stack(np.meshgrid(np.arange(4, SIZE[1], 8), np.arange(4, SIZE[0], 8)), axis=2).reshape(-1, 2)
        return Matches(points.astype(np.float32), (points + FLOW).astype(np.float32), np.ones(len(points)))

    def flow(self, image0: Tensor, image1: Tensor) -> np.ndarray:
        self.calls += 1
        return np.full((*SIZE, 2), (FLOW[0], FLOW[1] + 1), np.float32)
