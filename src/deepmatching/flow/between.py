"""The picture between two frames, from the flow both ways and from what each frame hides of the other."""

from itertools import product

import cv2
import numpy as np

from deepmatching.drawing.pictures import Image, to_uint8_rgb
from deepmatching.drawing.warping import sampled
from deepmatching.errors import DeepMatchingError, check_number
from deepmatching.flow.result import FlowResult
from deepmatching.io.masks import nearest_known

_DIFFERENT = 20.0  #: colours that differ by this much, in 0 … 255, make a motion less likely by a factor of e
_IN_FRONT = 0.9  #: how far a pixel that is hidden in the other frame gives way to others
_LEAST = 1e-3  #: the least weight of a frame, so that a pixel that neither shows has a colour


def picture_between(image0: Image, image1: Image, there: FlowResult, back: FlowResult, t: float = 0.5) -> np.ndarray:
    """Return the picture at time t, from 0 to 1, between two frames of one size: uint8 RGB (H, W, 3).

    Every pixel of either frame moves along its flow until then. Of those that meet at a pixel, the one counts whose
    colours in both frames agree best, as those of what is in front do. A pixel that none reaches takes the motion of
    the nearest that has one. Its colour is the mean of both frames, weighted by time and by how likely it is visible.
    """
    check_number("t", t, minimum=0, maximum=1)
    frames = [to_uint8_rgb(image).astype(np.float32) for image in (image0, image1)]
    sizes = {array.shape[:2] for array in (*frames, there.flow, back.flow)}
    if len(sizes) > 1:
        raise DeepMatchingError(f"Frames and flows must be of one size, but these are {sorted(sizes)}: resize them.")
    moved, visible = _at_time(frames, (there, back), t)
    weights = [(1 - t) * (visible[..., :1] + _LEAST), t * (visible[..., 1:] + _LEAST)]
    colours = [sampled(frame, part * moved) for frame, part in zip(frames, (-t, 1 - t), strict=True)]
    mean = sum(weight * colour for weight, colour in zip(weights, colours, strict=True)) / (weights[0] + weights[1])
    return np.rint(mean).astype(np.uint8)


def _at_time(frames: list[np.ndarray], flows: tuple[FlowResult, FlowResult], t: float) -> tuple[np.ndarray, np.ndarray]:
    """Return the motion from frame to frame of what is at each pixel at time t, and how visible it is in each.

    Both are (H, W, 2) float32.
    """
    size = frames[0].shape[:2]
    best, moved, visible = np.zeros(size), np.zeros((*size, 2), np.float32), np.zeros((*size, 2), np.float32)
    for n, (result, part) in enumerate(zip(flows, (t, 1 - t), strict=True)):
        hidden = np.zeros(size, np.float32) if result.occlusion is None else result.occlusion
        different = np.abs(sampled(frames[1 - n], result.flow) - frames[n]).mean(axis=2)
        likely = np.exp(-different / _DIFFERENT) * (1 - _IN_FRONT * hidden) + 1e-9
        motion = result.flow if n == 0 else -result.flow
        seen = np.stack([np.ones_like(hidden), 1 - hidden] if n == 0 else [1 - hidden, np.ones_like(hidden)], axis=2)
        ends = np.indices(size)[::-1].transpose(1, 2, 0) + part * result.flow
        corner = np.floor(ends)
        for step in product((0, 1), (0, 1)):
            near = corner + step
            weight = likely * np.prod(1 - np.abs(ends - near), axis=2)
            source, target = _winners(near, weight)
            wins = weight.flat[source] > best.flat[target]
            source, target = source[wins], target[wins]
            best.flat[target] = weight.flat[source]
            moved.reshape(-1, 2)[target] = motion.reshape(-1, 2)[source]
            visible.reshape(-1, 2)[target] = seen.reshape(-1, 2)[source]
    nearest = nearest_known(best > 0, cv2.DIST_MASK_3)
    return moved.reshape(-1, 2)[nearest], cv2.GaussianBlur(visible.reshape(-1, 2)[nearest], (0, 0), 1)


def _winners(targets: np.ndarray, weights: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the pixels that arrive with the largest weight of all with their target (H, W, 2), and these targets."""
    rows, columns = weights.shape
    arrives = ((targets >= 0) & (targets < (columns, rows))).all(axis=2) & (weights > 0)
    source = np.flatnonzero(arrives)
    source = source[np.argsort(weights.flat[source], kind="stable")]
    best = np.full(rows * columns, -1)
    x, y = targets.reshape(-1, 2)[source].astype(np.int64).T
    best[y * columns + x] = source  # the last one stays
    target = np.flatnonzero(best >= 0)
    return best[target], target
