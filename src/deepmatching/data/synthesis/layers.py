"""Rendering: windows of pictures, warped into both frames, one over the other, with exact flow and occlusion.

Coordinates are in pixels, (x, y), pixel centres at whole numbers. Every operation handles all layers of all
pairs at once, and none waits for the device.
"""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from deepmatching.data.synthesis.motions import Waves
from deepmatching.data.synthesis.scene import Scene, Windows

_LARGE_AREAS = 4  #: areas along the side of a picture without detail
_UNBENDING_STEPS = 4  #: iterations of x = y − w(x): each reduces the error to 1/4, from at most a few pixels


@dataclass
class Rendering:
    """n pairs of frames without effects of light and camera."""

    frames: Tensor  #: (n, 2, 3, H, W) in [0, 1]
    flow: Tensor  #: (n, H, W, 2) from frame 0 to frame 1
    occluded: Tensor  #: (n, H, W) bool: not visible in frame 1
    visible: Tensor  #: (n, 2, H, W) the foremost layer of every pixel


def render(scene: Scene[Tensor], texels: Tensor, size: tuple[int, int]) -> Rendering:
    """Render a scene of tensors with the `texels` of :class:`Photos`."""
    slots, count = scene.layers.offset.shape[1:]
    height, width = size
    x, y = pixels(size, texels.device)

    grid = texels.new_empty((slots + 1, count, 2, height, width, 2), dtype=torch.float32)
    project(scene.lookup, x, y, out=grid)
    if len(scene.bent):
        _bend(scene, grid, x, y)
    grid = grid.view(slots + 1, count, 2 * height, width, 2)  # frame 1 below frame 0

    tiles = fetch(texels, scene.background, scene.background_tile).float() / 255
    if len(scene.plain):
        tiles = without_detail(tiles, scene.plain[slots])
    behind = F.grid_sample(tiles[:, :3], grid[slots], padding_mode="reflection", align_corners=True)
    textures, masks = fetch(texels, scene.layers, scene.tile).chunk(2)
    tiles = textures * (masks[:, 3:].float() / 255**2)
    if len(scene.plain):
        tiles = without_detail(tiles, scene.plain[:slots].flatten())
    before = F.grid_sample(tiles, grid[:slots].flatten(0, 1), padding_mode="zeros", align_corners=True)
    before = before.reshape(slots, count, 4, 2 * height, width)

    # The fraction of light that passes the layers in front of layer k: (K + 1, n, 2 H, W).
    passed = torch.cumprod(1 - before[:, :, 3], dim=0)
    passed = torch.cat([torch.ones_like(passed[:1]), passed])
    colours = (before[:, :, :3] * passed[:slots, :, None]).sum(0) + behind * passed[slots][:, None]

    nearness = torch.arange(slots, 0, -1.0, device=texels.device)[:, None, None, None]
    visible = slots - ((before[:, :, 3] > 0.5) * nearness).amax(0).long()
    visible = visible.view(count, 2, height, width)

    flow = _flow(scene, visible[:, 0], x, y)
    target_x, target_y = flow[..., 0] + x, flow[..., 1] + y
    # A point of layer k is seen in frame 1 if most of the light passes the layers in front of it there.
    depth = visible[:, 0] * (2 / slots) - 1
    where = torch.stack([target_x * (2 / (width - 1)) - 1, target_y * (2 / (height - 1)) - 1, depth], dim=-1)
    light = passed[:, :, height:].transpose(0, 1)[:, None]  # (n, 1, K + 1, H, W)
    light = F.grid_sample(light, where[:, None], padding_mode="border", align_corners=True)[:, 0, 0]
    inside = (target_x >= -0.5) & (target_x < width - 0.5) & (target_y >= -0.5) & (target_y < height - 0.5)
    frames = colours.reshape(count, 3, 2, height, width).transpose(1, 2)
    return Rendering(frames, flow, ~(inside & (light > 0.5)), visible)


def pixels(size: tuple[int, int], device: torch.device) -> tuple[Tensor, Tensor]:
    """Return x (W,) and y (H, 1) of all pixels."""
    return torch.arange(float(size[1]), device=device), torch.arange(float(size[0]), device=device)[:, None]


def fetch(texels: Tensor, windows: Windows[Tensor], side: int) -> Tensor:
    """Return RGBA of the windows, (N, 4, side, side) uint8, colours multiplied by alpha."""
    rows = _within(windows.row, windows.row_step, windows.height, windows.clamp, side)
    columns = _within(windows.column, windows.column_step, windows.width, windows.clamp, side)
    rows = rows * windows.width.flatten()[:, None] + windows.offset.flatten()[:, None]
    found = texels[rows[:, :, None] + columns[:, None, :]]  # (N, side, side) int32
    return found[..., None].view(torch.uint8).movedim(3, 1)


