"""Effects of light and camera, and what tells two photographs of a place apart: drawn on the CPU, applied to frames."""

import functools
import math
from dataclasses import dataclass
from typing import Generic

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from deepmatching.data.synthesis.layers import Rendering, pixels, pointwise
from deepmatching.data.synthesis.motions import PLANES, Numbers
from deepmatching.data.synthesis.scene import Scene
from deepmatching.data.synthesis.settings import SynthesisSettings

_LUMA = np.array([0.299, 0.587, 0.114])
CONTROL = (5, 7)  # rows and columns of the control points of smooth fields
_Three = tuple[np.ndarray, np.ndarray, np.ndarray]


@dataclass
class Light(Generic[Numbers]):
    """Light on some of the 2 n frames of n pairs, pair by pair. An empty index means that no frame has an effect."""

    lit: Numbers  #: (a,) frames with changed light
    fields: Numbers  #: (a, 3, 5, 7) control points of smooth fields: log of the gain, outline of a shade, fog
    shade: Numbers  #: (a, 2) sharpness of the shade's outline, and the fraction of light that it removes
    fog: Numbers  #: (a, 3) colour


@dataclass
class Photometry(Light[Numbers]):
    """Effects of light and camera."""

    smeared: Numbers  #: (b,) pairs with motion blur
    shutter: Numbers  #: (b,) exposure time, in frames
    filtered: Numbers  #: (c,) frames that are blurred or sharpened
    deviation: Numbers  #: (c,) of the Gaussian, in pixels
    weight: Numbers  #: (c,) 1: blurred; negative: sharpened
    mix: Numbers  #: (2 n, 3, 3) from colours to colours
    offset: Numbers  #: (2 n, 3)
    gamma: Numbers  #: (2 n,)
    noise: Numbers  #: (2 n, 2) standard deviations of the brightness and of the colours
    compressed: Numbers  #: (d,) frames with JPEG compression
    quality: Numbers  #: (d,) from 1 to 100


