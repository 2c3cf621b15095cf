"""Effects of light and camera, applied to the frames of a batch."""

from __future__ import annotations

import functools
import math

import torch
import torch.nn.functional as F
from torch import Tensor

from deepmatching.data.synthesis.layers import Rendering, pixels, pointwise
from deepmatching.data.synthesis.photometry import Differences, Light, Photometry
from deepmatching.data.synthesis.scene import Scene

_TAPS = 11  # along a moving point's path
_LONGEST = 28.0  # pixels of motion blur
_RADIUS = 7  # of the Gaussian's window, in pixels
_COARSE = 4  # pixels per side of the areas whose neighbourhoods are measured
_FLAT = 0.02  # variance below which a neighbourhood is flattened
_MIN_DEVIATION = 0.03  # added to the standard deviation that local contrast is divided by


def develop(
    rendering: Rendering,
    scene: Scene[Tensor],
    photometry: Photometry[Tensor],
    differences: Differences[Tensor],
    generator: torch.Generator,
) -> Tensor:
    """Return the scenes as a camera sees them: (2 n, 3, H, W) in [0, 1], quantised to 8 bits."""
    frames = rendering.frames.flatten(0, 1)
    if len(photometry.lit):
        frames = _lit(frames, photometry)
    if len(photometry.smeared):
        frames = _smeared(frames, rendering, scene, photometry)
    if len(photometry.filtered):
        frames = _filtered(frames, photometry)
    frames = _sense(frames, rendering.visible.flatten(0, 1), differences, generator)
    frames = (photometry.mix[..., None, None] * frames[:, None]).sum(2) + photometry.offset[..., None, None]
    frames = frames.clamp(1e-3, 1) ** photometry.gamma[:, None, None, None]
    noise = torch.randn(frames.shape, generator=generator, device=frames.device)
    grain, colours = photometry.noise[..., None, None, None].unbind(1)
    frames = frames + grain * noise[:, :1] + colours * noise
    if len(photometry.compressed):
        frames = _compressed(frames, photometry)
    return frames.mul(255).round_().clamp_(0, 255).div_(255)


def _lit(frames: Tensor, light: Light[Tensor]) -> Tensor:
    """Return frame · gain · (1 − depth · shade), seen through fog."""
    fields = F.interpolate(light.fields, frames.shape[2:], mode="bicubic", align_corners=True)
    gain, outline, fog = fields.split(1, dim=1)
    sharpness, depth = light.shade[..., None, None, None].unbind(1)
    gain = gain.exp() * (1 - depth * torch.sigmoid(sharpness * outline))
    chosen = frames[light.lit] * gain
    chosen = chosen + fog.clamp(0, 0.85) * (light.fog[..., None, None] - chosen)
    return frames.index_copy(0, light.lit, chosen)


def _smeared(frames: Tensor, rendering: Rendering, scene: Scene[Tensor], photometry: Photometry[Tensor]) -> Tensor:
    """Average each pixel along the straight path of its point while the shutter is open."""
    height, width = frames.shape[2:]
    pairs = photometry.smeared
    x, y = pixels((height, width), frames.device)
    here = torch.stack(torch.broadcast_tensors(x, y), dim=-1)
    layer = rendering.visible[pairs, 1]
    # Bending is small enough to be ignored here.
    origin = pointwise(scene.inverse[layer, pairs[:, None, None]], here[..., 0], here[..., 1])
    velocity = torch.stack([rendering.flow[pairs], here - origin], dim=1)  # (b, 2, H, W, 2)
    velocity = velocity * photometry.shutter[:, None, None, None, None]
    velocity = velocity * (_LONGEST / velocity.norm(dim=-1, keepdim=True).clamp(min=_LONGEST))
    time = torch.linspace(-0.5, 0.5, _TAPS, device=frames.device)[:, None, None, None]
    path = here + time * velocity.flatten(0, 1)[:, None]  # (2 b, taps, H, W, 2)
    path = torch.stack([path[..., 0] * (2 / (width - 1)) - 1, path[..., 1] * (2 / (height - 1)) - 1], dim=-1)
    index = (2 * pairs[:, None] + torch.arange(2, device=frames.device)).flatten()
    seen = F.grid_sample(frames[index], path.flatten(1, 2), padding_mode="border", align_corners=True)
    return frames.index_copy(0, index, seen.view(len(index), 3, _TAPS, height, width).mean(2))


