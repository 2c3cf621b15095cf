"""The interface of descriptors."""

from abc import ABC, abstractmethod
from typing import Any

from torch import Tensor, nn


class Descriptor(nn.Module, ABC):
    """image → cells × channels.

    Attributes:
        stride: γ₀, pixels per cell: a power of two. Features of another stride, such as a ViT's of 14 or 16, can be
            resampled: see ``Tokens`` in ``examples/extension``.
        patch: cells along the side of the patch that correlation assembles around a position. With an even number, the
            descriptor gives *cells*, which lie between positions: H/stride × W/stride. With 1, it gives one finished
            vector per *position*: (H/stride + 1) × (W/stride + 1).
        channels: channels per cell or vector.
        working: peak memory of describing an image whole, including the result, in bytes per pixel; 0 if negligible.
        working_on_gpu: the same on a GPU, if it differs.
        banded: the same for a large image on a CPU, whose first layers ``convolutions.in_bands`` cuts; None if not.
        mapped: bytes per pixel of the map that the bands make up.
        scalable: whether a model of this kind may have another stride (``downscale``).
    """

    stride: int
    patch: int
    channels: int
    working: int = 0
    working_on_gpu: int | None = None
    banded: int | None = None
    mapped: int = 0
    scalable: bool = False

    @property
    def cells_of_patch(self) -> int:
        """Cells along δ₀, the side of a level-0 patch and the step of the grid: ``patch``, and at least 4."""
        return max(4, self.patch)

    @abstractmethod
    def forward(self, image: Tensor) -> Tensor:
        """Describe images (B, 1 or 3, H, W) with values in [0, 1], H and W multiples of ``stride``.

        The result is (B, channels, H/stride, W/stride), or one more row and column if ``patch`` is 1; scaled so that a
        patch has unit L2 norm.
        """

    def settings(self) -> dict[str, Any]:
        """Return the arguments with which a model file rebuilds this descriptor."""
        return {}
