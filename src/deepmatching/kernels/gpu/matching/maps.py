"""Maps of the learned networks: vectors of a given length, and a coarse map added to a fine one, in one pass each."""

import triton
import triton.language as tl
from torch import Tensor, channels_last, empty_like

from deepmatching.kernels.gpu.indexing import fetch, launch

PLACES = 32  #: places of one program that scales vectors
NUMBERS = 1024  #: numbers of one program that adds maps


@triton.jit
def _normalise(
    x, norm, width, places, channels, stride_b, stride_c, stride_y, stride_x,
    PLACES: tl.constexpr, PADDED: tl.constexpr
):  # fmt: skip
    """Scale the vectors at some places of a map to one length."""
    place = tl.program_id(0) * PLACES + tl.arange(0, PLACES)
    c = tl.arange(0, PADDED)
    at = tl.program_id(1).to(tl.int64) * stride_b + (place // width).to(tl.int64) * stride_y + place % width * stride_x
    on = (place < places)[:, None] & (c < channels)[None, :]
    vectors = x + at[:, None] + (c * stride_c)[None, :]
    values = fetch(vectors, on)
    length = tl.maximum(tl.sqrt(tl.sum(values * values, axis=1)), 1e-6)
    tl.store(vectors, values * (norm / length)[:, None], mask=on)


@triton.jit
def _near(position, size):
    """Return the coarse cells on both sides of a fine one along an axis, and the second one's weight."""
    first = (position - 1) >> 1
    weight = tl.where(position % 2 == 1, 0.25, 0.75)
    return tl.maximum(first, 0), tl.minimum(first + 1, size - 1), weight


@triton.jit
def _join(fine, coarse, out, h, w, h_in, w_in, CHANNELS: tl.constexpr, NUMBERS: tl.constexpr):
    """Add bilinear values of ``coarse``, at twice its size. All maps have their channels last."""
    n = tl.program_id(0) * NUMBERS + tl.arange(0, NUMBERS)
    on = n < h * w * CHANNELS
    channel, place = n % CHANNELS, n // CHANNELS
    top, bottom, weight_y = _near(place // w, h_in)
    left, right, weight_x = _near(place % w, w_in)
    pair = tl.program_id(1).to(tl.int64)
    coarse += pair * (h_in * w_in * CHANNELS)
    above = fetch(coarse + (top * w_in + left) * CHANNELS + channel, on).to(tl.float32) * (1 - weight_x)
    above += fetch(coarse + (top * w_in + right) * CHANNELS + channel, on).to(tl.float32) * weight_x
    below = fetch(coarse + (bottom * w_in + left) * CHANNELS + channel, on).to(tl.float32) * (1 - weight_x)
    below += fetch(coarse + (bottom * w_in + right) * CHANNELS + channel, on).to(tl.float32) * weight_x
    at = pair * (h * w * CHANNELS) + n
    total = fetch(fine + at, on).to(tl.float32) + above * (1 - weight_y) + below * weight_y
    tl.store(out + at, total.to(out.dtype.element_ty), mask=on)


def normalised(x: Tensor, norm: float = 1.0) -> Tensor:
    """See :func:`deepmatching.network.convolutions.normalised`."""
    batch, channels, height, width = x.shape
    launch(
        _normalise, (triton.cdiv(height * width, PLACES), batch),
        x, norm, width, height * width, channels, *x.stride(),
        PLACES=PLACES, PADDED=triton.next_power_of_2(channels), num_warps=4,
    )  # fmt: skip
    return x


def joined(fine: Tensor, coarse: Tensor) -> Tensor:
    """See :func:`deepmatching.network.convolutions.joined`."""
    fine, coarse = (maps.contiguous(memory_format=channels_last) for maps in (fine, coarse))
    out = empty_like(fine)
    batch, channels, height, width = fine.shape
    launch(
        _join, (triton.cdiv(channels * height * width, NUMBERS), batch),
        fine, coarse, out, height, width, *coarse.shape[2:], CHANNELS=channels, NUMBERS=NUMBERS, num_warps=4,
    )  # fmt: skip
    return out
