"""Masked pixels do not vote: a cell or position of the descriptors that a mask covers is 0, and scores leave it out.

* A masked reference point has no score. As a child that is off the grid, it is left out of the mean in aggregation.
* A masked target scores 0 in aggregation and −∞ in Q_0, as one that is off the image.
* A reference patch that the mask covers in part is rectified: its score is divided by the visible fraction.

All operators between two powers are homogeneous in the scores of one reference point p. So the mean over some of the
children is that over all of them times a weight of p, and the kernels need not know of masks.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from deepmatching.geometry.discretization import Geometry, Strip, overlap
from deepmatching.geometry.targets import Decoded, reference_patches, target_indices
from deepmatching.network.operators.aggregation import aggregation

#: A pixel is masked below this; resized and warped masks have values in between.
_VISIBLE = 0.999
_CHUNK = 2**22  #: scores that are looked at at a time


def mask_cells(cells: Tensor, mask: Tensor, stride: int, patch: int) -> Tensor:
    """Set descriptors (B, C, h, w) to 0 where a mask (B, 1, H, W), below 1 at masked pixels, covers a part of them.

    These are cells of ``stride`` pixels; or, for ``patch`` = 1, positions, which the four pixels around them make up.
    """
    covered = (mask < _VISIBLE).to(cells.dtype)
    covered = F.max_pool2d(F.pad(covered, (1, 1, 1, 1)), 2, stride) if patch == 1 else F.max_pool2d(covered, stride)
    return cells.masked_fill(covered > 0, 0)


def visible_positions(cells: Tensor, patch: int) -> Tensor:
    """Return which positions of masked descriptors (B, C, h, w) are visible: (B, rows, columns) bool.

    Between cells, those are visible whose cells around them all are.
    """
    visible = cells.ne(0).any(dim=1)
    if patch == 1:
        return visible
    return F.max_pool2d((~visible)[:, None].to(cells.dtype), 2, 1, padding=1)[:, 0] == 0


@dataclass(frozen=True, eq=False)
class Visible:
    """What the masks of a batch of pairs leave to be matched."""

    weights: list[Tensor]  #: (B, H_l, W_l) for every level: what S_l of each reference point is multiplied with
    targets: Tensor  #: (B, rows, columns) bool: target positions, in cells from the image's corner

    @classmethod
    def of(cls, cells0: Tensor, cells1: Tensor, geometry: Geometry, patch: int, nu: Sequence[float]) -> "Visible":
        """Find what is visible in masked descriptors; ν_l are the exponents, and levels beyond the last share it."""
        (top, left), (rows, columns) = geometry.first_cell, geometry.grid(0)
        positions = visible_positions(cells0, patch)[:, top :: geometry.step, left :: geometry.step]
        counts = positions[:, :rows, :columns].to(torch.float32)
        parts = reference_patches(cells0.ne(0).any(dim=1, keepdim=True).float(), geometry, patch)
        weights = [_power(counts * parts.mean(dim=(3, 4, 5)), nu[0])]
        for l in range(geometry.L):
            links = [(down, right, 0, 0) for down, right, *_ in geometry.links(l)]
            share = aggregation(counts[..., None, None], geometry.grid(l + 1), links)[..., 0, 0]
            counts = (share > 0).to(torch.float32)
            weights.append(_power(share, nu[min(l + 1, len(nu) - 1)]))
        return cls(weights, visible_positions(cells1, patch))

    def weigh(self, scores: Tensor, geometry: Geometry, l: int) -> Tensor:
        """Multiply S_l, or S_{l+1/2}, of the points of a geometry with their weights, in place."""
        return scores.mul_(self._rows(l, geometry)[..., None, None].to(scores.dtype))

    def _rows(self, l: int, geometry: Geometry) -> Tensor:
        weights = self.weights[l]
        return weights[:, slice(*geometry.rows[l])] if isinstance(geometry, Strip) else weights

    def leave_out(self, pooled: Tensor, switches: Tensor, geometry: Geometry) -> Tensor:
        """Set S_{1/2} to −∞ where the point or the target that ``switches`` = m_0 chose is masked, in place."""
        reach, offset = geometry.pool_reach, geometry.pool_offset(0) - geometry.pool_reach
        side = 2 * reach + 1
        views = [
            self._covered(pooled.shape, geometry, 2, offset + n // side, offset + n % side) for n in range(side**2)
        ]
        return self._leave_out(pooled, geometry, list(enumerate(views)), switches)

    def leave_out_of_all(self, Q_0: Tensor, geometry: Geometry) -> Tensor:
        """Set Q_0 to −∞ where the point or the target is masked, in place."""
        return self._leave_out(Q_0, geometry, [(0, self._covered(Q_0.shape, geometry, 1, 0, 0))], None)

    def _leave_out(
        self, scores: Tensor, geometry: Geometry, views: list[tuple[int, Tensor]], switches: Tensor | None
    ) -> Tensor:
        hidden = (self._rows(0, geometry) == 0)[..., None, None]
        at_once = max(1, _CHUNK // max(1, scores[:, 0].numel()))
        for first in range(0, scores.shape[1], at_once):
            rows = slice(first, first + at_once)
            scores[:, rows].masked_fill_(hidden[:, rows], -torch.inf)
            for code, covered in views:
                if scores.device.type == "cpu" and not covered[:, rows].any():
                    continue
                out = covered[:, rows] if switches is None else covered[:, rows] & (switches[:, rows] == code)
                scores[:, rows].masked_fill_(out, -torch.inf)
        return scores

    def _covered(self, shape: Sequence[int], geometry: Geometry, every: int, down: int, right: int) -> Tensor:
        """Return whether the target ``every`` · k + (down, right) of each point is masked: a view, (B, H, W, h, w)."""
        sides = [geometry.shift * (shape[1 + n] - 1) + every * (shape[3 + n] - 1) + 1 for n in (0, 1)]
        table = self.targets.new_zeros(shape[0], *sides)
        firsts = (first + by for first, by in zip(geometry.first_target, (down, right), strict=True))
        used = [overlap(*axis) for axis in zip(firsts, sides, self.targets.shape[1:], strict=True)]
        if used[0] and used[1]:
            table[:, used[0][0], used[1][0]] = ~self.targets[:, used[0][1], used[1][1]]
        pair, row, column = table.stride()
        steps = (pair, geometry.shift * row, geometry.shift * column, every * row, every * column)
        return table.as_strided(tuple(shape), steps)

    def around(self, around: Tensor, decoded: Decoded, geometry: Geometry) -> Tensor:
        """Set scores around each match, (B, H_0, W_0, n, n), to −∞ at masked targets."""
        reach = around.shape[-1] // 2
        steps = torch.arange(-reach, reach + 1, device=around.device)
        rows, columns = (
            (index[..., None] + steps).clamp(0, last - 1)
            for index, last in zip(target_indices(decoded.cells, geometry), self.targets.shape[1:], strict=True)
        )
        pairs = torch.arange(len(around), device=around.device).view(-1, 1, 1, 1, 1)
        return around.masked_fill(~self.targets[pairs, rows[..., :, None], columns[..., None, :]], -torch.inf)

    def judged(self, decoded: Decoded) -> Decoded:
        """Return the matches with a confidence of 0 at masked points."""
        assert decoded.confidence is not None
        return decoded._replace(confidence=decoded.confidence.masked_fill(self.weights[0] == 0, 0))


def weighed(scores: Tensor, visible: Visible | None, geometry: Geometry, l: int) -> Tensor:
    """Return S_l, or S_{l+1/2}, with the weights of what is visible, in place; without masks as it is."""
    return scores if visible is None else visible.weigh(scores, geometry, l)


def _power(share: Tensor, nu: float) -> Tensor:
    """Return (1/share)^ν, and 0 where there is no share."""
    return torch.where(share > 0, share.clamp(min=1e-6) ** -nu, 0.0)
