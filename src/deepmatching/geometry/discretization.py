"""The position in the two images of every score of the pyramid (paper, Sect. 2.3 "Discretization").

A score S_l(k | i) compares a point p of the reference image with a point q of the target image.
Positions are pixel *corners*: x = 0 is the left border of the picture and x = W its right border.

Reference points, with i counted from 0 (the paper counts from 1)::

    p = α₀ (i + τ_l) + β₀,      τ_0 = 0,   τ_l = δ₀/2α₀ − ⌈δ₀/2α₀⌉  for l ≥ 1

Target points lie on one of two lattices:

* *relative* (a radius R is given; the paper's): q = p + 2^l γ₀ (k − R_l), k ∈ {0 … 2R_l}²,
  R_0 = R/γ₀, R_{l+1} = ⌈R_l / 2⌉;
* *absolute* (no radius; the original program's unrestricted mode): q = 2^l γ₀ k, k on the whole target image.

Two details printed in the paper are wrong and corrected here: the children of a level-1 point are
i + (δ₀/2α₀) ε **+** τ₁ (the paper prints − τ₁), and the padding P = η₀/γ₀ + 2R_{l+1} − R_l is one or
two cells (the paper says zero or one), because R is rounded up.
"""

import math
from dataclasses import dataclass, field, fields
from functools import cached_property

import torch
from torch import Tensor

from deepmatching.errors import DeepMatchingError, check_number
from deepmatching.settings import FULL, RADIUS

LARGEST_PATCH = 999  #: patches grow up to this side in the original program, in pixels
#: The four unit displacements ε_i of the paper, (row, column), in raster order.
CORNERS: tuple[tuple[int, int], ...] = ((-1, -1), (-1, +1), (+1, -1), (+1, +1))

#: The four links from a point down to its children, each (rows, columns, cell rows, cell columns): ``Geometry.links``.
Links = list[tuple[int, int, int, int]]


