"""Masks: which pixels of an image may be matched. Inside the package, a mask is the last channel of its image."""

from __future__ import annotations

import os
import re
from typing import TypeAlias

import cv2
import numpy as np
import torch
from torch import Tensor

from deepmatching.errors import DeepMatchingError, short_repr
from deepmatching.io.arrays import unmasked
from deepmatching.io.image_files import alpha_of_pil, read_alpha
from deepmatching.io.images import (
    WHITE,
    ImageLike,
    has_mask,
    is_loaded,
    mark_loaded,
    planar_from_pil,
    read_pixels,
    size_of,
)

#: Pixels that are True or not 0 may be matched; without a mask, all.
MaskLike: TypeAlias = "ImageLike | None"

_ALPHA = "_deepmatching_alpha"  #: the attribute of a loaded image that is its mask by alpha
_GREY = 0.5  #: of an image without any usable pixel
_FRACTION = 4  #: bits of a corner's position between pixels
_CORNER = r"(-?[0-9]{1,6}(?:\.[0-9]{1,6})?),(-?[0-9]{1,6}(?:\.[0-9]{1,6})?)"
_POLYGON = re.compile(rf"(?:not\s+)?{_CORNER}(?:\s+{_CORNER}){{2,}}")
#: A text that is meant to be a polygon, and no name of a file.
_CORNERS = re.compile(r"(?:not\s+)?[-0-9.,;\s]*,[-0-9.,;\s]*")


def load_mask(mask: ImageLike, size: tuple[int, int], name: str = "mask") -> np.ndarray:
    """Return which pixels of an image of this size (rows, columns) may be matched, (H,W) bool.

    A mask is a picture's path, a PIL image, or an array or tensor (H,W), (1,H,W) or (H,W,1) of any type. A pixel of a
    picture with colours may be matched unless it is black.
    """
    if isinstance(mask, str | os.PathLike):
        planar, name = read_pixels(mask, name).numpy(), f"{name} ('{os.fspath(mask)}')"
    elif isinstance(mask, np.ndarray | Tensor | list | tuple):
        planar = _planar(mask, name)
    else:
        planar = planar_from_pil(mask, name).numpy()
    usable: np.ndarray = (planar != 0).any(axis=0)
    if usable.shape != tuple(size):
        (rows, columns), (own_rows, own_columns) = size, usable.shape
        sizes = f"{own_columns}x{own_rows} pixels, but its image has {columns}x{rows}"
        raise DeepMatchingError(f"The {name} has {sizes}: give a mask of the image's size.")
    return usable


def _planar(mask: np.ndarray | Tensor | list[object] | tuple[object, ...], name: str) -> np.ndarray:
    """Turn an array or a tensor of one channel into (1,H,W)."""
    array = unmasked(mask, name) if isinstance(mask, np.ndarray) else mask
    array = np.asarray(array.detach().cpu() if isinstance(array, Tensor) else array)
    sides = [side for side in array.shape if side != 1] if array.ndim > 2 else array.shape
    if array.ndim > 2 and len(sides) < 2:  # an image that is one pixel high or wide
        sides = array.shape[-2:]
    if len(sides) != 2 or array.dtype.kind not in "buif":
        found = short_repr(mask) if array.dtype.kind not in "buif" else f"of shape {array.shape}"
        raise DeepMatchingError(f"The {name} must be numbers (H,W), not 0 where pixels may be matched, not {found}.")
    if np.isnan(array).any():
        raise DeepMatchingError(f"The {name} contains NaN: give 0 where pixels must not be matched, and 1 elsewhere.")
    return array.reshape(1, *sides)


def draw_polygon(text: str, size: tuple[int, int], name: str = "mask") -> np.ndarray | None:
    """Return the inside of a polygon ``x,y x,y x,y …``, or after ``not`` the outside, (H,W) bool; None for other text.

    Corners are measured at pixel centres, and belong to the inside.
    """
    if not _POLYGON.fullmatch(text.strip()):
        if _CORNERS.fullmatch(text.strip()):
            raise DeepMatchingError(f"The {name} '{text}' does not name three corners or more: write 'x,y x,y x,y'.")
        return None
    scaled = np.rint(np.array(re.findall(_CORNER, text), np.float64) * 2**_FRACTION).astype(np.int32)
    inside = cv2.fillPoly(np.zeros(size, np.uint8), [scaled], 1, shift=_FRACTION) > 0
    return ~inside if text.lstrip().startswith("not") else inside


