"""Effects of light and camera in a batch, drawn on the CPU."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Generic

import numpy as np

from deepmatching.data.synthesis.settings import SynthesisSettings
from deepmatching.data.synthesis.transfer import Numbers

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
    """(n,) bool to (2 n,): both frames of a chosen pair with probability `both`, else one of them at random."""
    draw = rng.uniform(size=len(chosen))
    first, second = draw < (1 + both) / 2, (draw < both) | (draw >= (1 + both) / 2)
    return (chosen[:, None] & np.stack([first, second], 1)).ravel()


def _paired(common: np.ndarray, own: np.ndarray) -> np.ndarray:
    """The part common to both frames (n, …) plus the part of each frame (n, 2, …): (2 n, …)."""
    total = common[:, None] + own
    return total.reshape(-1, *total.shape[2:])


def _draw_light(
    rng: np.random.Generator, count: int, settings: SynthesisSettings
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Smooth fields that objects move through; they change a little between the frames."""
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
    """colour ↦ (mix · colour + offset)^gamma: white balance, saturation, contrast, brightness."""
    common = (rng.uniform(size=count) < settings.colour).astype(float)
    # One change of light in five is a strong one.
    between = (rng.uniform(size=count) < settings.change) * rng.choice([1, 3], count, p=[0.8, 0.2])

    def vary(strength: float, change: float, channels: int = 1) -> np.ndarray:
        """(2 n, channels)"""
        shared = strength * common[:, None] * rng.normal(size=(count, channels))
        return _paired(shared, change * between[:, None, None] * rng.normal(size=(count, 2, channels)))

    brightness, contrast, gamma = vary(0.05, 0.025), np.exp(vary(0.15, 0.06)), np.exp(vary(0.2, 0.07))
    saturation, balance = np.exp(vary(0.35, 0.08)), np.exp(vary(0.07, 0.025, 3))
    saturation = np.where(np.repeat(is_grey, 2)[:, None], 0, saturation)[..., None]
    mix = saturation * np.eye(3) + (1 - saturation) * _LUMA  # every row of the second part is the brightness
    mix = contrast[..., None] * mix * balance[:, None, :]
    return mix, np.repeat(0.45 * (1 - contrast) + brightness, 3, axis=1), gamma[:, 0]
