"""Windows of descriptors, and the comparison of what surrounds both ends of a match."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from deepmatching.kernels.gpu.indexing import fetch, launch

WINDOWS = 32  #: windows of one program
POINTS = 16  #: reference points of one program of the comparison
CHANNELS = 64  #: channels that are multiplied at a time
WARPS = 4  #: warps of a program


@triton.jit
def _windows(
    first, second, weight, bias, out, factor, per_batch, rows, columns, step, channels,
    stride_b, stride_c, stride_y, stride_x, weight_n, weight_c, weight_y, weight_x,
    SIDE: tl.constexpr, BLOCKS: tl.constexpr, OUTPUTS: tl.constexpr, PADDED: tl.constexpr, HALF: tl.constexpr,
    WINDOWS: tl.constexpr, CHANNELS: tl.constexpr
):  # fmt: skip
    """Multiply matrices: windows × (places in the window and channels) × outputs."""
    window = tl.program_id(0) * WINDOWS + tl.arange(0, WINDOWS)
    cells = first
    if tl.program_id(1) == 1:
        cells = second
    inside = window < per_batch
    row, column = window // columns, window % columns
    source = (row // rows).to(tl.int64) * stride_b + (row % rows * step).to(tl.int64) * stride_y
    source += column * step * stride_x
    n = tl.arange(0, PADDED)
    total = tl.zeros((WINDOWS, PADDED), tl.float32)
    for k in range(SIDE * SIDE * BLOCKS):
        place, block = k // BLOCKS, k % BLOCKS
        y, x = place // SIDE, place % SIDE
        channel = block * CHANNELS + tl.arange(0, CHANNELS)
        at = source + (y * stride_y + x * stride_x)
        real = channel < channels
        a = fetch(cells + at[:, None] + (channel * stride_c)[None, :], inside[:, None] & real[None, :])
        weights = weight + (y * weight_y + x * weight_x) + (channel * weight_c)[:, None] + (n * weight_n)[None, :]
        b = fetch(weights, real[:, None] & (n < OUTPUTS)[None, :])
        if HALF:
            total = tl.dot((a * factor).to(tl.float16), b.to(tl.float16), total)
        else:
            total = tl.dot(a * factor, b, total, input_precision="ieee")
    total += fetch(bias + n, n < OUTPUTS)[None, :]
    target = (tl.program_id(1).to(tl.int64) * per_batch + window) * OUTPUTS
    mask = inside[:, None] & (n < OUTPUTS)[None, :]
    tl.store(out + target[:, None] + n[None, :], tl.maximum(total, 0.0).to(out.dtype.element_ty), mask=mask)


def windows(
    cells: tuple[Tensor, ...], weight: Tensor, bias: Tensor, step: int, factor: float, dtype: torch.dtype
) -> Tensor:
    """See :func:`deepmatching.network.operators.evidence.windows`."""
    batch, channels, h, w = cells[0].shape
    outputs, side = weight.shape[0], weight.shape[2]
    rows, columns = h // step, (w - side) // step + 1
    out = torch.empty((len(cells) * batch, rows, columns, outputs), dtype=dtype, device=weight.device)
    per_batch, block = batch * rows * columns, min(CHANNELS, max(16, triton.next_power_of_2(channels)))
    if cells[0].stride() != cells[-1].stride():
        cells = tuple(batch.contiguous() for batch in cells)
    launch(
        _windows, (triton.cdiv(per_batch, WINDOWS), len(cells)),
        cells[0], cells[-1], weight, bias.contiguous(), out, float(factor), per_batch, rows, columns, step, channels,
        *cells[0].stride(), *weight.stride(),
        SIDE=side, BLOCKS=triton.cdiv(channels, block), OUTPUTS=outputs,
        PADDED=max(16, triton.next_power_of_2(outputs)), HALF=dtype == torch.float16,
        WINDOWS=WINDOWS, CHANNELS=block, num_warps=WARPS, num_stages=4,
    )  # fmt: skip
    return out.permute(0, 3, 1, 2)


@triton.jit
def _compare(
    evidence, context0, context1, points1, out, points, rows, columns, channels, rows1, columns1, beta, alpha,
    evidence_b, evidence_c, evidence_y, evidence_x, a_b, a_c, a_y, a_x, b_b, b_c, b_y, b_x,
    EVIDENCE: tl.constexpr, GROUPS: tl.constexpr, PER_GROUP: tl.constexpr,
    PADDED: tl.constexpr, G: tl.constexpr, N: tl.constexpr, POINTS: tl.constexpr
):  # fmt: skip
    point = tl.program_id(0) * POINTS + tl.arange(0, POINTS)
    on = point < points
    i, j = (point // columns) % rows, point % columns
    pair = (point // (rows * columns)).to(tl.int64)
    target = out + point.to(tl.int64) * channels

    e = tl.arange(0, PADDED)
    mask = on[:, None] & (e < EVIDENCE)[None, :]
    source = evidence + pair * evidence_b + i * evidence_y + j * evidence_x
    value = fetch(source[:, None] + (e * evidence_c)[None, :], mask)
    tl.store(target[:, None] + e[None, :], value.to(out.dtype.element_ty), mask=mask)

    x = (fetch(points1 + 2 * point, on) - beta) / alpha
    y = (fetch(points1 + 2 * point + 1, on) - beta) / alpha
    x = tl.minimum(tl.maximum(x, 0.0), columns1 - 1.0)
    y = tl.minimum(tl.maximum(y, 0.0), rows1 - 1.0)
    left, top = x.to(tl.int32), y.to(tl.int32)
    right, bottom = tl.minimum(left + 1, columns1 - 1), tl.minimum(top + 1, rows1 - 1)
    p, q = (x - left.to(tl.float32))[:, None, None], (y - top.to(tl.float32))[:, None, None]
    g, n = tl.arange(0, G), tl.arange(0, N)
    channel = (g[:, None] * PER_GROUP + n[None, :])[None, :, :]
    mask = on[:, None, None] & ((g < GROUPS)[:, None] & (n < PER_GROUP)[None, :])[None, :, :]
    near = context1 + pair * b_b
    a = fetch((context0 + pair * a_b + i * a_y + j * a_x)[:, None, None] + channel * a_c, mask)
    b00 = fetch((near + top * b_y + left * b_x)[:, None, None] + channel * b_c, mask)
    b01 = fetch((near + top * b_y + right * b_x)[:, None, None] + channel * b_c, mask)
    b10 = fetch((near + bottom * b_y + left * b_x)[:, None, None] + channel * b_c, mask)
    b11 = fetch((near + bottom * b_y + right * b_x)[:, None, None] + channel * b_c, mask)
    upper = (1.0 - p) * b00.to(tl.float32) + p * b01.to(tl.float32)
    lower = (1.0 - p) * b10.to(tl.float32) + p * b11.to(tl.float32)
    product = tl.sum(a.to(tl.float32) * ((1.0 - q) * upper + q * lower), axis=2)
    tl.store((target + EVIDENCE)[:, None, None] + channel, a.to(out.dtype.element_ty), mask=mask)
    tl.store(
        (target + EVIDENCE + GROUPS * PER_GROUP)[:, None] + g[None, :],
        product.to(out.dtype.element_ty), mask=on[:, None] & (g < GROUPS)[None, :],
    )  # fmt: skip


def compare_contexts(
    evidence: Tensor, context0: Tensor, context1: Tensor, points1: Tensor, beta: int, alpha: int, groups: int
) -> Tensor:
    """See :func:`deepmatching.network.operators.evidence.compare_contexts`."""
    batch, size, rows, columns = evidence.shape
    per_group = context0.shape[1] // groups
    channels = size + context0.shape[1] + groups
    out = torch.empty((batch, rows, columns, channels), dtype=context0.dtype, device=context0.device)
    points = batch * rows * columns
    launch(
        _compare, (triton.cdiv(points, POINTS),),
        evidence, context0, context1, points1.contiguous(), out, points, rows, columns, channels, *context1.shape[2:],
        float(beta), float(alpha), *evidence.stride(), *context0.stride(), *context1.stride(),
        EVIDENCE=size, GROUPS=groups, PER_GROUP=per_group, PADDED=triton.next_power_of_2(size),
        G=triton.next_power_of_2(groups), N=triton.next_power_of_2(per_group), POINTS=POINTS,
    )  # fmt: skip
    return out.permute(0, 3, 1, 2)