def _filtered(frames: Tensor, photometry: Photometry[Tensor]) -> Tensor:
    """Return frame + weight · (Gaussian ∗ frame − frame)."""
    chosen = frames[photometry.filtered]
    planes = _blurred(chosen, photometry.deviation)
    return frames.index_copy(0, photometry.filtered, torch.lerp(chosen, planes, photometry.weight[:, None, None, None]))


def _blurred(pictures: Tensor, deviation: Tensor) -> Tensor:
    """Return Gaussian ∗ picture, with a standard deviation in pixels for each of the N pictures (N, C, H, W)."""
    count, channels, height, width = pictures.shape
    step = torch.arange(-_RADIUS, _RADIUS + 1, device=pictures.device)
    kernel = torch.exp(-0.5 * (step / deviation[:, None]) ** 2)
    kernel = (kernel / kernel.sum(1, keepdim=True)).repeat_interleave(channels, dim=0)[:, None]
    planes = F.pad(pictures.reshape(1, count * channels, height, width), (_RADIUS,) * 4, mode="replicate")
    planes = F.conv2d(planes, kernel[:, :, None], groups=count * channels)
    return F.conv2d(planes, kernel[..., None], groups=count * channels).view(pictures.shape)


def _sense(frames: Tensor, visible: Tensor, differences: Differences[Tensor], generator: torch.Generator) -> Tensor:
    """Return the frames as other sensors see them at other times; `visible` (2 n, H, W) is the layer of a pixel."""
    d = differences
    if len(d.sensed):
        frames = frames.index_copy(0, d.sensed, _response(frames[d.sensed], visible[d.sensed], d))
    if len(d.lit):
        frames = _lit(frames, d)
        own = (frames[d.lit] * d.gain[..., None, None]).clamp(1e-3, 1) ** d.gamma[:, None, None, None]
        frames = frames.index_copy(0, d.lit, own)
    if len(d.styled):
        frames = frames.index_copy(0, d.styled, _styled(frames[d.styled], d.scale, d.style))
    if len(d.grainy):
        factor, summand = d.grain[..., None, None, None].unbind(1)
        chosen = frames[d.grainy]
        noise = torch.randn((2, len(chosen), 1, *chosen.shape[2:]), generator=generator, device=frames.device)
        frames = frames.index_copy(0, d.grainy, chosen * (1 + factor * noise[0]) + summand * noise[1])
    return frames


def _styled(frames: Tensor, scale: Tensor, style: Tensor) -> Tensor:
    """Return a mixture of the frame, its local contrast, its flattened areas and its edges."""
    moments = _blurred(F.avg_pool2d(torch.cat([frames, frames**2], dim=1), _COARSE, ceil_mode=True), scale)
    mean, square = F.interpolate(moments, frames.shape[2:], mode="bilinear", align_corners=False).chunk(2, dim=1)
    variance = (square - mean**2).clamp(min=0)
    detail = frames - mean
    contrast = 0.5 + 0.2 * detail / (variance.sqrt() + _MIN_DEVIATION)
    flat = mean + variance / (variance + _FLAT) * detail
    around = F.pad(frames, (1, 1, 1, 1), mode="replicate")
    across = around[:, :, 1:-1, 2:] - around[:, :, 1:-1, :-2]
    along = around[:, :, 2:, 1:-1] - around[:, :, :-2, 1:-1]
    edges = (across**2 + along**2 + 1e-6).sqrt()
    edges = 0.25 * edges / edges.mean((1, 2, 3), keepdim=True)
    weights = style[..., None, None, None].unbind(1)
    return sum((w * part for w, part in zip(weights, (frames, contrast, flat, edges), strict=True)), torch.zeros(()))


