"""Helpers of the learned networks: fast convolutions, large maps in bands of rows, colour and normalisation."""

from collections.abc import Callable, Mapping

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from deepmatching.kernels.registry import is_exporting, operator

BAND_BYTES = 2**28  #: memory in bytes that a band of rows may take while it is described, about
ALIGNMENT = 32  #: bands start at multiples of this many rows

#: Weight and bias of convolutions, in another type than their own.
Converted = Mapping[nn.Module, tuple[Tensor, Tensor]]


def as_rgb(image: Tensor) -> Tensor:
    """Expand images (B, 1 or 3, H, W) to (B, 3, H, W)."""
    return image.expand(-1, 3, -1, -1) if image.shape[1] == 1 else image


def rectified(
    convolution: nn.Conv2d, x: Tensor, add: Tensor | None = None, converted: Converted | None = None
) -> Tensor:
    """Compute max(0, convolution(x) + add), (B, C, H, W) → (B, C', H', W').

    For inference on CUDA, cuDNN adds the bias and ``add`` and applies the ReLU in the pass that writes the result.
    """
    if x.is_cuda and not torch.is_grad_enabled() and torch.backends.cudnn.is_available():
        assert convolution.bias is not None and not isinstance(convolution.padding, str)
        weight, bias = converted[convolution] if converted else (convolution.weight, convolution.bias)
        dtype = torch.get_autocast_dtype("cuda") if torch.is_autocast_enabled("cuda") else x.dtype
        x, weight, bias = (t.to(dtype) for t in (x, weight, bias))
        how = (convolution.stride, convolution.padding, convolution.dilation, convolution.groups)
        if add is None:
            return torch.cudnn_convolution_relu(x, weight, bias, *how)
        return torch.cudnn_convolution_add_relu(x, weight, add.to(dtype), 1.0, bias, *how)
    result = convolved(convolution, x, converted)
    return F.relu(result if add is None else result + add, inplace=True)


def convolved(convolution: nn.Conv2d, x: Tensor, converted: Converted | None = None) -> Tensor:
    """Compute convolution(x), with its converted weight and bias (:func:`converted_to`) where there are some."""
    if converted is None:
        return convolution(x)
    weight, bias = converted[convolution]
    if convolution.kernel_size == (1, 1):  # a matrix product adds the bias in the same pass
        return F.linear(x.permute(0, 2, 3, 1), weight.flatten(1), bias).permute(0, 3, 1, 2)
    return F.conv2d(x, weight, bias, convolution.stride, convolution.padding)


def converted_to(dtype: torch.dtype, module: nn.Module) -> Converted:
    """Convert weights and biases of a module's convolutions to another type.

    On CUDA, one kernel converts all of them. It costs less than keeping copies in step with the parameters would: these
    may change, also between replays of a CUDA graph.
    """
    convolutions = [m for m in module.modules() if isinstance(m, nn.Conv2d)]
    own = [parameter.detach() for m in convolutions for parameter in (m.weight, m.bias) if parameter is not None]
    copies = [torch.empty_like(parameter, dtype=dtype) for parameter in own]
    torch._foreach_copy_(copies, own)
    return dict(zip(convolutions, zip(copies[::2], copies[1::2], strict=True), strict=True))


@operator(cpu=(), cuda=("float32",))
def normalised(x: Tensor, norm: float = 1.0) -> Tensor:
    """Scale x (B, C, H, W) to this L2 norm along the channels, at least in float32. Zero stays zero.

    Without gradients, x itself is overwritten.
    """
    x = x.float() if x.dtype in (torch.float16, torch.bfloat16) else x
    factors = norm / torch.linalg.vector_norm(x, dim=1, keepdim=True).clamp(min=1e-6)
    return x * factors if torch.is_grad_enabled() else x.mul_(factors)


def band_rows(rows: int, columns: int, working: int, around: int = 0) -> int:
    """Return how many rows of an image of this size are described at a time; all if ``BAND_BYTES`` are enough.

    The number does not depend on the free memory, so that results do not either.
    """
    if working * rows * columns <= BAND_BYTES:
        return rows
    fitting = max(BAND_BYTES // (working * columns) - 2 * around, 4 * around)
    return min(rows, (fitting // ALIGNMENT + 1) * ALIGNMENT)


def in_bands(
    layers: Callable[[Tensor], Tensor], image: Tensor, working: int, around: int, alignment: int, stride: int
) -> Tensor:
    """Return ``layers(image)``, of a large image for inference on a CPU in bands of rows: full maps take most memory.

    Args:
        layers: convolutions, (B, C, H, W) → (B, C', H / stride, W / stride).
        working: bytes per pixel that they need at most.
        around: the number of rows of pixels around that a row of the result depends on.
        alignment: a band must start at a multiple of this many rows; it divides ``ALIGNMENT``.
    """
    if image.device.type != "cpu" or torch.is_grad_enabled() or is_exporting():
        return layers(image)
    height, width = image.shape[2:]
    around = -(-around // alignment) * alignment
    rows = band_rows(height, width, working, around)
    return in_row_bands(lambda x: (layers(x),), (image,), height // stride, rows // stride, around // stride)[0]


def in_row_bands(
    work: Callable[..., tuple[Tensor, ...]], maps: tuple[Tensor, ...], height: int, rows: int, reach: int = 0
) -> tuple[Tensor, ...]:
    """Return ``work(*maps)``, computed ``rows`` of ``height`` rows at a time.

    A map has a multiple of ``height`` rows, and perhaps a few more, which belong to the last of them: a convolution
    without padding reads these.

    Args:
        work: from maps (B, C, n · height, W), each with an n of its own, to maps of such shapes.
        height: rows of the coarsest map.
        rows: rows of a band.
        reach: rows on either side of a band that its result depends on.
    """
    if rows >= height:
        return work(*maps)
    results: list[Tensor] = []
    for top in range(0, height, rows):
        first, end = max(0, top - reach), min(height, top + rows + reach)
        parts = work(*(_slice_rows(each, height, first, end) for each in maps))
        results = results or [_empty(part, part.shape[2] // (end - first) * height) for part in parts]
        for n, part in enumerate(parts):
            own = _slice_rows(part, end - first, top - first, top - first + rows)
            _slice_rows(results[n], height, top, top + rows).copy_(own)
        del part, own, parts  # before the next band
    return tuple(results)


def _slice_rows(maps: Tensor, height: int, first: int, end: int) -> Tensor:
    """Slice rows first:end, given in units of ``height``, with the rows beyond a multiple of it."""
    scale, extra = divmod(maps.shape[2], height)
    return maps[:, :, first * scale : end * scale + extra]


def _empty(part: Tensor, height: int) -> Tensor:
    """Return a map like a band of it, in the same layout."""
    layout = torch.channels_last if part.is_contiguous(memory_format=torch.channels_last) else torch.contiguous_format
    shape = (*part.shape[:2], height, part.shape[3])
    return torch.empty(shape, dtype=part.dtype, device=part.device, memory_format=layout)


def channels_last(module: nn.Module) -> None:
    """Store the weights as NHWC, the fastest layout for these convolutions."""
    for parameter in module.parameters():
        if parameter.ndim == 4:
            parameter.data = parameter.data.contiguous(memory_format=torch.channels_last)


@operator(cpu=())
def joined(fine: Tensor, coarse: Tensor) -> Tensor:
    """Add ``coarse`` at twice its size to ``fine``, cropped to the size of ``fine``."""
    coarse = F.interpolate(coarse, scale_factor=2, mode="bilinear", align_corners=False)
    return fine + coarse[:, :, : fine.shape[2], : fine.shape[3]]