def draw_photometry(rng: np.random.Generator, count: int, settings: SynthesisSettings) -> Photometry[np.ndarray]:
    """Draw the effects on `count` pairs."""
    light = _draw_light(rng, count, settings)
    smeared = np.flatnonzero(rng.uniform(size=count) < settings.motion_blur)
    filters = _draw_filters(rng, count, settings)
    is_grey = rng.uniform(size=count) < settings.grey
    colours = _draw_colours(rng, count, is_grey, settings)
    noise = np.where(rng.uniform(size=count) < settings.noise, rng.uniform(size=count) ** 2, 0) * settings.max_noise
    coloured = np.where(is_grey, 0, rng.uniform(size=count))
    # Mostly, both frames come from the same camera.
    worst = rng.uniform(10, 60, count)
    compressed = _choose_frames(rng, rng.uniform(size=count) < settings.compression, 0.8)
    shutter = rng.uniform(0.2, 0.9, len(smeared))
    deviations = np.repeat(noise[:, None] * np.stack([1 - 0.5 * coloured, coloured], 1), 2, axis=0)
    quality = worst[compressed // 2] + rng.uniform(0, 20, len(compressed))
    return Photometry(*light, smeared, shutter, *filters, *colours, deviations, compressed, quality)


def _choose_frames(rng: np.random.Generator, chosen: np.ndarray, both: float) -> np.ndarray:
    """Choose both frames of a chosen pair with probability `both`, else one at random: (n,) bool to indices."""
    draw = rng.uniform(size=len(chosen))
    first, second = draw < (1 + both) / 2, (draw < both) | (draw >= (1 + both) / 2)
    return np.flatnonzero(chosen[:, None] & np.stack([first, second], 1))


def _paired(common: np.ndarray, own: np.ndarray) -> np.ndarray:
    """Add the part common to both frames (n, …) and the part of each frame (n, 2, …): (2 n, …)."""
    total = common[:, None] + own
    return total.reshape(-1, *total.shape[2:])


def _draw_light(rng: np.random.Generator, count: int, settings: SynthesisSettings) -> tuple[*_Three, np.ndarray]:
    """Draw smooth fields that objects move through; they change a little between the frames."""
    has = rng.uniform(size=(3, count)) < np.array([[settings.lighting], [settings.shadow], [settings.fog]])
    shape, own = (count, *CONTROL), (count, 2, *CONTROL)
    y, x = np.meshgrid(*(np.linspace(-1, 1, points) for points in CONTROL), indexing="ij")
    slope = rng.normal(0, 0.25, (2, count, 1, 1))
    vignette = rng.uniform(0, 0.5, (count, 1, 1)) * (rng.uniform(size=(count, 1, 1)) < 0.5)
    smooth = slope[0] * x + slope[1] * y - vignette * (x**2 + y**2) / 2 + 0.15 * rng.normal(size=shape)
    gain = _paired(smooth, 0.08 * rng.normal(size=own)) * np.repeat(has[0], 2)[:, None, None]
    outline = _paired(rng.normal(size=shape), 0.25 * rng.normal(size=own))
    density = rng.uniform(0.1, 0.7, (count, 1, 1)) * (1 + 0.4 * rng.normal(size=shape) - 0.3 * y)
    veil = _paired(density, 0.06 * rng.normal(size=own)) * np.repeat(has[2], 2)[:, None, None]
    # A shade removes light; a negative one is a patch of sunlight.
    depth = rng.uniform(0.1, 0.6, count) * np.where(rng.uniform(size=count) < 0.7, 1, -0.7) * has[1]
    shade, colour = _draw_shade(rng, depth)
    lit = np.flatnonzero(np.repeat(has.any(0), 2))
    fields = np.stack([gain, outline, veil], axis=1)
    return lit, fields[lit], shade[lit // 2], colour[lit // 2]


def _draw_shade(rng: np.random.Generator, depth: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Draw the sharpness of shades of this depth, and the colour of the fog."""
    shade = np.stack([np.exp(rng.uniform(np.log(2), np.log(40), len(depth))), depth], 1)
    return shade, rng.uniform(0.3, 0.9, (len(depth), 1)) + rng.normal(0, 0.05, (len(depth), 3))


def _draw_filters(rng: np.random.Generator, count: int, settings: SynthesisSettings) -> _Three:
    draw = rng.uniform(size=count)
    is_blurred, is_sharpened = draw < settings.blur, (draw >= settings.blur) & (draw < settings.blur + settings.sharpen)
    deviation = np.where(is_blurred, rng.uniform(0.15, 1, count) * settings.max_blur, rng.uniform(0.6, 1.5, count))
    weight = np.where(is_blurred, 1.0, -rng.uniform(0.2, 1.2, count))
    chosen = _choose_frames(rng, is_blurred | is_sharpened, 0.75)
    return chosen, deviation[chosen // 2] * rng.uniform(0.8, 1.25, len(chosen)), weight[chosen // 2]


def _draw_colours(rng: np.random.Generator, count: int, is_grey: np.ndarray, settings: SynthesisSettings) -> _Three:
    """Draw colour ↦ (mix · colour + offset)^gamma: white balance, saturation, contrast, brightness."""
    common = (rng.uniform(size=count) < settings.colour).astype(float)
    # One change of light in five is a strong one.
    between = (rng.uniform(size=count) < settings.change) * rng.choice([1, 3], count, p=[0.8, 0.2])

    def vary(strength: float, change: float, channels: int = 1) -> np.ndarray:
        shared = strength * common[:, None] * rng.normal(size=(count, channels))
        return _paired(shared, change * between[:, None, None] * rng.normal(size=(count, 2, channels)))

    brightness, contrast, gamma = vary(0.05, 0.025), np.exp(vary(0.15, 0.06)), np.exp(vary(0.2, 0.07))
    saturation, balance = np.exp(vary(0.35, 0.08)), np.exp(vary(0.07, 0.025, 3))
    saturation = np.where(np.repeat(is_grey, 2)[:, None], 0, saturation)[..., None]
    mix = saturation * np.eye(3) + (1 - saturation) * _LUMA  # every row of the second part is the brightness
    mix = contrast[..., None] * mix * balance[:, None, :]
    return mix, np.repeat(0.45 * (1 - contrast) + brightness, 3, axis=1), gamma[:, 0]


_SINES = 3  # in the response of a sensor
_STYLES = 3  # local contrast, flat areas, edges
_BOTH_LIT = 0.7  # fraction of the relit pairs with a light of its own in both frames
_BOTH = 0.25  # the same of each other effect
_ONE_CHANNEL = 0.6  # fraction of the unusual sensors that have a single channel
_NIGHT = 0.2  # fraction of the frames in a light of their own that are taken at night


@dataclass
class Differences(Light[Numbers]):
    """Effects on photographs; light has (a,) frames as in `Photometry`, which are not lit alike."""

    wide: Numbers  #: (b,) pairs with a wide baseline
    gain: Numbers  #: (a, 3) of the colours
    gamma: Numbers  #: (a,)
    styled: Numbers  #: (c,) frames that are filtered beyond recognition
    scale: Numbers  #: (c,) standard deviation of the neighbourhood, in units of 4 pixels
    style: Numbers  #: (c, 4) weights of the frame and of the styles
    grainy: Numbers  #: (e,) frames with strong noise
    grain: Numbers  #: (e, 2) standard deviations of a factor and of a summand
    sensed: Numbers  #: (d,) frames from an unusual sensor
    frequency: Numbers  #: (d, 3, K, 3) from colours to the sines of each channel's response
    phase: Numbers  #: (d, 3, K)
    amplitude: Numbers  #: (d, 3, K)
    materials: Numbers  #: (d, layers) added to the phase
    exposure: Numbers  #: (d, 2) mean and standard deviation of the frame


def draw_differences(rng: np.random.Generator, count: int, settings: SynthesisSettings) -> Differences[np.ndarray]:
    """Draw the effects on `count` pairs; there are none while `photographs` is 0."""
    is_photo = rng.uniform(size=count) < settings.photographs
    wide = np.flatnonzero(is_photo & (rng.uniform(size=count) < settings.wide))
    lit, styled, sensed, grainy = (
        _choose_frames(rng, is_photo & (rng.uniform(size=count) < getattr(settings, name)), both)
        for name, both in {"relit": _BOTH_LIT, "styled": _BOTH, "sensor": _BOTH, "grain": _BOTH}.items()
    )
    fields, shade, fog, gain, gamma = _draw_other_light(rng, len(lit))
    rest = rng.uniform(0, 0.6, (len(styled), 1)) ** 2  # of the frame itself
    style = np.eye(_STYLES)[rng.integers(0, _STYLES, len(styled))] * (1 - rest)
    style, scale = np.concatenate([rest, style], axis=1), rng.uniform(0.7, 3.5, len(styled))
    sines = _draw_response(rng, len(sensed), settings.max_layers + PLANES + 1)
    grain = np.abs(rng.normal(0, [0.15, 0.03], (len(grainy), 2)))
    return Differences(lit, fields, shade, fog, wide, gain, gamma, styled, scale, style, grainy, grain, sensed, *sines)


def _draw_other_light(rng: np.random.Generator, count: int) -> tuple[np.ndarray, ...]:
    """Draw sun from elsewhere, shadows, haze, dusk and night, and another colour temperature."""
    shape = (count, *CONTROL)
    y, x = np.meshgrid(*(np.linspace(-1, 1, points) for points in CONTROL), indexing="ij")
    slope = rng.normal(0, 0.3, (2, count, 1, 1))
    gain = slope[0] * x + slope[1] * y + rng.normal(0, 0.2, shape)
    is_hazy = rng.uniform(size=(count, 1, 1)) < 0.3
    haze = is_hazy * rng.uniform(0.1, 0.8, (count, 1, 1)) * (1 + 0.3 * rng.normal(size=shape) - 0.3 * y)
    fields = np.stack([gain, rng.normal(size=shape), haze], axis=1)
    depth = rng.uniform(0.2, 0.75, count) * rng.choice([0.0, 1.0, -1.0], count, p=[0.5, 0.4, 0.1])
    shade, colour = _draw_shade(rng, depth)
    warmth = rng.normal(0, 0.2, (count, 1)) * np.array([1, 0, -1]) + rng.normal(0, 0.07, (count, 3))
    brightness = rng.normal(-0.1, 0.3, (count, 1)) - 1.2 * (rng.uniform(size=(count, 1)) < _NIGHT)
    return fields, shade, colour, np.exp(brightness + warmth), np.exp(rng.normal(0, 0.35, count))


def _draw_response(rng: np.random.Generator, count: int, layers: int) -> tuple[np.ndarray, ...]:
    """Draw sums of sines of the colour: slow ones are nearly monotone, fast ones tell materials apart otherwise."""
    shape = (count, 3, _SINES)
    speed = np.exp(rng.uniform(np.log(1.5), np.log(7), (count, 1, _SINES, 1)))
    direction = rng.normal(size=(*shape, 3)) + 1.3 * rng.choice([-1, 1], (*shape, 1))
    frequency = speed * direction / np.linalg.norm(direction, axis=-1, keepdims=True)
    phase = rng.uniform(0, 2 * np.pi, shape)
    amplitude = rng.uniform(0.2, 1, shape) / speed[..., 0] ** 0.7
    is_grey = rng.uniform(size=count) < _ONE_CHANNEL
    for values in (frequency, phase, amplitude):
        values[is_grey] = values[is_grey, :1]
    materials = rng.normal(size=(count, layers)) * rng.choice([0.0, 1.0], (count, 1))
    exposure = np.stack([rng.uniform(0.3, 0.7, count), rng.uniform(0.1, 0.28, count)], 1)
    return frequency, phase, amplitude, materials, exposure


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
