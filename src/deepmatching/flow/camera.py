"""The motion of the camera that matches show, and what leaves the frame with it.

Where only the camera moves, a pixel x goes to  A x − b e  (homogeneous), with the epipole e and a number b that depends
on its depth alone. On a plane, b is an affine function of x. So b is interpolated as displacements are. It is one
number, not two, and its models hold far from their matches, where an affine motion does not.

Shapes never depend on values, and nothing waits for a GPU, so a CUDA graph can record it.
"""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from deepmatching.flow.operators.local_models import affine_models, falloff_weights, paint
from deepmatching.flow.operators.null_vector import inverse, null_vector
from deepmatching.flow.settings import InterpolationSettings
from deepmatching.geometry.seeds import Nearest

#: Errors at which a match counts a quarter, step by step of the fit, in pixels; the first step believes all matches.
_RIGHT = (4.0, 2.0, 1.0, 1.0)
_FOLLOWS = 1.5  #: the same where matches are asked whether they follow the camera
_FEWEST = 30  #: matches of mean weight; fewer say too little about a camera
_ROUNDING = 0.01  #: smaller changes of the flow are left out, in pixels
_TINY = 1e-12  #: added to what may be 0
_LEAST_WEIGHT = 1e-9  #: of a match that does not follow the camera
_NEAREST = 0.1  #: no model tells where something goes that comes this near to the camera, its distance being 1


class Camera(NamedTuple):
    """The motion of a camera. The middle of the image is at 0, and its mean side is 2 long."""

    fundamental: Tensor  #: (3, 3), F of y · F x = 0 for a pixel x that goes to y
    plane: Tensor  #: (3, 3), A
    epipole: Tensor  #: (3,), e


def leave_with_camera(
    flow: Tensor,
    label: Tensor,
    neighbours: Nearest,
    points: Tensor,
    displacements: Tensor,
    weights: Tensor,
    counts: Tensor,
    size1: Sequence[int],
    settings: InterpolationSettings,
) -> Tensor:
    """Return a flow (H, W, 2) in which what leaves the frame follows the camera, if enough matches around it do.

    Args:
        label: (H, W), the seed of each pixel.
        neighbours: of each seed.
        points, displacements: (S, 2), where seeds start, and their motion.
        weights: (S,), 1 in the mean of the seeds that count.
        counts: (S,) bool.
        size1: rows and columns of the second image, whose frame is left.
    """
    believed = torch.where(counts, weights, 0)
    rows, columns = label.shape
    pixel = 4 / (rows + columns)
    middle = torch.stack([points.new_full((), (side - 1) / 2) for side in (columns, rows)])
    start, end = (_homogeneous((p - middle) * pixel) for p in (points, points + displacements))
    camera = camera_of(start, end, believed, pixel)
    b, reach = _depths(camera.plane, camera.epipole, start, end)
    unit = (believed * reach).sum() / believed.sum() / pixel + _TINY  # b · unit is in pixels, roughly
    agrees = _share(epipolar_distances(camera.fundamental, start, end)[0] / pixel, _FOLLOWS)
    around, index = falloff_weights(*neighbours, settings.falloff, weights), neighbours.seeds.clamp(min=0).long()
    follow = (around * agrees[index]).sum(dim=1) >= settings.camera * around.sum(dim=1)
    certain = (agrees * reach / (pixel * unit)).clamp(_LEAST_WEIGHT, 10)
    values = torch.stack([b * unit, torch.zeros_like(b)], dim=1)
    models, _ = affine_models(neighbours.seeds, around * certain[index], points, values, settings.ridge, settings.wide)
    depths = paint(label, points, models)[..., :1].to(flow.dtype) / unit.to(flow.dtype)

    y, x = (torch.arange(side, dtype=flow.dtype, device=flow.device) for side in (rows, columns))
    pixels = torch.stack(torch.broadcast_tensors(x, y[:, None]), dim=2)
    plane, epipole, middle = (tensor.to(flow.dtype) for tensor in (camera.plane, camera.epipole, middle))
    goes = _homogeneous((pixels - middle) * pixel) @ plane.T - depths * epipole
    moved = goes[..., :2] / goes[..., 2:].clamp(min=_NEAREST) / pixel + middle - pixels
    right, down = (pixels + flow).unbind(dim=2)
    inside = (right >= -0.5) & (right <= size1[1] - 0.5) & (down >= -0.5) & (down <= size1[0] - 0.5)
    follow = follow & (believed.sum() >= _FEWEST)
    leaves = ~inside & ((moved - flow).abs().amax(dim=2) > _ROUNDING) & (goes[..., 2] > _NEAREST) & follow[label.long()]
    return torch.where(leaves[..., None], moved, flow)


def camera_of(start: Tensor, end: Tensor, trust: Tensor, pixel: float) -> Camera:
    """Fit the motion of a camera to matches from ``start`` to ``end``, (S, 3) each, by reweighted least squares.

    ``trust`` (S,) says how far each match is believed, and ``pixel`` how large a pixel is.
    """
    products = (end[:, :, None] * start[:, None, :]).flatten(1)  # y · F x is linear in F
    weights, fundamental = trust, start.new_zeros(3, 3)
    for scale in (None, *_RIGHT):
        if scale is not None:
            distances, slope = epipolar_distances(fundamental, start, end)
            weights = trust * _share(distances / pixel, scale) / slope.square()
        fundamental = null_vector((products * weights[:, None]).T @ products).view(3, 3)
    epipole = null_vector(fundamental @ fundamental.T)
    plane = torch.linalg.cross(epipole[:, None].expand(3, 3), fundamental, dim=0)
    # e · v may be subtracted from A for any row v. The mean plane's makes b small.
    b, reach = _depths(plane, epipole, start, end)
    weights = trust * _share(epipolar_distances(fundamental, start, end)[0] / pixel, _RIGHT[-1]) * reach.square()
    weighted = (start * weights[:, None]).T
    mean = inverse(weighted @ start) @ (weighted @ b)
    plane = plane - epipole[:, None] * mean
    return Camera(fundamental, plane / ((start @ plane[2]) * trust).sum() * trust.sum(), epipole)


def epipolar_distances(fundamental: Tensor, start: Tensor, end: Tensor) -> tuple[Tensor, Tensor]:
    """Return how far matches (S, 3) are from their epipolar lines (Sampson), and the slope of y · F x, (S,) each."""
    lines, back = start @ fundamental.T, end @ fundamental
    slope = torch.cat([lines[:, :2], back[:, :2]], dim=1).norm(dim=1) + _TINY
    return (end * lines).sum(dim=1).abs() / slope, slope


def _depths(plane: Tensor, epipole: Tensor, start: Tensor, end: Tensor) -> tuple[Tensor, Tensor]:
    """Return the b of each match (S,) at which A x − b e is nearest to y, and how far 1 more of b would move it."""
    goes, along = start @ plane.T, end[:, :2] * epipole[2] - epipole[:2]
    missing = end[:, :2] * goes[:, 2:] - goes[:, :2]
    square = along.square().sum(dim=1) + _TINY
    return (missing * along).sum(dim=1) / square, square.sqrt()


def _homogeneous(points: Tensor) -> Tensor:
    return torch.cat([points, torch.ones_like(points[..., :1])], dim=-1)


def _share(distances: Tensor, scale: float) -> Tensor:
    """Return how much a match counts that is off by this much, from 0 to 1 (Geman and McClure)."""
    return 1 / (1 + (distances / scale).square()).square()
