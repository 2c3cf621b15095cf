"""The correction network: from the matches of a pair to the motion of every pixel, also of occluded ones.

Affine motions fitted to the matches of windows of several sizes say what a point's motion may be. Unlike a softmax over
matches, they extend to places that are occluded or outside the second image, and to zooming motion.
"""

import math
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple, TypeAlias

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from deepmatching.errors import DeepMatchingError
from deepmatching.geometry.discretization import Geometry
from deepmatching.geometry.targets import Decoded
from deepmatching.network.confidence import Residual, through_u
from deepmatching.network.convolutions import as_rgb, channels_last, in_row_bands
from deepmatching.network.operators.evidence import squash
from deepmatching.network.operators.lookups import lookup, lookup_squares

NEIGHBOURS = 9  #: windows whose fits a point can choose from, at every scale: its own and its eight neighbours
_UNIT = 16.0  #: points of the grid in one unit of the fits' coordinates, for precision

#: Displacements of candidates, the interpolated flow included, are limited to this many pixels along each axis, and
#: training leaves out pixels that move further.
FARTHEST = 1024.0


class Fits(NamedTuple):
    """Candidates for the motion of every point of a grid."""

    moved: Tensor  #: (B, K, 2, H, W), displacements in pixels
    support: Tensor  #: (B, K, H, W), the sum of the weights that each fit rests on


def affine_candidates(moved: Tensor, weights: Tensor, scales: int, ridge: float = 0.004) -> Fits:
    """Return the motion at every point by the affine motions of the windows around it.

    At scale s = 1 … ``scales``, the grid is divided into squares of 2^s × 2^s points. The window of a square also has
    its neighbours, with half the weight along each axis. Its fit

        d(p) = d̄ + A (p − p̄),   A = Cov(d, p) (Cov(p, p) + λ_s 1)⁻¹,   λ_s ∝ ridge · 4^s (1 + 20 / Σw)

    has weighted means d̄ and p̄ and weighted covariances. A point's K candidates are the fits of its own square and of
    the eight around it. Matches have displacements (B, 2, H, W) in pixels and weights (B, 1, H, W) from 0 to 1.
    """
    (B, _, H, W), device = moved.shape, moved.device
    y, x = ((torch.arange(n, device=device, dtype=moved.dtype) - n / 2) / _UNIT for n in (H, W))
    x, y = x.expand(B, 1, H, W), y[:, None].expand(B, 1, H, W)
    terms = torch.cat([torch.ones_like(x), x, y, x * x, x * y, y * y, moved, x * moved, y * moved], dim=1)
    moments = weights * terms
    found, support = [], []
    for s in range(1, scales + 1):
        side = 2**s
        sums = F.avg_pool2d(F.pad(moments, (0, -W % side, 0, -H % side)), side) * side**2
        models, total = _fit(_blurred(sums), ridge * (side / _UNIT) ** 2)
        models = F.pad(torch.cat([models, total], dim=1), (1, 1, 1, 1), mode="replicate")
        near = F.unfold(models, 3).unflatten(2, sums.shape[2:])  # (B, 9 · 9, h, w)
        near = F.interpolate(near, scale_factor=side, mode="nearest")[:, :, :H, :W].unflatten(1, (9, NEIGHBOURS))
        middle_x, middle_y, mean, slope_x, slope_y, total = near.split([1, 1, 2, 2, 2, 1], dim=1)
        fit = mean + slope_x * (x[:, :, None] - middle_x) + slope_y * (y[:, :, None] - middle_y)
        found.append(fit.transpose(1, 2))
        support.append(total[:, 0])
    return Fits(torch.cat(found, dim=1).clamp(-FARTHEST, FARTHEST), torch.cat(support, dim=1))


