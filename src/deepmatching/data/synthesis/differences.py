"""What tells two photographs of a place apart, drawn on the CPU: viewpoint, time of day, sensor."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from deepmatching.data.synthesis.camera import PLANES
from deepmatching.data.synthesis.photometry import CONTROL, Light, one_or_both
from deepmatching.data.synthesis.settings import SynthesisSettings
from deepmatching.data.synthesis.transfer import Numbers

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
    fields, shade, fog, gain, gamma = _draw_light(rng, len(lit))
    rest = rng.uniform(0, 0.6, (len(styled), 1)) ** 2  # of the frame itself
    style = np.eye(_STYLES)[rng.integers(0, _STYLES, len(styled))] * (1 - rest)
    style, scale = np.concatenate([rest, style], axis=1), rng.uniform(0.7, 3.5, len(styled))
    response = _draw_response(rng, len(sensed), settings.max_layers + PLANES + 1)
    grain = np.abs(rng.normal(0, [0.15, 0.03], (len(grainy), 2)))
    return Differences(
        lit, fields, shade, fog, wide, gain, gamma, styled, scale, style, grainy, grain, sensed, *response
    )


def _draw_light(rng: np.random.Generator, count: int) -> tuple[np.ndarray, ...]:
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
