"""The edge network: a small U of plain convolutions that gives the probability of a boundary at each pixel.

Its files are safetensors in half precision, with the architecture as metadata.
"""

import copy
import functools
import itertools
import json
import os
from collections.abc import Callable, Sequence
from importlib import resources

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.fusion import fuse_conv_bn_eval

from deepmatching.errors import DeepMatchingError
from deepmatching.io.files import PathLike, as_path
from deepmatching.io.structured import parse_json
from deepmatching.io.weights import NoInitialValues, check_counts, read_safetensors, write_safetensors
from deepmatching.network.convolutions import channels_last, in_row_bands

_FORMAT = "deepmatching-edges"  #: format in the metadata of model files
_SHIPPED = "weights/edges.safetensors"  #: the file that ships with the package
_MEAN = (0.45, 0.44, 0.40)  #: mean of natural images, per RGB channel
_DEVIATION = (0.25, 0.24, 0.25)  #: their standard deviation
ROWS = 48  #: rows at stride 2 that are computed together
#: Rows around them that are needed: one for the first layer or the interpolation, one for each of two convolutions, and
#: one to make the number even.
REACH = 4


class EdgeNetwork(nn.Module):
    """Boundary probabilities at four scales; coarser scales inform finer ones.

    ::

        image ── 6×6 stride 2 ── blocks ── ↓2 ── blocks ── ↓2 ── blocks ── ↓2 ── blocks
                                   │               │               │               │
        logits ← shuffle ×2 ──── smooth ── 2↑ ── smooth ── 2↑ ── smooth ── 2↑ ─────┘

    Nothing is computed at full resolution: the 6 × 6 kernels see all pixels, and the last layer gives the four logits
    of each 2 × 2 square at once. In training, every scale has its own logits (deep supervision).

    Args:
        widths: channels at strides 2, 4, 8 and 16.
        depths: residual blocks at these strides.
        normalise: batch normalisation after every convolution, for training; see :meth:`folded`.
    """

    def __init__(
        self, widths: Sequence[int] = (24, 32, 48, 48), depths: Sequence[int] = (1, 2, 2, 2), normalise: bool = False
    ) -> None:
        super().__init__()
        self.widths, self.depths = tuple(widths), tuple(depths)
        scales = list(itertools.pairwise(widths))
        self.stem = _convolution(3, widths[0], normalise, kernel=6, stride=2)
        self.down = nn.ModuleList(_convolution(fine, coarse, normalise, stride=2) for fine, coarse in scales)
        parts = ([Block(width, normalise) for _ in range(depth)] for width, depth in zip(widths, depths, strict=True))
        self.blocks = nn.ModuleList(nn.Sequential(*blocks) for blocks in parts)
        self.up = nn.ModuleList(_convolution(coarse, fine, normalise, kernel=1) for fine, coarse in scales)
        self.smooth = nn.ModuleList(_convolution(width, width, normalise) for width in widths[:-1])
        self.head = nn.Conv2d(widths[0], 4, 3, padding=1)
        self.side = nn.ModuleList(nn.Conv2d(width, 1, 1) for width in widths[1:])
        self.register_buffer("mean", torch.tensor(_MEAN).view(3, 1, 1), persistent=False)
        self.register_buffer("deviation", torch.tensor(_DEVIATION).view(3, 1, 1), persistent=False)
        self.mean: Tensor
        self.deviation: Tensor
        for layer in self.modules():
            if isinstance(layer, nn.Conv2d):
                nn.init.kaiming_normal_(layer.weight, nonlinearity="relu")
                if layer.bias is not None:
                    nn.init.zeros_(layer.bias)
        for layer in (self.head, *self.side):
            nn.init.normal_(layer.weight, std=0.01)
        channels_last(self)

    def forward(self, image: Tensor) -> Tensor:
        """Return the logits (B, 1, H, W) of a boundary in images (B, 3, H, W) in [0, 1], of any size."""
        return self.scales(image)[0]

    def scales(self, image: Tensor) -> list[Tensor]:
        """Return the logits of every scale, each (B, 1, H, W), finest first; of coarser scales only in training."""
        rows, columns = image.shape[-2:]
        stride = 2 ** len(self.widths)
        padded = F.pad(image, (0, -columns % stride, 0, -rows % stride), mode="replicate")
        levels = [self._by_rows(self._finest, (padded,), padded.shape[2] // 2, 2)]
        for down, blocks in zip(self.down, self.blocks[1:], strict=True):
            levels.append(blocks(down(levels[-1]).relu_()))
        logits = []
        features = levels.pop()
        for scale in reversed(range(len(levels))):
            if self.training:
                logits.append(F.interpolate(self.side[scale](features), scale_factor=2 ** (scale + 2), mode="bilinear"))
            if scale > 0:
                features = self._joined(scale, features, levels.pop())
        logits.append(self._by_rows(self._logits, (features, levels.pop()), padded.shape[2] // 4, 4))
        return [logit[..., :rows, :columns] for logit in reversed(logits)]

    def _finest(self, image: Tensor) -> Tensor:
        """Return features at stride 2. All ReLU are in place: no convolution needs its result for the gradient."""
        normalised = ((image - self.mean) / self.deviation).contiguous(memory_format=torch.channels_last)
        return self.blocks[0](self.stem(normalised).relu_())

    def _joined(self, scale: int, coarse: Tensor, fine: Tensor) -> Tensor:
        """Return the features of one scale, combined with those of the next coarser one."""
        coarse = F.interpolate(self.up[scale](coarse), scale_factor=2, mode="bilinear")
        return self.smooth[scale](coarse.add_(fine).relu_()).relu_()

    def _logits(self, coarse: Tensor, fine: Tensor) -> Tensor:
        return F.pixel_shuffle(self.head(self._joined(0, coarse, fine)), 2)

    def _by_rows(self, layers: Callable[..., Tensor], maps: tuple[Tensor, ...], height: int, stride: int) -> Tensor:
        """Return layers(*maps), for inference on a CPU in bands of rows: features at stride 2 take the most memory.

        Results depend on at most ``REACH`` rows around, at stride 2. The maps are (B, C, n · H, W), each with an n of
        its own, and H = ``height`` rows at this stride.
        """
        if self.training or maps[0].device.type != "cpu" or torch.is_grad_enabled():
            return layers(*maps)
        return in_row_bands(lambda *bands: (layers(*bands),), maps, height, 2 * ROWS // stride, 2 * REACH // stride)[0]

    def folded(self) -> "EdgeNetwork":
        """Return a copy for inference, with batch normalisation folded into the convolutions before it."""
        network = copy.deepcopy(self).eval()
        for module in network.modules():
            for name, child in module.named_children():
                if isinstance(child, nn.Sequential) and len(child) == 2 and isinstance(child[1], nn.BatchNorm2d):
                    setattr(module, name, fuse_conv_bn_eval(*child))
        return network


class Block(nn.Module):
    """x ↦ relu(x + conv(relu(conv(x)))), two 3 × 3 convolutions."""

    def __init__(self, width: int, normalise: bool) -> None:
        super().__init__()
        self.first = _convolution(width, width, normalise)
        self.second = _convolution(width, width, normalise)

    def forward(self, features: Tensor) -> Tensor:
        return self.second(self.first(features).relu_()).add_(features).relu_()


def _convolution(inputs: int, outputs: int, normalise: bool, kernel: int = 3, stride: int = 1) -> nn.Module:
    convolution = nn.Conv2d(inputs, outputs, kernel, stride, (kernel - 1) // 2, bias=not normalise)
    return nn.Sequential(convolution, nn.BatchNorm2d(outputs)) if normalise else convolution


def save_edge_network(network: EdgeNetwork, path: PathLike, **metadata: str) -> None:
    """Write a folded network (see :meth:`EdgeNetwork.folded`) with extra ``metadata``, in half precision.

    This changes a probability by less than 0.01 and halves the file.
    """
    tensors = {name: tensor.to(torch.float16) for name, tensor in network.state_dict().items()}
    settings = json.dumps({"widths": network.widths, "depths": network.depths})
    write_safetensors(path, tensors, {**metadata, "format": _FORMAT, "settings": settings})


def load_edge_network(path: PathLike | None = None, device: str = "cpu") -> EdgeNetwork:
    """Return the network of a file, or the one that ships with the package: float32, in evaluation mode.

    The latter is loaded once per device and shared.
    """
    if path is None:
        return _shipped(device)
    path = as_path(path)
    if not os.path.isfile(path):
        raise DeepMatchingError(f"There is no edge model '{path}'; check the path.")
    tensors, metadata = read_safetensors(path)
    if metadata.get("format") != _FORMAT:
        raise DeepMatchingError(f"'{path}' is not an edge model of deepmatching; train one with edge_network.training.")
    try:
        settings = parse_json(metadata["settings"])
        check_counts(settings, tensors)
        with NoInitialValues():
            with torch.device("meta"):  # takes no memory, whatever the sizes in the file
                shapes = {name: tensor.shape for name, tensor in EdgeNetwork(**settings).state_dict().items()}
            if shapes != {name: tensor.shape for name, tensor in tensors.items()}:
                raise ValueError("other shapes")
            network = EdgeNetwork(**settings)
        network.load_state_dict(tensors)
    except (TypeError, ValueError, LookupError, AttributeError, RuntimeError, OverflowError) as error:
        raise DeepMatchingError(f"'{path}' holds tensors of another architecture; train or copy it again.") from error
    return network.eval().requires_grad_(False).to(device)


@functools.lru_cache(maxsize=4)
def _shipped(device: str) -> EdgeNetwork:
    with resources.as_file(resources.files("deepmatching") / _SHIPPED) as path:
        return load_edge_network(path, device)