@dataclass(frozen=True)
class Geometry:
    """The discretisation of one image pair.

    Lengths are in pixels, sizes are (rows, columns). Level-0 patches have side δ₀ = ``delta`` and consist of
    (δ₀/γ₀)² descriptor cells of side γ₀.

    Args:
        size0: size of the reference image. The part beyond a multiple of δ₀ is not used (right and bottom).
        size1: size of the target image. The same part is not used.
        alpha: α₀, step of the grid of reference points at all levels.
        beta: β₀, position of the first reference point of level 0.
        gamma: γ₀, step of the target points at level 0: the side of a descriptor cell.
        delta: δ₀, side of a level-0 patch; a level-l patch has side 2^l δ₀.
        eta: η₀; max pooling reaches 2^l η₀ around its centre.
        radius: R, the largest displacement along each axis, or None for no limit (absolute lattice).
        levels: L, or None for the original's rule: double the patch while it is at most as large as the reference
            image's longer side (and 999 px), while patches have children inside the image, and on the absolute lattice
            while target maps are more than three cells wide.
    """

    size0: tuple[int, int]
    size1: tuple[int, int]
    alpha: int = 8
    beta: int = 4
    gamma: int = 2
    delta: int = 8
    eta: int = 2
    radius: int | None = RADIUS
    levels: int | None = None

    @classmethod
    def for_downscale(
        cls,
        size0: tuple[int, int],
        size1: tuple[int, int],
        downscale: int = 1,
        radius: int | None = RADIUS,
        levels: int | None = None,
        patch: int = 4,
    ) -> "Geometry":
        """Return the original's parametrisation: cells of f = 2^downscale pixels, and patches of 4×4 cells.

        With cells of 1 pixel and ``patch`` = 8, it is the paper's to the letter: γ₀ = 1, α₀ = δ₀ = 8, β₀ = 4 pixels.
        """
        f = 2**downscale
        return cls(size0, size1, patch * f, patch * f // 2, f, patch * f, f, radius, levels)

    def __post_init__(self) -> None:
        self._check_steps()
        self._check_radius()
        for name, size in (("reference", self.size0), ("target", self.size1)):
            if min(size) < self.delta:
                words = f"The {name} image is {size[1]}x{size[0]} pixels, smaller than one patch"
                raise DeepMatchingError(f"{words}: use an image of at least {self.delta}x{self.delta} pixels.")
        if self.levels is None:
            object.__setattr__(self, "levels", self._levels_by_rule())
            return
        check_number("levels", self.levels, minimum=0, whole=True)
        if self.levels > self._max_levels():
            image = f"a reference image of {self.size0[1]}x{self.size0[0]} pixels: use at most {self._max_levels()}"
            raise DeepMatchingError(f"levels={self.levels} needs patches that are too large for {image}.")

    def _check_steps(self) -> None:
        """Raise unless patches, cells, grid and pooling windows fit into one another."""
        for name in ("alpha", "gamma", "delta", "eta"):
            check_number(name, getattr(self, name), minimum=1, whole=True)
        beta, gamma, delta = self.beta, self.gamma, self.delta
        for small, large in (("gamma", "eta"), ("alpha", "delta"), ("gamma", "alpha"), ("gamma", "beta")):
            if getattr(self, large) % getattr(self, small):
                words = f"{small}={getattr(self, small)} must divide {large}={getattr(self, large)}"
                raise DeepMatchingError(f"{words}: change one of them.")
        if delta % (2 * gamma):
            raise DeepMatchingError(f"A patch of side {delta=} must hold an even number of cells of side {gamma=}.")
        if beta < delta // 2:
            words = "The first patch would stick out of the image"
            raise DeepMatchingError(f"{words}: {beta=} must be at least delta/2={delta // 2}.")
        if self.eta // gamma > 7:
            raise DeepMatchingError("eta must be at most 7*gamma, so that a pooling switch fits into one byte.")

    def _check_radius(self) -> None:
        """Raise unless the radius is a number of cells."""
        radius, gamma, delta = self.radius, self.gamma, self.delta
        if radius is None:
            if delta % (4 * gamma):
                raise DeepMatchingError(f"Matching without a radius needs 4*gamma={4 * gamma} to divide {delta=}.")
        elif radius < gamma:
            words = f"The radius must be at least {gamma} pixels (one cell), not {radius}"
            raise DeepMatchingError(f"{words}; use '{FULL}' for no limit.")
        elif radius % gamma:
            words = f"The radius must be a multiple of {gamma} pixels (the cell size), not {radius}"
            raise DeepMatchingError(f"{words}: {max(1, round(radius / gamma)) * gamma} would do.")

    def _levels_by_rule(self) -> int:
        side = max(self.used0)
        levels = 0
        while 2 * self.delta * 2**levels <= min(LARGEST_PATCH, side) and levels < self._max_levels():
            if self.radius is None and min(self.window(levels)) <= 3:
                break
            levels += 1
        return levels

    def _max_levels(self) -> int:
        """Return the number of levels whose patches have children on the grid along both axes."""
        levels = 1 if self.tau(1) else 0  # level 1 is then offset by half a step and always has children
        while max(map(abs, self.child_shifts(levels))) < min(self.grid(levels)):
            levels += 1
        return levels

    @property
    def used0(self) -> tuple[int, int]:
        """Size of the part of the reference image that is used: whole patches."""
        return self.used(self.size0)

    @property
    def used1(self) -> tuple[int, int]:
        """Size of the part of the target image that is used."""
        return self.used(self.size1)

    def used(self, size: tuple[int, int]) -> tuple[int, int]:
        """Return the size of the part of an image that is used."""
        return size[0] // self.delta * self.delta, size[1] // self.delta * self.delta

    @property
    def patch(self) -> int:
        """Cells along the side of a level-0 patch, δ₀/γ₀."""
        return self.delta // self.gamma

    @property
    def relative(self) -> bool:
        """Whether target points are counted from the reference point (with a radius) or from the image's corner."""
        return self.radius is not None

    @cached_property
    def L(self) -> int:
        """The top level."""
        assert self.levels is not None
        return self.levels

    def stride(self, l: int) -> int:
        """Return the step of the target points at level l: 2^l γ₀."""
        return 2**l * self.gamma

    def R(self, l: int) -> int:
        """Return R_l, the radius at level l in cells: R_0 = R/γ₀, R_{l+1} = ⌈R_l/2⌉ (relative lattice)."""
        if self.radius is None:
            raise ValueError("the absolute lattice has no radius")
        cells = self.radius // self.gamma
        for _ in range(l):
            cells = -(-cells // 2)
        return cells

    def tau(self, l: int) -> float:
        """Return τ_l, the offset of the level-l grid in units of α₀: 0 or −1/2."""
        return self.delta / (2 * self.alpha) - -(-self.delta // (2 * self.alpha)) if l >= 1 else 0.0

    def grid(self, l: int) -> tuple[int, int]:
        """Return (H_l, W_l), the number of reference points; one more along each axis for l ≥ 1 if τ_1 = −1/2."""
        extra = 1 if l >= 1 and self.tau(1) else 0
        rows, columns = ((used - self.delta // 2 - self.beta) // self.alpha + 1 for used in self.used0)
        return rows + extra, columns + extra

    def window(self, l: int) -> tuple[int, int]:
        """Return (h_l, w_l), the number of target points of each reference point at level l."""
        if self.relative:
            side = 2 * self.R(l) + 1
            return side, side
        rows, columns = (used // self.gamma + 1 for used in self.used1)
        for _ in range(l):
            rows, columns = rows // 2 + 1, columns // 2 + 1
        return rows, columns

    def shape(self, l: int) -> tuple[int, int, int, int]:
        """Return (H_l, W_l, h_l, w_l), the shape of S_l and Q_l for one pair."""
        return *self.grid(l), *self.window(l)

    @property
    def first_cell(self) -> tuple[int, int]:
        """Position of the first reference point of level 0, in cells from the image's corner: (row, column)."""
        return self.beta // self.gamma, self.beta // self.gamma

    @property
    def step(self) -> int:
        """α₀/γ₀: from one reference point to the next, in cells."""
        return self.alpha // self.gamma

    @property
    def shift(self) -> int:
        """Cells from one reference point's first target to the next one's: the step, or 0 on the absolute lattice."""
        return self.step if self.relative else 0

    @property
    def first_target(self) -> tuple[int, int]:
        """First target point of the first reference point of level 0, in cells from the corner: (row, column)."""
        row, column = self.first_cell
        return (row - self.R(0), column - self.R(0)) if self.relative else (0, 0)

    def reference_points(self, l: int) -> tuple[Tensor, Tensor]:
        """Return the pixel positions (corner convention) of the grid's rows (H_l,) and columns (W_l,)."""
        rows, columns = self.grid(l)
        offset = self.alpha * self.tau(l) + self.beta
        return torch.arange(rows) * self.alpha + offset, torch.arange(columns) * self.alpha + offset

    def nearest_point(self, l: int, pixel: tuple[float, float]) -> tuple[int, int]:
        """Return (row, column) of the grid point of level l nearest to a pixel (x, y), centres at integers."""
        (x, y), (ys, xs) = pixel, self.reference_points(l)
        return int((ys - (y + 0.5)).abs().argmin()), int((xs - (x + 0.5)).abs().argmin())

    def target_points(self, l: int) -> tuple[Tensor, Tensor]:
        """Return the pixel positions of the target points' rows (H_l, h_l) and columns (W_l, w_l); float64.

        On the absolute lattice all reference points have the same target points, and the first axis has size 1.
        """
        points = []
        for p, cells in zip(self.reference_points(l), self.window(l), strict=True):
            k = torch.arange(cells, dtype=torch.float64)
            points.append(p[:, None] + self.stride(l) * (k - self.R(l)) if self.relative else self.stride(l) * k[None])
        return points[0], points[1]

    def on_target(self, border: bool = True) -> tuple[Tensor, Tensor]:
        """Return which level-0 targets lie on the image: masks of rows (H_0 | 1, h_0) and columns (W_0 | 1, w_0).

        A cell is on the image if both its row and its column are. Scores exist up to and including the image's
        border. A match must lie in [0, W) × [0, H), so the mask for matches omits the border (``border=False``).
        """
        rows, columns = (
            (q >= 0) & ((q <= size) if border else (q < size))
            for q, size in zip(self.target_points(0), self.used1, strict=True)
        )
        return rows, columns

    @property
    def pool_reach(self) -> int:
        """η₀/γ₀: max pooling looks at k − reach … k + reach."""
        return self.eta // self.gamma

    def pool_offset(self, l: int) -> int:
        """Return R_l − 2R_{l+1} (0 or −1), or 0 if absolute: cell k of S_{l+1/2} is centred at 2k + offset of S_l."""
        return self.R(l) - 2 * self.R(l + 1) if self.relative else 0

    def child_shifts(self, l: int) -> tuple[int, int]:
        """Return the grid shifts (for ε = −1, ε = +1) from a point of level l+1 to its children at level l.

        The children lie at p + 2^l (δ₀/2) ε: index i + 2^l (δ₀/2α₀) ε + τ_1 [l = 0].
        """
        tau = self.tau(1) if l == 0 else 0.0
        minus, plus = (2**l * self.delta / (2 * self.alpha) * sign + tau for sign in (-1, +1))
        return int(minus), int(plus)

    @property
    def cell_shift(self) -> int:
        """Shift of a child's target point in cells of S_{l+1/2}: δ₀/4γ₀ if absolute, 0 if relative."""
        return 0 if self.relative else self.delta // (4 * self.gamma)

    def links(self, l: int) -> Links:
        """Return the four links from level l+1 down to level l, in the order of ``CORNERS``.

        Each is (row shift, column shift, cell row shift, cell column shift): cell k of point i at level l+1 has
        as its child the cell k + cell shift of S_{l+1/2} at the point i + shift.
        """
        along_axis = dict(zip((-1, +1), self.child_shifts(l), strict=True))
        return [(along_axis[y], along_axis[x], y * self.cell_shift, x * self.cell_shift) for y, x in CORNERS]

    def cells(self, l: int) -> int:
        """Return the number of scores at level l for one pair."""
        return math.prod(self.shape(l))

    def strip(self, *rows: tuple[int, int]) -> "Strip":
        """Return the part of the lowest levels with these rows (first, one past the last) of levels 0, 1, …"""
        return Strip(**{f.name: getattr(self, f.name) for f in fields(Geometry)}, whole=self, rows=rows)


@dataclass(frozen=True, kw_only=True)
class Strip(Geometry):
    """The geometry of some rows of reference points of the lowest levels.

    With it, operators that link these levels can work on a part at a time when memory is short. The strip must contain
    all rows that its rows need: all children of every parent, or all parents of every child.
    """

    whole: Geometry = field(compare=False, repr=False)
    rows: tuple[tuple[int, int], ...]  #: of levels 0, 1, …, first and one past the last

    def __post_init__(self) -> None:
        """Check nothing: the whole geometry was checked."""

    def grid(self, l: int) -> tuple[int, int]:
        return self.rows[l][1] - self.rows[l][0], self.whole.grid(l)[1]

    @property
    def first_cell(self) -> tuple[int, int]:
        row, column = self.whole.first_cell
        return row + self.rows[0][0] * self.alpha // self.gamma, column

    def reference_points(self, l: int) -> tuple[Tensor, Tensor]:
        rows, columns = self.whole.reference_points(l)
        return rows[slice(*self.rows[l])], columns

    def links(self, l: int) -> Links:
        moved = self.rows[l + 1][0] - self.rows[l][0]
        return [(row + moved, column, y, x) for row, column, y, x in self.whole.links(l)]


def overlap(shift: int, outputs: int, sources: int, step: int = 1) -> tuple[slice, slice] | None:
    """Return slices of o and s = step·o + shift such that both lie within their sizes; None if no o does."""
    first = max(0, -(shift // step))  # smallest o with step·o + shift ≥ 0
    last = min(outputs - 1, (sources - 1 - shift) // step)
    if last < first:
        return None
    return slice(first, last + 1), slice(step * first + shift, step * last + shift + 1, step)
