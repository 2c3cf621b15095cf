"""The paper's CNN descriptor: the first four convolutions of VGG-16."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from deepmatching.errors import check_number
from deepmatching.network.convolutions import as_rgb, channels_last, in_bands, normalised, rectified
from deepmatching.network.descriptors.base import Descriptor

#: Mean colour of VGG-16's training images, RGB in 0 … 255.
MEAN_RGB = (123.68, 116.779, 103.939)


class VGG(Descriptor):
    """conv1_1, conv1_2, pool1, conv2_1, conv2_2 of VGG-16, trainable.

    conv2_2 is taken *before* its ReLU, and each cell's 128-vector is scaled to norm 1/4, so that a patch of 4 × 4
    cells has norm 1. Signed patches are 2 to 5 points better at acc@2 than one rectified vector per cell. Weights are
    random until a model file or :func:`~deepmatching.network.descriptors.pretrained.load_vgg` sets them.

    Args:
        downscale: 1 for cells of 2 pixels, the stride of the architecture. 0 for the paper's discretisation to the
            letter (γ₀ = 1, α₀ = δ₀ = 8 pixels): the pooling moves by one pixel and the layers after it are dilated, so
            that every second cell is one of the former. Patches have 8 × 8 cells of norm 1/8.
    """

    channels = 128

    def __init__(self, downscale: int = 1) -> None:
        super().__init__()
        check_number("downscale of the vgg descriptor", downscale, minimum=0, maximum=1, whole=True)
        self.stride = 2**downscale
        self.patch = 8 // self.stride
        dense = 4 // self.stride**2  # as many cells
        self.working = max(530, 320 * dense)  # two maps of 64 channels at full resolution, or all after the pooling
        self.banded = 260 * dense  # two maps of 128 channels, one number a cell
        self.mapped = 64 * dense
        self.conv1_1 = nn.Conv2d(3, 64, 3, padding=1)
        self.conv1_2 = nn.Conv2d(64, 64, 3, padding=1)
        self.conv2_1, self.conv2_2 = (
            nn.Conv2d(inputs, 128, 3, padding=2 // self.stride, dilation=2 // self.stride) for inputs in (64, 128)
        )
        self.register_buffer("mean", torch.tensor(MEAN_RGB)[:, None, None], persistent=False)
        self.mean: Tensor
        channels_last(self)

    def forward(self, image: Tensor) -> Tensor:
        around = 4 - self.stride  # rows that two convolutions reach, and a pooling that overlaps
        x = in_bands(self._first, image, self.working, around, 2, self.stride)
        x = rectified(self.conv2_1, x)  # the map before is freed
        return normalised(self.conv2_2(x), 1 / self.patch)

    def _first(self, image: Tensor) -> Tensor:
        """Run the layers up to the pooling: (B, 1 or 3, H, W) → (B, 64, H/γ₀, W/γ₀)."""
        x = (as_rgb(image) * 255 - self.mean.to(image.dtype)).contiguous(memory_format=torch.channels_last)
        x = rectified(self.conv1_2, rectified(self.conv1_1, x))
        return F.max_pool2d(x if self.stride == 2 else F.pad(x, (0, 1, 0, 1)), 2, self.stride)

    def settings(self) -> dict[str, int]:
        return {} if self.stride == 2 else {"downscale": 0}
