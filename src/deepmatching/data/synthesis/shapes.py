"""Outlines for pieces of photographs: blobs, polygons, limbs, branches, fences and rings."""

from __future__ import annotations

import cv2
import numpy as np

_OVERSAMPLING = 2  # drawn larger and then averaged, for smooth edges


def draw_shapes(count: int, side: int, seed: int = 0) -> tuple[np.ndarray, ...]:
    """Draw `count` masks (side, side) uint8, transparent at their borders; the same for the same seed."""
    rng = np.random.default_rng(seed)
    kinds = (_blob, _blob, _polygon, _limb, _branches, _fence, _ring)
    return tuple(_finish(kinds[index % len(kinds)](rng, side * _OVERSAMPLING), side) for index in range(count))


def _finish(mask: np.ndarray, side: int) -> np.ndarray:
    mask = cv2.resize(mask, (side, side), interpolation=cv2.INTER_AREA)
    # A mipmap of the mask must be empty at its border too.
    margin = side // 18
    mask[:margin], mask[-margin:], mask[:, :margin], mask[:, -margin:] = 0, 0, 0, 0
    return mask


def _fill(outline: np.ndarray, side: int) -> np.ndarray:
    mask = np.zeros((side, side), np.uint8)
    cv2.fillPoly(mask, [np.rint(outline).astype(np.int32)], 255)
    return mask


def _blob(rng: np.random.Generator, side: int) -> np.ndarray:
    """Draw a closed curve r(θ) = Σ a_k cos(kθ + φ_k) with amplitudes that fall with k."""
    angle = np.linspace(0, 2 * np.pi, 256, endpoint=False)
    order = np.arange(1, 9)
    amplitude = rng.normal(size=8) * rng.uniform(0.1, 0.5) / order ** rng.uniform(0.6, 1.5)
    radius = 1 + (amplitude[:, None] * np.cos(order[:, None] * angle + rng.uniform(0, 6.3, (8, 1)))).sum(0)
    radius = np.clip(radius, 0.15, None)
    radius *= 0.44 * side / radius.max()
    return _fill(side / 2 + radius[:, None] * np.stack([np.cos(angle), np.sin(angle)], 1), side)


def _polygon(rng: np.random.Generator, side: int) -> np.ndarray:
    """Draw a polygon with corners at sorted angles: three to nine of them, some pulled inwards."""
    corners = rng.integers(3, 10)
    angle = (np.arange(corners) + rng.uniform(0.1, 0.9, corners)) * 2 * np.pi / corners
    radius = 0.44 * side * rng.uniform(0.4, 1, corners)
    return _fill(side / 2 + radius[:, None] * np.stack([np.cos(angle), np.sin(angle)], 1), side)


def _path(rng: np.random.Generator, side: int, turns: int, bend: float) -> np.ndarray:
    """Return points of a smooth curve from one edge of the mask to the opposite one, (64, 2)."""
    knots = np.stack([np.linspace(0.05, 0.95, turns), 0.5 + bend * rng.uniform(-1, 1, turns)], 1)
    position = np.linspace(0, 1, 64)
    curve = np.stack([np.interp(position, np.linspace(0, 1, turns), knots[:, axis]) for axis in (0, 1)], 1)
    curve[:, 1] = cv2.GaussianBlur(curve[:, 1:], (1, 15), 4)[:, 0]
    return curve * side


def _stroke(mask: np.ndarray, curve: np.ndarray, width: np.ndarray) -> None:
    for start, end, size in zip(curve[:-1], curve[1:], width, strict=False):
        ends = [tuple(int(value) for value in np.rint(point)) for point in (start, end)]
        cv2.line(mask, ends[0], ends[1], 255, max(2, round(float(size))), cv2.LINE_8)


def _limb(rng: np.random.Generator, side: int) -> np.ndarray:
    """Draw one bent bar whose width changes along it, like an arm, a pole or a lance."""
    mask = np.zeros((side, side), np.uint8)
    width = side * np.linspace(rng.uniform(0.02, 0.2), rng.uniform(0.02, 0.2), 64)
    _stroke(mask, _path(rng, side, int(rng.integers(2, 6)), rng.uniform(0, 0.35)), width)
    return mask


def _branches(rng: np.random.Generator, side: int) -> np.ndarray:
    """Draw a trunk and thinner twigs that leave it."""
    mask = np.zeros((side, side), np.uint8)
    trunk = _path(rng, side, 4, 0.2)
    thickness = side * rng.uniform(0.02, 0.08)
    _stroke(mask, trunk, np.linspace(thickness, 0.4 * thickness, 64))
    for start in rng.integers(4, 56, rng.integers(3, 9)):
        angle = rng.choice([-1, 1]) * rng.uniform(0.4, 1.3)
        steps = np.linspace(0, rng.uniform(0.15, 0.45) * side, 16)[:, None]
        twig = trunk[start] + steps * np.array([np.cos(angle), np.sin(angle)])
        twig += cv2.GaussianBlur(rng.normal(size=(16, 2)) * 0.03 * side, (1, 7), 2)
        _stroke(mask, twig, np.linspace(0.6 * thickness, 0.2 * thickness, 16))
    return mask


def _fence(rng: np.random.Generator, side: int) -> np.ndarray:
    """Draw parallel bars, some with bars across them."""
    mask = np.zeros((side, side), np.uint8)
    low, high = int(0.08 * side), int(0.92 * side)
    for vertical in (True, False):
        if not vertical and rng.uniform() < 0.5:
            break
        bars = rng.integers(2, 7)
        width = side * rng.uniform(0.015, 0.4 / bars)
        for place in (np.arange(bars) + rng.uniform(0.3, 0.7, bars)) / bars * 0.84 * side + 0.08 * side:
            start, end = int(place - width / 2), int(place + width / 2) + 2
            if vertical:
                mask[low:high, start:end] = 255
            else:
                mask[start:end, low:high] = 255
    return mask


def _ring(rng: np.random.Generator, side: int) -> np.ndarray:
    """Draw an outline with a hole, through which the background shows."""
    outer = _blob(rng, side) if rng.uniform() < 0.5 else _polygon(rng, side)
    scale, shift = rng.uniform(0.4, 0.85), rng.uniform(-0.05, 0.05, 2) * side
    move = np.array([[scale, 0, (1 - scale) * side / 2 + shift[0]], [0, scale, (1 - scale) * side / 2 + shift[1]]])
    return cv2.subtract(outer, cv2.warpAffine(outer, move, (side, side)))
