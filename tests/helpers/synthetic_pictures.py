"""Pictures for the synthetic generator, drawn instead of photographed."""

import cv2
import numpy as np


def draw_photo(seed: int, rows: int = 240, columns: int = 300) -> np.ndarray:
    """Smooth coloured noise, uint8 (rows, columns, 3)."""
    noise = np.random.default_rng(seed).normal(size=(rows, columns, 3))
    smooth = sum(cv2.GaussianBlur(noise, (0, 0), deviation) * deviation for deviation in (2.5, 6, 15))
    return np.clip(128 + 90 * smooth, 0, 255).astype(np.uint8)


def moved_noise() -> tuple[np.ndarray, np.ndarray]:
    """Draw two uint8 RGB pictures of 64×96: smooth noise, and the same moved by (+6, −4) pixels."""
    generator = np.random.default_rng(0)
    coarse = generator.uniform(0, 255, (40, 56, 3))
    picture = np.kron(coarse, np.ones((3, 3, 1)))
    for axis in (0, 1):
        picture = (picture + np.roll(picture, 1, axis) + np.roll(picture, -1, axis)) / 3
    picture = picture.astype(np.uint8)
    return picture[20:84, 20:116].copy(), picture[24:88, 14:110].copy()


def draw_small_object() -> tuple[np.ndarray, np.ndarray]:
    """Draw two pictures of 132×194: a moving background, and a small object that matching at all levels misses."""
    picture, moved = draw_photo(0, 136, 200), draw_photo(1, 40, 40)
    first, second = picture[:-4, :-6].copy(), picture[4:, 6:].copy()
    first[40:80, 40:80] = second[40:80, 64:104] = moved
    return first, second


def draw_cutout(seed: int, rows: int = 150, columns: int = 110) -> np.ndarray:
    """Draw an ellipse of such noise with a soft edge, uint8 (rows, columns, 4)."""
    y, x = np.mgrid[-1 : 1 : rows * 1j, -1 : 1 : columns * 1j]
    alpha = np.clip((0.95 - np.hypot(x, y)) * 40, 0, 1)
    return np.dstack([draw_photo(seed, rows, columns), np.rint(255 * alpha).astype(np.uint8)])
