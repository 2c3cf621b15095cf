"""What the confidence network looks at: what the matching says about its matches, and the contexts of both points.

All of it is at hand once the matches are decoded; nothing is matched again. For every reference point p with the match
Γ(p), the displacement d(p) = Γ(p) − p and the score Q(p) = Q_0(Γ(p)|p):

======================  ====  =========================================================================================
group                   size  content
======================  ====  =========================================================================================
score                      3  Q/(L+1), S_0(Γ(p)|p), and whether a path reaches p
claims                     8  whether the match is verified by bins; for the target's own bin and for the 3 × 3 bins
                              around it, by how much the best match that ends there exceeds Q, and the difference
                              between its displacement and d(p), which is 0 for the best match itself
place                     10  d(p); distance of p and of Γ(p) to the four borders of their images
radius                     2  how far d(p) is from the limit of the search, along x and y
neighbours                24  d(p′) − d(p) for the eight neighbours p′, and d(p′) + d(p″) − 2 d(p) for opposite ones
peak                      25  S_0 at the 5 × 5 cells around Γ(p)
parts                     16  ⟨φ(p), φ(Γ(p))⟩, split over sixteen groups of channels, or over the cells of the patch
======================  ====  =========================================================================================

Lengths in pixels are squashed by x / (|x| + s), so that no displacement is too large for the network.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from deepmatching.geometry.discretization import Geometry
from deepmatching.geometry.targets import Decoded, bin_side, target_indices, target_patches
from deepmatching.kernels.constants import COARSE_SCALE, FINE_SCALE, NO_SCORE, SIMILARITY_PARTS
from deepmatching.kernels.registry import operator
from deepmatching.network.convolutions import in_row_bands
from deepmatching.network.operators.subpixel import in_strips

BAND = 2**22  #: numbers of the descriptors that are convolved at a time
_CHUNK = 2**21  #: numbers of target patches that are gathered at a time


def channels_of_evidence(patch: int) -> int:
    """Return the number of channels of :func:`gather_evidence` for a descriptor's patch."""
    return 72 + (SIMILARITY_PARTS if patch == 1 else patch**2)


@operator(cpu=(), cuda=("float32",))
@torch.no_grad()
def gather_evidence(
    decoded: Decoded, around: Tensor, cells0: Tensor, cells1: Tensor, geometry: Geometry, patch: int
) -> Tensor:
    """Return the table above for every reference point: (B, channels, H_0, W_0).

    The matches are verified by ``bins``; ``around`` is S_0 of the 5 × 5 cells around each, (B, H_0, W_0, 5, 5), −∞ off
    the image; for the cells see :func:`~deepmatching.network.operators.correlation`.
    """
    reached = torch.isfinite(decoded.scores)
    scores = torch.where(reached, decoded.scores / (geometry.L + 1), 0)
    moved = torch.where(reached[..., None], decoded.points1 - decoded.points0, 0)  # d, (B, H_0, W_0, 2)
    peak = torch.where(torch.isfinite(around), around, NO_SCORE)
    groups = [
        torch.stack([scores, peak[..., 2, 2], reached.to(scores.dtype)], dim=-1),
        _claims(decoded, scores, moved, geometry),
        squash(moved, COARSE_SCALE),
        *(
            squash(torch.stack([x, y, width - x, height - y], dim=-1), COARSE_SCALE)
            for (x, y), (height, width) in (
                (decoded.points0.expand_as(moved).unbind(-1), geometry.used0),
                ((decoded.points0 + moved).unbind(-1), geometry.used1),
            )
        ),
        torch.ones_like(moved) if geometry.radius is None else squash(geometry.radius - moved.abs(), FINE_SCALE),
        squash(_neighbour_differences(moved), FINE_SCALE),
        peak.flatten(-2),
        _parts(decoded, cells0, cells1, geometry, patch),
    ]
    return torch.cat([group.to(scores.dtype) for group in groups], dim=-1).permute(0, 3, 1, 2)


def squash(lengths: Tensor, scale: float) -> Tensor:
    """Return x / (|x| + s): linear for short lengths, ±1 for long ones."""
    return lengths / (lengths.abs() + scale)


def _neighbour_differences(moved: Tensor) -> Tensor:
    """Return differences to the eight neighbours and second differences along the four lines: (B, H_0, W_0, 24)."""
    rows, columns = moved.shape[1:3]
    padded = F.pad(moved.permute(0, 3, 1, 2), (1, 1, 1, 1), mode="replicate").permute(0, 2, 3, 1)
    first = [
        padded[:, 1 + y : 1 + y + rows, 1 + x : 1 + x + columns] - moved
        for y, x in ((-1, -1), (-1, 0), (-1, 1), (0, -1), (0, 1), (1, -1), (1, 0), (1, 1))
    ]
    second = [first[n] + first[-1 - n] for n in range(4)]
    return torch.cat([*first, *second], dim=-1)


