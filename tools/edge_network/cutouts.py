"""Objects pasted into photographs: their boundaries are known to the pixel, while drawn ones are a pixel or two off.

A pasted object also looks like a motion boundary: something in front of something else.
"""

import math
from pathlib import Path

import cv2
import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from deepmatching.errors import DeepMatchingError
from deepmatching.io.image_files import decode_image_file

_SIDE = 192  # pixels; larger cut-outs are shrunk
_PASTED = 0.6  # fraction of the views that get an object
_NEAR = 4  # pixels; deeper inside an object the boundaries are not known
_EXTENT = (0.25, 1.0)  # longer side of an object, in views


def load_cutouts(folder: Path, device: torch.device) -> Tensor:
    """Return all RGBA pictures of a folder, each centred in a square: (M, 4, S, S) uint8."""
    paths = sorted(path for path in folder.glob("*") if path.suffix in (".png", ".webp"))
    if not paths:
        raise DeepMatchingError(f"There are no cut-outs (.png or .webp with transparency) in '{folder}'.")
    cutouts = np.zeros((len(paths), _SIDE, _SIDE, 4), np.uint8)
    for square, path in zip(cutouts, paths, strict=True):
        picture = decode_image_file(path, cv2.IMREAD_UNCHANGED, "cut-out")
        if picture.ndim != 3 or picture.shape[2] != 4 or picture.dtype != np.uint8:
            raise DeepMatchingError(f"The cut-out '{path}' is not RGBA with 8 bits; remove it from the folder.")
        shrink = min(1.0, (_SIDE - 2) / max(picture.shape[:2]))
        picture = cv2.resize(picture, None, fx=shrink, fy=shrink, interpolation=cv2.INTER_AREA)
        rows, columns = picture.shape[:2]
        y, x = (_SIDE - rows) // 2, (_SIDE - columns) // 2
        square[y : y + rows, x : x + columns] = cv2.cvtColor(picture, cv2.COLOR_BGRA2RGBA)
    return torch.from_numpy(cutouts.transpose(0, 3, 1, 2).copy()).to(device)


def paste(view: Tensor, consensus: Tensor, known: Tensor, cutouts: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Paste a random cut-out, rotated and magnified, into some of the views.

    Args:
        view, consensus, known: (B, 3, S, S), (B, 1, S, S) and (B, 1, S, S), see
            :func:`~edge_network.augmentation.random_views`.
        cutouts: (M, 4, S′, S′) uint8.

    Returns:
        The three with the objects in them. Their outlines are boundaries, of value ½ on either side.
    """
    batch, _, size, _ = view.shape
    device = view.device
    chosen = cutouts[torch.randint(len(cutouts), (batch,), device=device)].float() / 255
    extent = _EXTENT[0] + (_EXTENT[1] - _EXTENT[0]) * torch.rand(batch, device=device)
    angle = (torch.rand(batch, device=device) - 0.5) * (math.pi / 2)
    mirror = torch.where(torch.rand(batch, device=device) < 0.5, 1.0, -1.0)
    place = (2 * torch.rand(batch, 2, device=device) - 1) * 0.9
    cosine, sine = angle.cos() / extent, angle.sin() / extent
    turn = torch.stack([torch.stack([mirror * cosine, -mirror * sine], 1), torch.stack([sine, cosine], 1)], 1)
    matrix = torch.cat([turn, -(turn @ place[:, :, None])], dim=2)
    grid = F.affine_grid(matrix, [batch, 1, size, size], align_corners=False)
    sampled = F.grid_sample(torch.cat([chosen[:, :3] * chosen[:, 3:], chosen[:, 3:]], 1), grid, align_corners=False)
    pasted = (torch.rand(batch, 1, 1, 1, device=device) < _PASTED).float()
    alpha = sampled[:, 3:]
    colours = sampled[:, :3] / alpha.clamp(min=1e-3)
    gain = torch.exp(
        0.25 * torch.randn(batch, 3, 1, 1, device=device) + 0.25 * torch.randn(batch, 1, 1, 1, device=device)
    )
    # The cut-outs' rims are two or three pixels wide; half of that looks like an object in focus.
    alpha = pasted * ((alpha - 0.5) * 2 + 0.5).clamp(0, 1)
    view = torch.lerp(view, (colours * gain).clamp(0, 1), alpha)

    inside = (alpha > 0.5).float()
    # The boundary runs between two pixels, and either may be marked.
    outline = 0.5 * (F.max_pool2d(inside, 3, 1, 1) + F.max_pool2d(-inside, 3, 1, 1))
    deep = -F.max_pool2d(-inside, 2 * _NEAR + 1, 1, _NEAR)
    consensus = torch.maximum(consensus * (1 - inside), outline)
    return view, consensus, torch.maximum(known, inside) * (1 - deep)