def _response(frames: Tensor, visible: Tensor, differences: Differences[Tensor]) -> Tensor:
    """Return Σ_k a_k sin(ω_k·colour + φ_k + material) for each channel, brought to the frame's exposure."""
    d = differences
    material = d.materials.gather(1, visible.flatten(1)).view(visible.shape)[:, None]
    total = torch.zeros_like(frames)
    for n in range(d.phase.shape[2]):
        angle = (d.frequency[:, :, n, :, None, None] * frames[:, None]).sum(2) + d.phase[:, :, n, None, None]
        total = total + d.amplitude[:, :, n, None, None] * (angle + material).sin()
    deviation, mean = torch.std_mean(total, dim=(2, 3), keepdim=True)
    level, spread = d.exposure[..., None, None, None].unbind(1)
    return (level + spread * (total - mean) / (deviation + 1e-3)).clamp(0, 1)


def _compressed(frames: Tensor, photometry: Photometry[Tensor]) -> Tensor:
    """Round the cosine transform of blocks of 8 × 8 pixels, as JPEG does (without its coarser grid for colours)."""
    to_luma, to_colours, transform, table = _jpeg(frames.device)
    height, width = frames.shape[2:]
    chosen = F.pad(frames[photometry.compressed], (0, -width % 8, 0, -height % 8), mode="replicate")
    blocks = (to_luma[:, :, None, None] * chosen.clamp(0, 1)[:, None]).sum(2)
    blocks[:, 0] -= 128 / 255
    blocks = blocks.unflatten(3, (-1, 8)).unflatten(2, (-1, 8)).transpose(3, 4)  # (d, 3, H / 8, W / 8, 8, 8)
    quality = photometry.quality
    factor = torch.where(quality < 50, 50 / quality, 2 - quality / 50)[:, None, None, None, None, None]
    step = (table[:, None, None] * factor).round_().clamp_(min=1) / 255
    waves = (transform @ blocks @ transform.T).div_(step).round_().mul_(step)
    blocks = (transform.T @ waves @ transform).transpose(3, 4).flatten(4, 5).flatten(2, 3)
    blocks[:, 0] += 128 / 255
    back = (to_colours[:, :, None, None] * blocks[:, None]).sum(2)
    return frames.index_copy(0, photometry.compressed, back[:, :, :height, :width])


@functools.cache
def _jpeg(device: torch.device) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return RGB to brightness and colour differences, and back; cosine transform; the standard's tables (Annex K)."""
    to_luma = torch.tensor([[0.299, 0.587, 0.114], [-0.1687, -0.3313, 0.5], [0.5, -0.4187, -0.0813]])
    order, place = torch.arange(8.0)[:, None], torch.arange(8.0)
    transform = torch.cos(math.pi * order * (2 * place + 1) / 16) / 2
    transform[0] = math.sqrt(1 / 8)
    luma = [
        [16, 11, 10, 16, 24, 40, 51, 61],
        [12, 12, 14, 19, 26, 58, 60, 55],
        [14, 13, 16, 24, 40, 57, 69, 56],
        [14, 17, 22, 29, 51, 87, 80, 62],
        [18, 22, 37, 56, 68, 109, 103, 77],
        [24, 35, 55, 64, 81, 104, 113, 92],
        [49, 64, 78, 87, 103, 121, 120, 101],
        [72, 92, 95, 98, 112, 100, 103, 99],
    ]
    chroma = torch.full((8, 8), 99.0)
    chroma[:4, :4] = torch.tensor([[17, 18, 24, 47], [18, 21, 26, 66], [24, 26, 56, 99], [47, 66, 99, 99]])
    table = torch.stack([torch.tensor(luma, dtype=torch.float32), chroma, chroma])
    return to_luma.to(device), torch.linalg.inv(to_luma).to(device), transform.to(device), table.to(device)
