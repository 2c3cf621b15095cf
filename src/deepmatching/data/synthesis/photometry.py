"""Effects of light and camera, and what tells two photographs of a place apart, drawn for a batch on the CPU."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Generic

import numpy as np

from deepmatching.data.synthesis.motions import PLANES, Numbers
from deepmatching.data.synthesis.settings import SynthesisSettings

_LUMA = np.array([0.299, 0.587, 0.114])
CONTROL = (5, 7)  # rows and columns of the control points of smooth fields


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
    light = _draw_light(rng, count, settings)
    smeared = np.flatnonzero(rng.uniform(size=count) < settings.motion_blur)
    filters = _draw_filters(rng, count, settings)
    is_grey = rng.uniform(size=count) < settings.grey
    colours = _draw_colours(rng, count, is_grey, settings)
    noise = np.where(rng.uniform(size=count) < settings.noise, rng.uniform(size=count) ** 2, 0) * settings.max_noise
    coloured = np.where(is_grey, 0, rng.uniform(size=count))
    # Mostly, both frames come from the same camera.
    worst = rng.uniform(10, 60, count)
    is_compressed = one_or_both(rng, rng.uniform(size=count) < settings.compression, 0.8)
    compressed = np.flatnonzero(is_compressed)
    shutter = rng.uniform(0.2, 0.9, len(smeared))
    deviations = np.repeat(noise[:, None] * np.stack([1 - 0.5 * coloured, coloured], 1), 2, axis=0)
    quality = np.repeat(worst, 2)[compressed] + rng.uniform(0, 20, len(compressed))
    return Photometry(*light, smeared, shutter, *filters, *colours, deviations, compressed, quality)


def one_or_both(rng: np.random.Generator, chosen: np.ndarray, both: float) -> np.ndarray:
    """Choose both frames of a chosen pair with probability `both`, else one at random: (n,) bool to (2 n,)."""
    draw = rng.uniform(size=len(chosen))
    first, second = draw < (1 + both) / 2, (draw < both) | (draw >= (1 + both) / 2)
    return (chosen[:, None] & np.stack([first, second], 1)).ravel()


def _paired(common: np.ndarray, own: np.ndarray) -> np.ndarray:
    """Add the part common to both frames (n, …) and the part of each frame (n, 2, …): (2 n, …)."""
    total = common[:, None] + own
    return total.reshape(-1, *total.shape[2:])


def _draw_light(
    rng: np.random.Generator, count: int, settings: SynthesisSettings
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Draw smooth fields that objects move through; they change a little between the frames."""
    has = rng.uniform(size=(3, count)) < np.array([[settings.lighting], [settings.shadow], [settings.fog]])
    shape = (count, *CONTROL)
    own = (count, 2, *CONTROL)
    y, x = np.meshgrid(np.linspace(-1, 1, CONTROL[0]), np.linspace(-1, 1, CONTROL[1]), indexing="ij")
    slope = rng.normal(0, 0.25, (2, count, 1, 1))
    vignette = rng.uniform(0, 0.5, (count, 1, 1)) * (rng.uniform(size=(count, 1, 1)) < 0.5)
    smooth = slope[0] * x + slope[1] * y - vignette * (x**2 + y**2) / 2 + 0.15 * rng.normal(size=shape)
    gain = _paired(smooth, 0.08 * rng.normal(size=own)) * np.repeat(has[0], 2)[:, None, None]
    outline = _paired(rng.normal(size=shape), 0.25 * rng.normal(size=own))
    density = rng.uniform(0.1, 0.7, (count, 1, 1)) * (1 + 0.4 * rng.normal(size=shape) - 0.3 * y)
    veil = _paired(density, 0.06 * rng.normal(size=own)) * np.repeat(has[2], 2)[:, None, None]
    # A shade removes light; a negative one is a patch of sunlight.
    depth = rng.uniform(0.1, 0.6, count) * np.where(rng.uniform(size=count) < 0.7, 1, -0.7) * has[1]
    shade = np.stack([np.exp(rng.uniform(np.log(2), np.log(40), count)), depth], 1)
    colour = rng.uniform(0.3, 0.9, (count, 1)) + rng.normal(0, 0.05, (count, 3))
    lit = np.flatnonzero(np.repeat(has.any(0), 2))
    fields = np.stack([gain, outline, veil], axis=1)
    return lit, fields[lit], np.repeat(shade, 2, axis=0)[lit], np.repeat(colour, 2, axis=0)[lit]