def alpha_mask(image: ImageLike, name: str = "image", data: bytes | None = None) -> np.ndarray | None:
    """Return where the alpha of an image is at least one half, (H,W) bool; None if it is so everywhere, or has none.

    With ``data``, the content of the file, it is not read.
    """
    alpha: np.ndarray | None = None
    if isinstance(image, str | os.PathLike):
        alpha = read_alpha(image, name, data)
    elif isinstance(image, Tensor):
        planar = image[0] if image.ndim == 4 else image
        if planar.ndim == 3 and len(planar) == 4 and not is_loaded(image):
            alpha = (planar[3].float() if planar.is_floating_point() else planar[3]).detach().cpu().numpy()
    elif isinstance(image, np.ndarray):
        alpha = np.asarray(image[..., 3]) if image.ndim == 3 and image.shape[2] == 4 else None
    else:
        alpha = alpha_of_pil(image)
    usable = None if alpha is None else alpha >= WHITE[alpha.dtype.name] / 2
    return None if usable is None or usable.all() else usable


def remember_alpha(loaded: Tensor, image: ImageLike, name: str = "image") -> Tensor:
    """Note the mask by alpha of an image on what was loaded from it, whose colours stay as they are; return it."""
    if loaded is not image:
        alpha = getattr(image, _ALPHA) if hasattr(image, _ALPHA) else alpha_mask(image, name)
        setattr(loaded, _ALPHA, alpha)
    return loaded


def with_alpha(loaded: Tensor) -> Tensor:
    """Return a loaded image with the mask by alpha that was noted on it."""
    return with_mask(loaded, getattr(loaded, _ALPHA, None))


@torch.inference_mode(False)  # tensors made in inference mode cannot be marked as loaded
def with_mask(image: Tensor, mask: MaskLike, name: str = "mask") -> Tensor:
    """Return a loaded image (C,H,W) with its mask as one more channel: 1 where pixels may be matched, else 0.

    Without a mask it stays as it is. A mask that it has holds, too. As descriptors reach beyond the edge of the mask,
    masked pixels take the colours of the nearest one that is not masked.
    """
    if mask is None:
        return image
    usable = load_mask(mask, size_of(image), name)
    colours = image
    if has_mask(image):
        colours, usable = image[:-1], usable & (image[-1] > 0).cpu().numpy()
    if not usable.all():
        colours = _filled(colours, usable)
    alpha = torch.from_numpy(usable).to(colours)[None]
    return mark_loaded(torch.cat([colours, alpha]))


def _filled(colours: Tensor, usable: np.ndarray) -> Tensor:
    """Give masked pixels of (C,H,W) the colours of the nearest usable one."""
    if not usable.any():
        return torch.full_like(colours, _GREY)
    nearest = torch.from_numpy(nearest_known(usable, cv2.DIST_MASK_5).ravel()).to(colours.device)
    return colours.flatten(1)[:, nearest].view_as(colours)


def nearest_known(known: np.ndarray, mask_size: int) -> np.ndarray:
    """Return the raster index of the nearest known pixel of each pixel, (H,W); its own if it is known, or if none is.

    ``mask_size`` says how exact the distances are, as in OpenCV's ``distanceTransform``.
    """
    numbers = np.arange(known.size).reshape(known.shape)
    if known.all() or not known.any():
        return numbers
    unknown = (~known).astype(np.uint8)
    _, labels = cv2.distanceTransformWithLabels(unknown, cv2.DIST_L2, mask_size, labelType=cv2.DIST_LABEL_PIXEL)
    table = np.zeros(labels.max() + 1, np.int64)
    table[labels[known]] = numbers[known]
    return table[labels]


def usable_share(*images: Tensor) -> float:
    """Return the share of the points of two images, 0 to 1, that their masks leave to be matched at most.

    It is that of the image with less left: masks often cover the same part of both.
    """
    return min(float(image[-1].float().mean()) if has_mask(image) else 1.0 for image in images)


def is_usable(image: Tensor, points: Tensor) -> Tensor:
    """Return which points (x, y), (N, 2), at pixel centres, lie between pixels of a loaded image without a mask."""
    if not has_mask(image):
        return torch.ones(len(points), dtype=torch.bool, device=points.device)
    mask, inside = image[-1].to(points.device) > 0, torch.ones(len(points), dtype=torch.bool, device=points.device)
    last = points.new_tensor([mask.shape[1] - 1, mask.shape[0] - 1])
    low, high = (torch.minimum(ends.clamp(min=0), last).long() for ends in (points.floor(), points.ceil()))
    for x in (low[:, 0], high[:, 0]):
        for y in (low[:, 1], high[:, 1]):
            inside &= mask[y, x]
    return inside