def _claims(decoded: Decoded, scores: Tensor, moved: Tensor, geometry: Geometry) -> Tensor:
    """Tell who else claims the target: (B, H_0, W_0, 8); see the table above."""
    side = bin_side(geometry, "bins")
    rows1, columns1 = (-(-(used // geometry.gamma) // side) for used in geometry.used1)
    row, column = (
        (index // side).clamp(0, last - 1)
        for index, last in zip(target_indices(decoded.cells, geometry), (rows1, columns1), strict=True)
    )
    bins = (row * columns1 + column).flatten(1)  # (B, N)
    flat = scores.flatten(1)
    best = flat.new_full((len(flat), rows1 * columns1), -1.0).scatter_reduce_(1, bins, flat, "amax")
    # Of several best matches of a bin, the first in raster order.
    number = torch.arange(flat.shape[1], device=flat.device).expand_as(bins)
    none = flat.shape[1]
    claims = torch.where(flat >= best.gather(1, bins), number, none)
    winner = torch.full_like(best, none, dtype=torch.int64).scatter_reduce_(1, bins, claims, "amin")

    def around(table: Tensor) -> Tensor:
        """Return the 3 × 3 bins around each, (9, B, bins); −2, less than any score, beyond the border."""
        padded = F.pad(table.view(-1, rows1, columns1), (1, 1, 1, 1), value=-2)
        parts = [padded[:, y : y + rows1, x : x + columns1].flatten(1) for y in range(3) for x in range(3)]
        return torch.stack(parts)

    highest, which = around(best).max(dim=0)
    displacements = F.pad(moved.flatten(1, 2), (0, 0, 0, 1))  # one more row, for bins without a match
    found = [decoded.verified.to(scores.dtype).flatten(1)[..., None]]
    for table, owner in ((best, winner), (highest, around(winner).gather(0, which[None])[0])):
        other = owner.gather(1, bins)[..., None].expand(-1, -1, 2)
        difference = displacements.gather(1, other) - displacements[:, :-1]
        found += [(table.gather(1, bins) - flat)[..., None] * 4, squash(difference, FINE_SCALE)]
    found.append(squash(difference.norm(dim=-1, keepdim=True), FINE_SCALE))
    return torch.cat(found, dim=-1).view(*scores.shape, 8)


def _parts(decoded: Decoded, cells0: Tensor, cells1: Tensor, geometry: Geometry, patch: int) -> Tensor:
    """Split the similarity at the match into parts of equal weight: (B, H_0, W_0, parts)."""

    def compare(reference: Tensor, rows: Tensor, columns: Tensor) -> Tensor:
        target, _ = target_patches(cells1, rows, columns, -(patch // 2), patch)
        product = target * reference.permute(0, 1, 2, 4, 5, 3)
        if patch > 1:
            return product.sum(-1).flatten(-2) * patch**2
        padded = F.pad(product.flatten(3), (0, -cells1.shape[1] % SIMILARITY_PARTS))
        return padded.unflatten(-1, (SIMILARITY_PARTS, -1)).sum(-1) * SIMILARITY_PARTS

    return in_strips(compare, cells0, *target_indices(decoded.cells, geometry), geometry, patch, _CHUNK)


@operator(cpu=(), cuda=("float32",))
def windows(
    cells: tuple[Tensor, ...], weight: Tensor, bias: Tensor, step: int, factor: float, dtype: torch.dtype
) -> Tensor:
    """Return max(0, bias + factor · Σ weight · cells) over a window of cells per point: (n·B, C', rows, columns).

    n = 1 or 2 batches of descriptors have one shape, (B, C, h, w); weights are (C', C, side, side), the bias (C',).
    Windows are ``step`` cells apart, in h // step rows. Where the result's ``dtype`` is half precision, kernels
    multiply in half precision and sum in float32.
    """
    scaled = weight * factor

    def convolve(batch: Tensor) -> tuple[Tensor]:
        return (F.conv2d(batch, scaled, bias, step),)

    maps: list[Tensor] = []
    for batch in cells:  # convolutions copy their input
        at_once = max(1, BAND // (batch.shape[0] * batch.shape[1] * batch.shape[3] * step))
        maps += in_row_bands(convolve, (batch,), batch.shape[2] // step, at_once)
    return (maps[0] if len(maps) == 1 else torch.cat(maps)).relu_().to(dtype)


@operator(cpu=(), cuda=("float32", "float16"))
def compare_contexts(
    evidence: Tensor, context0: Tensor, context1: Tensor, points1: Tensor, beta: int, alpha: int, groups: int
) -> Tensor:
    """Join evidence, the context of p, and the products of the contexts of p and Γ(p), summed over groups of channels.

    Args:
        evidence: (B, E, H_0, W_0).
        context0, context1: (B, C, rows, columns) of either image; the first has at least H_0 × W_0 positions.
        points1: Γ(p) in pixels, (B, H_0, W_0, 2), (x, y). Between reference points, contexts are interpolated
            bilinearly; beyond them, they are those of the nearest.
        beta, alpha: first position of a context and step, in pixels.
        groups: number of groups; C is a multiple of it.

    Returns:
        (B, E + C + groups, H_0, W_0), of the type of the contexts.
    """
    context0 = context0[:, :, : evidence.shape[2], : evidence.shape[3]]
    warped = sample(context1.to(points1.dtype), (points1 - beta) / alpha)
    product = (context0 * warped).unflatten(1, (groups, -1)).sum(2)
    return torch.cat([evidence, context0, product], dim=1).to(context0.dtype)


def sample(maps: Tensor, places: Tensor) -> Tensor:
    """Return bilinear values (B, C, H, W) of maps (B, C, h, w) at fractional places (B, H, W, 2), (x, y) in cells.

    Places outside take the value of the nearest place inside.
    """
    h, w = maps.shape[-2:]
    x, y = places[..., 0] * (2 / max(1, w - 1)) - 1, places[..., 1] * (2 / max(1, h - 1)) - 1
    grid = torch.stack([x, y], dim=-1)
    return F.grid_sample(maps, grid, mode="bilinear", padding_mode="border", align_corners=True)