def without_detail(tiles: Tensor, missing: Tensor) -> Tensor:
    """Remove this fraction (N,) of all but large areas from pictures (N, 4, H, W), colours multiplied by alpha."""
    areas = F.adaptive_avg_pool2d(tiles, _LARGE_AREAS)
    large = F.interpolate(areas, tiles.shape[2:], mode="bilinear", align_corners=False)
    alpha = tiles[:, 3:]
    colours = torch.minimum(large[:, :3] / large[:, 3:].clamp(min=1e-3) * alpha, alpha)
    colours = torch.lerp(tiles[:, :3], colours, missing[:, None, None, None])
    return torch.cat([colours, alpha], dim=1)


def _within(start: Tensor, step: Tensor, length: Tensor, clamp: Tensor, side: int) -> Tensor:
    """Return rows or columns (N, side) of a picture; beyond it, the last one if `clamp`, else mirrored."""
    start, step, length, clamp = (values.flatten()[:, None] for values in (start, step, length, clamp))
    index = torch.addcmul(start, step, torch.arange(side, device=start.device) - side // 2).floor().long()
    turned = torch.remainder(index, 2 * length)
    mirrored = torch.minimum(turned, 2 * length - 1 - turned)
    return torch.where(clamp > 0, index.clamp(min=0).minimum(length - 1), mirrored)


def project(matrix: Tensor, x: Tensor, y: Tensor, out: Tensor | None = None) -> Tensor:
    """Apply homographies (…, 3, 3) to points (…, H, W), or to all pixels: (…, H, W, 2).

    Written out: a matrix product would be rounded to 10 bits where the caller allows TF32.
    """
    row0, row1, row2 = (row.unbind(-3) for row in matrix[..., None, None].unbind(-4))
    # Points behind the camera have a negative weight; they are sent far away.
    weight = (row2[0] * x + (row2[1] * y + row2[2])).clamp_(min=1e-6).reciprocal_()
    if out is None:
        out = weight.new_empty((*weight.shape, 2))
    torch.mul(row0[0] * x + (row0[1] * y + row0[2]), weight, out=out[..., 0])
    torch.mul(row1[0] * x + (row1[1] * y + row1[2]), weight, out=out[..., 1])
    return out


def _bend(scene: Scene[Tensor], grid: Tensor, x: Tensor, y: Tensor) -> None:
    """Solve x + w(x) = M⁻¹ x₁ for the points x of frame 0 of layers that bend, and look them up for frame 1."""
    straight = project(scene.inverse.flatten(0, 1)[scene.bent], x, y)  # (m, H, W, 2)
    point = unbend(Waves(*(values.flatten(0, 1)[scene.bent] for values in vars(scene.waves).values())), straight)
    lookup = scene.lookup[:, :, 0].flatten(0, 1)[scene.bent]
    grid[:, :, 1].view(-1, *grid.shape[3:])[scene.bent] = project(lookup, point[..., 0], point[..., 1])


def unbend(waves: Waves[Tensor], target: Tensor) -> Tensor:
    """Return the points x (m, H, W, 2) with x + w(x) = target."""
    point = target
    for _ in range(_UNBENDING_STEPS):
        point = target - displacement(waves, point)
    return point


def displacement(waves: Waves[Tensor], point: Tensor) -> Tensor:
    """Return w(x) of waves (m, K, …) at points (m, H, W, 2)."""
    x, y = point.unbind(-1)
    total = torch.zeros_like(point)
    for amplitude, frequency, phase in zip(*(part.unbind(1) for part in vars(waves).values()), strict=True):
        angle = torch.addcmul(phase[:, None, None], frequency[:, :1, None], x)
        swing = angle.addcmul_(frequency[:, 1:, None], y).sin_()
        total.addcmul_(amplitude[:, None, None], swing[..., None])
    return total


def _flow(scene: Scene[Tensor], layer: Tensor, x: Tensor, y: Tensor) -> Tensor:
    """Return the flow (n, H, W, 2) of the given layer (n, H, W) at every pixel: M(x + w(x)) − x."""
    pair = torch.arange(layer.shape[0], device=layer.device)[:, None, None]
    moved_x, moved_y = x.expand(layer.shape), y.expand(layer.shape)
    if len(scene.bent):
        frequency, phase = scene.waves.frequency[layer, pair], scene.waves.phase[layer, pair]  # (n, H, W, K, …)
        angle = (frequency * torch.stack([moved_x, moved_y], -1)[..., None, :]).sum(-1) + phase
        bend = (scene.waves.amplitude[layer, pair] * angle.sin()[..., None]).sum(-2)
        moved_x, moved_y = moved_x + bend[..., 0], moved_y + bend[..., 1]
    return pointwise(scene.motion[layer, pair], moved_x, moved_y) - torch.stack(torch.broadcast_tensors(x, y), -1)


def pointwise(matrix: Tensor, x: Tensor, y: Tensor) -> Tensor:
    """Apply one homography (…, 3, 3) to each point (…): (…, 2)."""
    mapped = matrix[..., 0] * x[..., None] + matrix[..., 1] * y[..., None] + matrix[..., 2]
    return mapped[..., :2] / mapped[..., 2:].clamp(min=1e-6)