def _blurred(sums: Tensor) -> Tensor:
    """Return the sums over squares and their neighbours: weights ½, 1, ½ along each axis."""
    middle = (torch.arange(3, device=sums.device) == 1).to(sums.dtype)  # made there: no copy, so a graph can record it
    for kernel in ((1, 3), (3, 1)):
        weights = (0.5 + 0.5 * middle).view(1, 1, *kernel).expand(sums.shape[1], 1, *kernel)
        sums = F.conv2d(sums, weights, padding=(kernel[0] // 2, kernel[1] // 2), groups=sums.shape[1])
    return sums


def _fit(sums: Tensor, ridge: float) -> tuple[Tensor, Tensor]:
    """Return fits (B, 8, h, w), means of x, y and d and slopes along x and y, and sums of weights (B, 1, h, w)."""
    total = sums[:, :1]
    means = sums[:, 1:] / total.clamp(min=1e-6)
    x, y, xx, xy, yy, moved, moved_x, moved_y = means.split([1, 1, 1, 1, 1, 2, 2, 2], dim=1)
    damping = ridge * (1 + 20 / total.clamp(min=1e-3))
    xx, xy, yy = xx - x * x + damping, xy - x * y, yy - y * y + damping
    moved_x, moved_y = moved_x - x * moved, moved_y - y * moved
    determinant = (xx * yy - xy * xy).clamp(min=1e-12)
    slope_x, slope_y = (yy * moved_x - xy * moved_y) / determinant, (xx * moved_y - xy * moved_x) / determinant
    return torch.cat([x, y, moved, slope_x, slope_y], dim=1), total


FINE = 4  #: pixels between the points of the finer grid
Squares: TypeAlias = tuple[tuple[int, float], ...]  #: squares of lookups: the reach of each, and its step in pixels
_COARSE_SQUARES: Squares = ((2, 2.0), (2, 8.0))  #: lookups around the current motion in coarse updates
_FINE_SQUARES: Squares = ((2, 2.0),)  #: the same in fine updates
NARROW = 0.4  #: scale of the mixture's first component, in pixels
LOG_SCALE = (-2.0, 6.0)  #: range of the log of the mixture's second scale, in log pixels
_BAND = 64  #: rows that an update computes at a time on a CPU
_REACH = 5  #: rows around them that their result depends on: five 3×3 operations
_NEAR = 4.0  #: scale of squashed lengths, in pixels


class InitialFlow(NamedTuple):
    """Flow that was interpolated from the matches of a batch of pairs: where the dense network starts."""

    flow: Tensor  #: (B, 2, H, W) in pixels
    probability: Tensor  #: (B, 1, H, W), that it is less than 3 pixels off
    matches: Tensor  #: (B,), number of matches that it was interpolated from


class DenseFlow(NamedTuple):
    """The motion of a batch of pairs."""

    flow: Tensor  #: (B, 2, H, W), of the part of the image that is used
    mixture: Tensor  #: (B, 2, H, W): logit of the first component's weight, log of the second one's scale in pixels
    coarse: list[Tensor]  #: (B, 2, H/8, W/8) each: filled in, then after each coarse update
    fine: list[Tensor]  #: (B, 2, H/4, W/4) each, after each fine update


class DenseNetwork(nn.Module):
    """matches, confidence, descriptors, interpolated flow → flow, in three steps::

        candidates ── S_0 at each ── U of 3×3 convolutions, down to 1/64 ── softmax ── motion at 1/8
        S_0 around the motion ── recurrent update, repeated at 1/8, then at 1/4
        3×3 motions and the interpolated one ── convex combination ── motion of every pixel

    The softmax chooses among the match of a point, the interpolated flow there, and affine fits of the confident
    matches around it (:func:`affine_candidates`). What is right in the interpolated flow, with its sharp edges, can
    stay.

    Args:
        channels, patch: of the descriptor, which must have one vector per position (``patch`` 1).
        step: cells between reference points.
        width, fine: channels at 1/8 and at 1/4.
        scales: of the fits.
        updates: numbers of coarse and fine updates.
    """

    def __init__(
        self,
        channels: int,
        patch: int = 1,
        step: int = 4,
        width: int = 64,
        fine: int = 48,
        scales: int = 4,
        updates: tuple[int, int] = (2, 1),
    ) -> None:
        super().__init__()
        if patch != 1 or step != 4:
            raise DeepMatchingError("The dense network needs a descriptor with one vector per position: use compact.")
        self.channels, self.width, self.fine, self.scales, self.updates = channels, width, fine, scales, tuple(updates)
        count = NEIGHBOURS * scales + 2
        self.stem = nn.Conv2d(3, 32, 8, stride=FINE, padding=2)
        self.cells = nn.Conv2d(channels, fine, 3, stride=2)
        self.context_fine = nn.Conv2d(32 + fine, fine, 3, padding=1)
        self.context = nn.Conv2d(fine, width, 4, stride=2, padding=1)
        self.entry = nn.Conv2d(4 * count + 3 + width, width, 1)
        self.down = nn.ModuleList(Residual(width) for _ in range(4))
        self.up = nn.ModuleList(Residual(width) for _ in range(3))
        self.choice = nn.Conv2d(width, count, 3, padding=1)
        self.coarse_update = _Update(width, width, _COARSE_SQUARES)
        self.rise = nn.Conv2d(width + fine, fine, 1)
        self.fine_update = _Update(fine, fine, _FINE_SQUARES)
        self.mask = nn.Sequential(
            nn.Conv2d(fine, 2 * fine, 3, padding=1), nn.ReLU(), nn.Conv2d(2 * fine, 10 * FINE**2, 1)
        )
        self.mixture = nn.Sequential(nn.Conv2d(fine, fine, 3, padding=1), nn.ReLU(), nn.Conv2d(fine, 2, 1))
        channels_last(self)

    def settings(self) -> dict[str, Any]:
        """Return the arguments with which a model file rebuilds this network."""
        return {"width": self.width, "fine": self.fine, "scales": self.scales, "updates": list(self.updates)}

    def forward(
        self, image0: Tensor, decoded: Decoded, cells0: Tensor, cells1: Tensor, geometry: Geometry, start: InitialFlow
    ) -> DenseFlow:
        """Return the flow of a batch of images (B, 1 or 3, H, W) in [0, 1] from their matches and descriptors."""
        if decoded.confidence is None or decoded.occluded is None:
            raise DeepMatchingError("The dense network needs matches with a confidence.")
        reached = torch.isfinite(decoded.scores)[:, None]
        moved = (decoded.points1 - decoded.points0).permute(0, 3, 1, 2) * reached
        trust, occluded = (p[:, None].clamp(0.001, 0.999) * reached for p in (decoded.confidence, decoded.occluded))
        rows, columns = (8 * n for n in moved.shape[2:])
        context_fine, context = self._context(image0[:, :, :rows, :columns], cells0)
        # One vector per position: those of the points at 1/8 lie in the middle of their squares, as those at 1/4 do.
        vectors, vectors_fine = (
            cells0[:, :, s // 4 : rows // 2 : s // 2, s // 4 : columns // 2 : s // 2] for s in (8, 4)
        )
        points, points_fine = (_points(rows, columns, s, moved) for s in (8, FINE))

        smooth, smooth_fine = (start.flow[:, :, s // 2 : rows : s, s // 2 : columns : s] for s in (8, FINE))
        likely = start.probability[:, :, 4:rows:8, 4:columns:8]
        fits = affine_candidates(moved, trust**2, self.scales)
        candidates = torch.cat([moved[:, None], smooth[:, None], fits.moved], dim=1)
        with torch.no_grad():  # positions carry no gradient to the scores
            scores = lookup(vectors, cells1, points + candidates.permute(0, 1, 3, 4, 2), geometry.gamma)
        certain = torch.cat([torch.logit(p, 1e-3) / 4 for p in (trust, occluded, likely)], dim=1)
        support = torch.log(torch.cat([trust, likely, fits.support], dim=1) + 0.01) / 4
        apart = squash(candidates - moved[:, None], _NEAR).flatten(1, 2)
        x = self.entry(torch.cat([2 * scores, support, apart, certain, context], dim=1)).relu_()
        x = through_u(x, self.down, self.up)
        weights = self.choice(x).softmax(dim=1)
        filled = (weights[:, :, None] * candidates).sum(dim=1)
        known, around = torch.cat([moved, smooth], dim=1), partial(_around, vectors, cells1, points, geometry.gamma)
        state, coarse = self.coarse_update.repeated(self.updates[0], x.tanh(), context, filled, known, certain, around)

        size = vectors_fine.shape[2:]
        state = self.rise(torch.cat([_resized(state, size), context_fine], dim=1)).tanh()
        certain, known = _resized(certain, size), torch.cat([_resized(moved, size), smooth_fine], dim=1)
        # The edges of the interpolated flow come back as far as it was chosen.
        edges = _resized(weights[:, 1:2], size) * (smooth_fine - _resized(smooth, size))
        around = partial(_around, vectors_fine, cells1, points_fine, geometry.gamma)
        state, fine = self.fine_update.repeated(
            self.updates[1], state, context_fine, _resized(coarse[-1], size) + edges, known, certain, around
        )
        flow, mixture = in_bands(self._of_pixels, state, fine[-1], start.flow[:, :, :rows, :columns])
        return DenseFlow(flow, mixture, coarse, fine[1:])

    def _of_pixels(self, state: Tensor, moved: Tensor, own: Tensor) -> tuple[Tensor, Tensor]:
        """Return the flow and the mixture of every pixel."""
        weights = self.mask(state)
        mixture = convex(self.mixture(state), weights.detach()[:, : 9 * FINE**2])
        return convex(moved, weights, own), mixture

    def _context(self, image0: Tensor, cells0: Tensor) -> tuple[Tensor, Tensor]:
        """Return features of the first image at 1/4 and at 1/8."""
        colours = self.stem(as_rgb(image0) * 4 - 2).relu_()
        cells = self.cells(cells0 * self.channels**0.5).relu_()[:, :, : colours.shape[2], : colours.shape[3]]
        fine = self.context_fine(torch.cat([colours, cells], dim=1)).relu_()
        return fine, self.context(fine).relu_()


def probability_within(mixture: Tensor, distance: float) -> Tensor:
    """Return the probability (B, H, W) that the motion is off by less than this many pixels.

    It is that of the likelihood in training: each coordinate has one of the two Laplace distributions, independently.
    For scales a and b, |x| + |y| < t has the probability 1 − (a exp(−t/a) − b exp(−t/b)) / (a − b), and
    1 − (1 + t/b) exp(−t/b) if they are equal. A circle is replaced by the diamond of the same mean width,
    t = 4/π · distance; where only one coordinate is wide, by the one that is as far away along it.
    """
    t = 4 / math.pi * distance
    weight, wide = mixture[:, 0].sigmoid(), mixture[:, 1].clamp(*LOG_SCALE).exp()
    wide = torch.where((wide - NARROW).abs() < 1e-3, NARROW + 1e-3, wide)  # where the formula is 0 / 0
    narrow_only = 1 - (1 + t / NARROW) * math.exp(-t / NARROW)
    wide_only = 1 - (1 + t / wide) * torch.exp(-t / wide)
    along = distance + NARROW
    mixed = 1 - (wide * torch.exp(-along / wide) - NARROW * math.exp(-along / NARROW)) / (wide - NARROW)
    return weight**2 * narrow_only + 2 * weight * (1 - weight) * mixed + (1 - weight) ** 2 * wide_only


class _Update(nn.Module):
    """One step of a convolutional GRU: (state, context, S_0 around the motion) → (new state, change of the motion).

    What the context adds to gates and proposal (:meth:`seen`) does not change between the steps.
    """

    def __init__(self, width: int, context: int, squares: Squares) -> None:
        super().__init__()
        self.squares = squares
        lookups = sum((2 * reach + 1) ** 2 for reach, _ in squares)
        self.changing = 2 * width  # channels of state and motion
        self.motion = nn.Conv2d(lookups + 9, width, 1)
        self.gates = nn.Conv2d(2 * width + context, 2 * width, 3, padding=1)
        self.proposal = nn.Conv2d(2 * width + context, width, 3, padding=1)
        self.first, self.second = nn.Conv2d(width, width, 3, padding=1), nn.Conv2d(width, 2, 3, padding=1)
        nn.init.zeros_(self.second.weight)
        nn.init.zeros_(self.second.bias)  # type: ignore[arg-type]

    def seen(self, context: Tensor) -> tuple[Tensor]:
        """Return what the context adds to gates and proposal, (B, 3 width, H, W)."""
        weight = torch.cat([part.weight[:, self.changing :] for part in (self.gates, self.proposal)])
        bias = torch.cat([part.bias for part in (self.gates, self.proposal)])  # type: ignore[misc]
        return (F.conv2d(context, weight, bias, padding=1),)

    def repeated(
        self,
        number: int,
        state: Tensor,
        context: Tensor,
        moved: Tensor,
        known: Tensor,
        certain: Tensor,
        around: Callable[[Tensor, Squares], Tensor],
    ) -> tuple[Tensor, list[Tensor]]:
        """Return the state after some steps, and the motions before, between and after them.

        The n ``known`` motions, (B, 2 n, H, W), are compared with the current one; ``certain``, (B, m, H, W), says how
        certain they are. ``around`` gives the scores in squares around a motion.
        """
        motions, (seen,) = [moved], in_bands(self.seen, context)
        for _ in range(number):
            moved = motions[-1].detach()
            apart = squash(known.unflatten(1, (-1, 2)) - moved[:, None], _NEAR).flatten(1, 2)
            far = torch.cat([apart, certain], dim=1)
            state, change = in_bands(self, state, seen, around(moved, self.squares), far, moved)
            motions.append(moved + change)
        return state, motions

    def forward(self, state: Tensor, seen: Tensor, around: Tensor, far: Tensor, moved: Tensor) -> tuple[Tensor, Tensor]:
        smooth = F.avg_pool2d(F.pad(moved, (1, 1, 1, 1), mode="replicate"), 3, stride=1)
        x = self.motion(torch.cat([2 * around, far, squash(smooth - moved, _NEAR)], dim=1)).relu_()
        gates = self._convolved(self.gates, state, x) + seen[:, : self.changing]
        keep, reset = gates.sigmoid().chunk(2, dim=1)
        proposal = (self._convolved(self.proposal, reset * state, x) + seen[:, self.changing :]).tanh()
        state = torch.lerp(proposal, state, keep)
        return state, 4 * self.second(self.first(state).relu_())

    def _convolved(self, part: nn.Conv2d, state: Tensor, x: Tensor) -> Tensor:
        """Return gates or proposal without what the context adds."""
        return F.conv2d(torch.cat([state, x], dim=1), part.weight[:, : self.changing], None, padding=1)


def in_bands(work: Callable[..., tuple[Tensor, ...]], *maps: Tensor) -> tuple[Tensor, ...]:
    """Return ``work(*maps)``, in bands of rows: it takes many times the memory of the maps.

    Not for training, which keeps all of it, and not on a GPU, where few large kernels are faster.
    """
    if torch.is_grad_enabled() or maps[0].is_cuda:
        return work(*maps)
    return in_row_bands(work, maps, maps[0].shape[2], _BAND, _REACH)


def _points(rows: int, columns: int, step: int, like: Tensor) -> Tensor:
    """Return the middles of squares, (rows / step, columns / step, 2), (x, y) in pixels from the corner."""
    y, x = ((torch.arange(n // step, device=like.device, dtype=like.dtype) + 0.5) * step for n in (rows, columns))
    return torch.stack(torch.broadcast_tensors(x, y[:, None]), dim=-1)


@torch.no_grad()
def _around(vectors: Tensor, cells1: Tensor, points: Tensor, gamma: int, moved: Tensor, squares: Squares) -> Tensor:
    """Return S_0 at the squares of displacements around the current motion, (B, n, H, W)."""
    return lookup_squares(vectors, cells1, points + moved.permute(0, 2, 3, 1), gamma, squares)


def _resized(maps: Tensor, size: torch.Size) -> Tensor:
    return F.interpolate(maps, (size[0], size[1]), mode="bilinear", align_corners=False)


def convex(maps: Tensor, weights: Tensor, own: Tensor | None = None) -> Tensor:
    """Return maps (B, C, 4 h, 4 w) from (B, C, h, w): each pixel is a convex combination of the 3 × 3 points around.

    Args:
        weights: (B, 9 · 16, h, w), logits for each of the 4 × 4 pixels of a point; 10 · 16 with ``own``.
        own: (B, C, 4 h, 4 w), a tenth value that each pixel has of its own.
    """
    B, C, h, w = maps.shape
    shares = weights.view(B, 1, -1, FINE, FINE, h, w).softmax(dim=2)
    around = F.pad(maps, (1, 1, 1, 1), mode="replicate")
    mixed = maps.new_zeros((B, C, FINE, FINE, h, w))
    for k in range(9):  # one at a time: all products at once would take half of the memory of flow
        near = around[:, :, None, None, k // 3 : k // 3 + h, k % 3 : k % 3 + w]
        mixed = torch.addcmul(mixed, shares[:, :, k], near)
    if own is not None:
        mixed = torch.addcmul(mixed, shares[:, :, 9], own.view(B, C, h, FINE, w, FINE).permute(0, 1, 3, 5, 2, 4))
    return mixed.permute(0, 1, 4, 2, 5, 3).reshape(B, C, FINE * h, FINE * w)