def _draw_filters(
    rng: np.random.Generator, count: int, settings: SynthesisSettings
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    draw = rng.uniform(size=count)
    is_blurred, is_sharpened = draw < settings.blur, (draw >= settings.blur) & (draw < settings.blur + settings.sharpen)
    deviation = np.where(is_blurred, rng.uniform(0.15, 1, count) * settings.max_blur, rng.uniform(0.6, 1.5, count))
    weight = np.where(is_blurred, 1.0, -rng.uniform(0.2, 1.2, count))
    chosen = np.flatnonzero(one_or_both(rng, is_blurred | is_sharpened, 0.75))
    deviation = np.repeat(deviation, 2)[chosen] * rng.uniform(0.8, 1.25, len(chosen))
    return chosen, deviation, np.repeat(weight, 2)[chosen]


def _draw_colours(
    rng: np.random.Generator, count: int, is_grey: np.ndarray, settings: SynthesisSettings
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
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

    def choose_frames(share: float, both: float) -> np.ndarray:
        return np.flatnonzero(one_or_both(rng, is_photo & (rng.uniform(size=count) < share), both))

    wide = np.flatnonzero(is_photo & (rng.uniform(size=count) < settings.wide))
    lit = choose_frames(settings.relit, _BOTH_LIT)
    styled, sensed, grainy = (choose_frames(x, _BOTH) for x in (settings.styled, settings.sensor, settings.grain))
    fields, shade, fog, gain, gamma = _draw_other_light(rng, len(lit))
    rest = rng.uniform(0, 0.6, (len(styled), 1)) ** 2  # of the frame itself
    style = np.eye(_STYLES)[rng.integers(0, _STYLES, len(styled))] * (1 - rest)
    style, scale = np.concatenate([rest, style], axis=1), rng.uniform(0.7, 3.5, len(styled))
    response = _draw_response(rng, len(sensed), settings.max_layers + PLANES + 1)
    grain = np.abs(rng.normal(0, [0.15, 0.03], (len(grainy), 2)))
    return Differences(
        lit, fields, shade, fog, wide, gain, gamma, styled, scale, style, grainy, grain, sensed, *response
    )


def _draw_other_light(rng: np.random.Generator, count: int) -> tuple[np.ndarray, ...]:
    """Draw sun from elsewhere, shadows, haze, dusk and night, and another colour temperature."""
    shape = (count, *CONTROL)
    y, x = np.meshgrid(np.linspace(-1, 1, CONTROL[0]), np.linspace(-1, 1, CONTROL[1]), indexing="ij")
    slope = rng.normal(0, 0.3, (2, count, 1, 1))
    gain = slope[0] * x + slope[1] * y + rng.normal(0, 0.2, shape)
    is_hazy = rng.uniform(size=(count, 1, 1)) < 0.3
    haze = is_hazy * rng.uniform(0.1, 0.8, (count, 1, 1)) * (1 + 0.3 * rng.normal(size=shape) - 0.3 * y)
    fields = np.stack([gain, rng.normal(size=shape), haze], axis=1)
    depth = rng.uniform(0.2, 0.75, count) * rng.choice([0.0, 1.0, -1.0], count, p=[0.5, 0.4, 0.1])
    shade = np.stack([np.exp(rng.uniform(np.log(2), np.log(40), count)), depth], 1)
    colour = rng.uniform(0.3, 0.9, (count, 1)) + rng.normal(0, 0.05, (count, 3))
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
