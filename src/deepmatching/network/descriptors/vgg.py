"""The paper's CNN descriptor: the first four convolutions of VGG-16."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from deepmatching.network.convolutions import as_rgb, channels_last, check_downscale, in_bands, normalised, rectified
from deepmatching.network.descriptors.base import Descriptor

#: Mean colour of VGG-16's training images, RGB in 0 … 255.
MEAN_RGB = (123.68, 116.779, 103.939)


class VGG(Descriptor):
    """conv1_1, conv1_2, pool1, conv2_1, conv2_2 of VGG-16, trainable.

    conv2_2 is taken *before* its ReLU, and each cell's 128-vector is scaled to norm 1/4, so that a patch of 4 × 4
    cells has norm 1. Signed patches are 2 to 5 points better at acc@2 than one rectified vector per cell. Weights are
    random until a model file or :func:`~deepmatching.network.descriptors.pretrained.load_vgg` sets them.

    Args:
        downscale: must be 1: the architecture has a stride of 2 pixels.
    """

    stride = 2
    patch = 4
    channels = 128
    working = 530  # two maps of 64 channels at full resolution
    banded = 260  # two maps of 128 channels at half resolution
    mapped = 64

    def __init__(self, downscale: int = 1) -> None:
        super().__init__()
        check_downscale("vgg", downscale)
        self.conv1_1 = nn.Conv2d(3, 64, 3, padding=1)
        self.conv1_2 = nn.Conv2d(64, 64, 3, padding=1)
        self.conv2_1 = nn.Conv2d(64, 128, 3, padding=1)
        self.conv2_2 = nn.Conv2d(128, 128, 3, padding=1)
        self.register_buffer("mean", torch.tensor(MEAN_RGB)[:, None, None], persistent=False)
        self.mean: Tensor
        channels_last(self)

    def forward(self, image: Tensor) -> Tensor:
        x = in_bands(self._first, image, self.working, 2, 2, 2)
        return normalised(self.conv2_2(rectified(self.conv2_1, x)), 1 / self.patch)

    def _first(self, image: Tensor) -> Tensor:
        """Run the layers up to the pooling: (B, 1 or 3, H, W) → (B, 64, H/2, W/2)."""
        x = (as_rgb(image) * 255 - self.mean.to(image.dtype)).contiguous(memory_format=torch.channels_last)
        return F.max_pool2d(rectified(self.conv1_2, rectified(self.conv1_1, x)), 2)
