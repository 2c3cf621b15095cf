"""Random views of annotated photographs, a whole batch at once, on the device that holds the photographs."""

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from edge_network.cutouts import paste

ZOOM = (0.6, 1.7)  #: range of magnification: the photographs are smaller than the frames of most films
#: Half of the views are rotated by any angle, half by at most this much, since most horizons are level.
SMALL_TURN = math.radians(8)


def random_views(
    images: Tensor, consensus: Tensor, batch: int, size: int, cutouts: Tensor | None = None
) -> tuple[Tensor, Tensor, Tensor]:
    """Cut views at random positions: rotated, magnified, mirrored, with changed colours, blur and noise.

    Args:
        images: (N, 3, H, W) uint8.
        consensus: (N, 1, H, W) uint8, 255 where all annotators drew a boundary.
        batch, size: B views of S × S pixels.
        cutouts: objects to paste into the views, see ``edge_network.cutouts``.

    Returns:
        The views (B, 3, S, S) in [0, 1], their consensus (B, 1, S, S) in [0, 1], and a mask (B, 1, S, S) of 0 and 1
        that tells where both are known: a view may extend beyond its photograph.
    """
    chosen = torch.randint(len(images), (batch,), device=images.device)
    matrix = _random_affine(batch, size, images.shape[-2:], images.device)
    view = _sample(images[chosen].float() / 255, matrix, size, "bilinear", "reflection")
    marks = torch.cat([consensus[chosen].float() / 255, torch.ones_like(consensus[chosen], dtype=torch.float32)], dim=1)
    # Boundaries are one pixel wide: interpolation would fade them, and plain sub-sampling would break them. Take the
    # largest of the nearest values at 2 × 2 points of each pixel.
    marks = F.max_pool2d(_sample(marks, matrix, 2 * size, "nearest", "zeros"), 2)
    marked, known = marks[:, :1], marks[:, 1:]
    if cutouts is not None:
        view, marked, known = paste(view, marked, known, cutouts)
    return _random_look(view), marked, known


def _uniform(batch: int, low: float, high: float, device: torch.device) -> Tensor:
    return torch.rand(batch, device=device) * (high - low) + low


def _random_affine(batch: int, size: int, shape: torch.Size, device: torch.device) -> Tensor:
    """Return (B, 2, 3): maps the view's coordinates to the photograph's, both in [−1, 1]."""
    zoom = torch.exp(_uniform(batch, math.log(ZOOM[0]), math.log(ZOOM[1]), device))
    any_turn, small = _uniform(batch, -math.pi, math.pi, device), _uniform(batch, -SMALL_TURN, SMALL_TURN, device)
    angle = torch.where(torch.rand(batch, device=device) < 0.5, any_turn, small)
    mirror = torch.where(torch.rand(batch, device=device) < 0.5, 1.0, -1.0)
    half = size / 2 / zoom  # half a view, in pixels of the photograph
    cosine, sine = half * angle.cos(), half * angle.sin()
    rows, columns = (side / 2 for side in shape)
    across = (columns - half).clamp(min=0) * _uniform(batch, -1, 1, device)
    down = (rows - half).clamp(min=0) * _uniform(batch, -1, 1, device)
    first = torch.stack([mirror * cosine, -sine, across], dim=1) / columns
    second = torch.stack([mirror * sine, cosine, down], dim=1) / rows
    return torch.stack([first, second], dim=1)


def _sample(source: Tensor, matrix: Tensor, size: int, mode: str, padding: str) -> Tensor:
    grid = F.affine_grid(matrix, [len(matrix), 1, size, size], align_corners=False)
    return F.grid_sample(source, grid, mode=mode, padding_mode=padding, align_corners=False)


def _random_look(view: Tensor) -> Tensor:
    """Change contrast, colours and gamma, sometimes to grey; add some blur and noise."""
    batch, device = len(view), view.device
    mean = view.mean(dim=(1, 2, 3), keepdim=True)
    contrast = _uniform(batch, 0.6, 1.3, device).view(-1, 1, 1, 1)
    mixing = torch.eye(3, device=device) + 0.06 * torch.randn(batch, 3, 3, device=device)
    saturation = torch.where(torch.rand(batch, device=device) < 0.1, 0.0, _uniform(batch, 0.5, 1.3, device))
    grey = torch.full((3, 3), 1 / 3, device=device)
    mixing = torch.lerp(grey.expand(batch, 3, 3), mixing, saturation.view(-1, 1, 1))
    view = torch.einsum("bij,bjhw->bihw", mixing, contrast * (view - mean) + mean)
    view = view + 0.08 * torch.randn(batch, 1, 1, 1, device=device)
    gamma = torch.exp(_uniform(batch, -0.35, 0.35, device)).view(-1, 1, 1, 1)
    view = _random_blur(view.clamp(1e-3, 1) ** gamma)
    noise = 0.04 * torch.rand(batch, 1, 1, 1, device=device) ** 2
    return (view + noise * torch.randn_like(view)).clamp(0, 1)


def _random_blur(view: Tensor, taps: int = 7) -> Tensor:
    """Blur four views in ten by a Gaussian of σ up to 1.5; the others do not change."""
    batch, channels, *_ = view.shape
    sigma = 1.5 * (torch.rand(batch, 1, device=view.device) - 0.6).clamp(min=0.02) / 0.4
    offsets = torch.arange(taps, device=view.device) - taps // 2
    kernel = torch.softmax(-offsets.square() / (2 * sigma**2), dim=1)  # (B, taps)
    kernel = kernel.repeat_interleave(channels, dim=0)[:, None, None]
    stacked = F.pad(view.reshape(1, batch * channels, *view.shape[2:]), [taps // 2] * 4, mode="reflect")
    stacked = F.conv2d(stacked, kernel, groups=batch * channels)
    stacked = F.conv2d(stacked, kernel.transpose(2, 3), groups=batch * channels)
    return stacked.reshape(view.shape)
