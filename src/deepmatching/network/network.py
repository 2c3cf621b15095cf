"""The U-shaped network (paper, Fig. 2): D → CORR → [MP, AG, PW]×L → [DA, UP, +]×L."""

import math
from copy import copy
from dataclasses import asdict, dataclass, replace
from typing import Any, get_args

import torch
from torch import Tensor, nn
from torch.utils._pytree import register_pytree_node

from deepmatching.errors import DeepMatchingError, check_choice, check_number
from deepmatching.geometry.discretization import Geometry
from deepmatching.io.images import colours_of, has_mask
from deepmatching.kernels.registry import is_exporting
from deepmatching.network.confidence import ConfidenceNetwork
from deepmatching.network.descriptors import Descriptor
from deepmatching.network.inference import Decoding, decode_fused, more_confident
from deepmatching.network.operators import aggregation, correlation, disaggregation, power, summation
from deepmatching.network.operators.decoding import Decoded, decode, mask_off_image
from deepmatching.network.operators.evidence import gather_evidence
from deepmatching.network.operators.masking import Visible, mask_cells, weighed
from deepmatching.network.operators.pooling import HARD, HardPooling, PoolingComponent, SoftPooling
from deepmatching.network.operators.subpixel import refine_to_subpixel, scores_around
from deepmatching.settings import EXPONENT, RADIUS, TEMPERATURE, Pooling

#: Levels with their own exponent and temperature. Patches of up to 999 pixels need six to eight; levels beyond share
#: the last one.
EXPONENTS = 8
SMALLEST_EXPONENT = 0.1  #: of ν_l in training
SMALLEST_SHARPNESS = 1.0  #: of κ in training


@dataclass
class Pyramid:
    """All score volumes of a batch of pairs, differentiable.

    ``S[l]`` and ``Q[l]`` have shape (B, H_l, W_l, h_l, w_l), and ``geometry`` says where each score lies. ``Q[0]`` is
    −∞ on cells that no path reaches and off the target image.
    """

    geometry: Geometry
    S: list[Tensor]
    Q: list[Tensor]
    sharpness: Tensor | None = None  #: κ of the network, for losses
    cells: tuple[Tensor, Tensor] | None = None  #: the descriptors of both images, for the confidence


def _geometry_from(fields: dict[str, Any]) -> Geometry:
    values: dict[str, Any] = {name: tuple(v) if isinstance(v, list) else v for name, v in fields.items()}
    return Geometry(**values)


register_pytree_node(  # for ``torch.export``
    Pyramid,
    lambda pyramid: ([pyramid.S, pyramid.Q, pyramid.sharpness, pyramid.cells], pyramid.geometry),
    lambda values, geometry: Pyramid(geometry, *values),
    serialized_type_name="deepmatching.Pyramid", to_dumpable_context=asdict, from_dumpable_context=_geometry_from,
)  # fmt: skip


class Network(nn.Module):
    """Images in, score volumes out.

    Args:
        descriptor: φ. Its stride is γ₀. A level-0 patch is as many strides wide as the descriptor's patch has cells,
            and at least four; that is δ₀, and the step α₀ of the grid.
        radius: R in pixels, or None for no limit.
        levels: L, or None for the original's rule.
        exponent: initial ν of every level. Level 0 has one too, as in the original program. For the paper's eq. (2) to
            the letter, set ``exponents[0] = 1`` under ``torch.no_grad()``.
        sharpness: initial κ of sub-pixel matches (``network.operators.subpixel``), or None for matches on cells only.
        confidence: the network that judges the matches, or None.
        pooling: ``hard`` (the paper's max pooling and unpooling); ``soft``, with which every cell of Q_0 has a score
            and a gradient (see ``deepmatching.network.operators.soft_pooling``); or a component of your own (see
            :class:`~deepmatching.network.operators.pooling.PoolingComponent`).
        temperature: initial β of every level of soft pooling; the higher, the harder.
    """

    exponents: nn.Parameter
    sharpness: nn.Parameter | None
    log_temperatures: nn.Parameter | None
    confidence: ConfidenceNetwork | None
    own_pooling: PoolingComponent | None  #: the user's component, in place of hard or soft pooling

    def __init__(
        self,
        descriptor: Descriptor,
        radius: int | None = RADIUS,
        levels: int | None = None,
        exponent: float = EXPONENT,
        sharpness: float | None = None,
        confidence: ConfidenceNetwork | None = None,
        pooling: Pooling | PoolingComponent = "hard",
        temperature: float = TEMPERATURE,
    ) -> None:
        super().__init__()
        check_descriptor(descriptor)
        self.descriptor, self.confidence = descriptor, confidence
        self.radius, self.levels = radius, levels
        self.other_model: str | None = None  #: model of a second attempt; None for this one, see ``Settings.auto``
        self.exponents = nn.Parameter(torch.full((EXPONENTS,), float(exponent)))
        kappa = None if sharpness is None else nn.Parameter(torch.tensor(float(sharpness)))
        self.register_parameter("sharpness", kappa)
        self.register_parameter("log_temperatures", None)
        self.use_pooling(pooling, temperature)

    @property
    def pooling(self) -> Pooling | PoolingComponent:
        """How scores are pooled: ``hard``, ``soft`` if the network has temperatures, or the user's component."""
        if self.own_pooling is not None:
            return self.own_pooling
        return "hard" if self.log_temperatures is None else "soft"

    @property
    def pooling_component(self) -> PoolingComponent:
        """What pools and unpools scores."""
        if self.own_pooling is not None:
            return self.own_pooling
        return HARD if self.log_temperatures is None else SoftPooling(self.log_temperatures)

    @property
    def is_fusable(self) -> bool:
        """Whether the fused operators compute what this network does: with hard pooling, unless a subclass differs."""
        stages = ("first_scores", "fine_to_coarse", "coarse_to_fine", "pooling", "pooling_component")
        is_hard = type(self.pooling_component) is HardPooling
        return is_hard and all(getattr(type(self), name) is getattr(Network, name) for name in stages)

    def use_pooling(self, pooling: Pooling | PoolingComponent, temperature: float = TEMPERATURE) -> None:
        """Change how scores are pooled; only ``soft`` keeps the temperatures that the network has."""
        self.own_pooling = pooling if isinstance(pooling, PoolingComponent) else None
        if self.own_pooling is None:
            check_choice("pooling", pooling, get_args(Pooling))
        check_number("temperature", temperature, above=0)
        if pooling != "soft":
            self.log_temperatures = None
        elif self.log_temperatures is None:
            self.log_temperatures = nn.Parameter(torch.full_like(self.exponents, math.log(temperature)))

    @torch.no_grad()
    def keep_positive(self) -> None:
        """Clamp exponents and sharpness to positive values after an optimiser step."""
        self.exponents.clamp_(min=SMALLEST_EXPONENT)
        if self.sharpness is not None:
            self.sharpness.clamp_(min=SMALLEST_SHARPNESS)

    def geometry(self, size0: tuple[int, int], size1: tuple[int, int]) -> Geometry:
        """Return the discretisation for images of these sizes (rows, columns)."""
        downscale, patch = self.descriptor.stride.bit_length() - 1, self.descriptor.cells_of_patch
        return Geometry.for_downscale(size0, size1, downscale, self.radius, self.levels, patch)

    def geometry_of(self, image0: Tensor, image1: Tensor) -> Geometry:
        """Return the discretisation for two batches of images; raise if these are not two batches of images."""
        check_images(image0, image1)
        return self.geometry((image0.shape[2], image0.shape[3]), (image1.shape[2], image1.shape[3]))

    def forward(self, image0: Tensor, image1: Tensor) -> Pyramid:
        """Compute all score volumes of images (B, 1 or 3, H, W) with values in [0, 1]; the two sizes may differ.

        The volumes take much memory: :func:`~deepmatching.network.memory.require_pyramid` says whether they fit.
        """
        geometry = self.geometry_of(image0, image1)
        cells0, cells1 = self.describe(image0, image1, geometry)
        S_0 = self.first_scores(cells0, cells1, geometry)
        S, switches = self.fine_to_coarse(S_0, geometry)
        return Pyramid(geometry, S, self.coarse_to_fine(S, switches, geometry), self.sharpness, (cells0, cells1))

    @torch.no_grad()
    def decode(
        self,
        image0: Tensor,
        image1: Tensor,
        decoding: Decoding = Decoding(),  # noqa: B008 - frozen
        geometry: Geometry | None = None,
        exponents: list[float] | None = None,
    ) -> Decoded:
        """Match a batch of pairs: the arg-max of Q_0, without Q_0 (see ``deepmatching.network.inference``).

        Other than hard pooling needs all volumes, and the options ``half`` and ``tiling`` have no effect on it. A
        caller may have the geometry of the two images, and the exponents ν_l as numbers: reading them waits for a GPU.
        """
        geometry = geometry or self.geometry_of(image0, image1)
        if has_mask(image0) or has_mask(image1):
            decoding = replace(decoding, masked=True)
        cells0, cells1 = self.describe(image0, image1, geometry)
        return self.decode_descriptors(cells0, cells1, geometry, decoding, exponents)

    @torch.no_grad()
    def decode_descriptors(
        self,
        cells0: Tensor,
        cells1: Tensor,
        geometry: Geometry,
        decoding: Decoding = Decoding(),  # noqa: B008 - frozen
        exponents: list[float] | None = None,
    ) -> Decoded:
        """Match as :meth:`decode` does, from the descriptors that :meth:`describe` gives."""
        nu, few, geometries = exponents or self.exponents.tolist(), decoding.fewer_levels, [geometry]
        if few is not None and few < geometry.L and self.confidence is not None and decoding.confidence:
            geometries.insert(0, replace(geometry, levels=few))
        found = zip(self._decode_to_grid(cells0, cells1, geometries, decoding, nu), geometries, strict=True)
        *few_matches, matches = [self.finish_matches(d, cells0, cells1, own, decoding, nu) for d, own in found]
        return more_confident(matches, few_matches[0]) if few_matches else matches

    @torch.no_grad()
    def finish_matches(
        self,
        decoded: Decoded,
        cells0: Tensor,
        cells1: Tensor,
        geometry: Geometry,
        decoding: Decoding = Decoding(),  # noqa: B008 - frozen
        exponents: list[float] | None = None,
    ) -> Decoded:
        """Move matches between the cells and estimate their confidence, if the options say so and the network can."""
        nu = exponents or self.exponents.tolist()
        sharpness = self.sharpness if decoding.subpixel else None
        has_confidence = self.confidence is not None and decoding.confidence
        if sharpness is None and not has_confidence:
            return decoded
        if decoding.tiling.is_split(geometry) and decoding.between_strips:
            decoding.between_strips()
        visible = self._visible(cells0, cells1, geometry, decoding, nu)
        around = scores_around(decoded, cells0, cells1, geometry, self.descriptor.patch, nu[0])
        if visible is not None:
            around = visible.around(around, decoded, geometry)
        if sharpness is not None:
            decoded = refine_to_subpixel(decoded, around, geometry, sharpness)
        if not has_confidence:
            return decoded
        claims = decoded.verified
        if decoding.reciprocal != "bins":  # those that the confidence network was trained on
            bins = replace(decoding, reciprocal="bins")
            claims = self._decode_to_grid(cells0, cells1, [geometry], bins, nu)[0].verified
        logits = self.estimate_confidence(decoded._replace(verified=claims), around, cells0, cells1, geometry)
        right, occluded = logits.sigmoid().unbind(1)
        judged = decoded._replace(confidence=right, occluded=occluded)
        return judged if visible is None else visible.judged(judged)

    def _visible(
        self, cells0: Tensor, cells1: Tensor, geometry: Geometry, decoding: Decoding, nu: list[float]
    ) -> Visible | None:
        """Return what masked descriptors leave to be matched; None if there are no masks."""
        return Visible.of(cells0, cells1, geometry, self.descriptor.patch, nu) if decoding.masked else None

    def _decode_to_grid(
        self, cells0: Tensor, cells1: Tensor, geometries: list[Geometry], decoding: Decoding, exponents: list[float]
    ) -> list[Decoded]:
        """Match to cells with each geometry, without sub-pixel refinement and confidence; see :func:`decode_fused`."""
        visible = self._visible(cells0, cells1, geometries[-1], decoding, exponents)
        if self.is_fusable:
            return decode_fused(cells0, cells1, geometries, self.descriptor.patch, exponents, decoding, visible)
        S_0 = self.first_scores(cells0, cells1, geometries[-1])
        masked = () if visible is None else (visible,)  # subclasses need not know of masks
        S, switches = self.fine_to_coarse(weighed(S_0, visible, geometries[-1], 0), geometries[-1], *masked)
        found = []
        for own in geometries:
            Q_0 = self.coarse_to_fine(S[: own.L + 1], switches[: own.L], own)[0]
            Q_0 = Q_0 if visible is None else visible.leave_out_of_all(Q_0, own)
            found.append(decode(Q_0, own, decoding.reciprocal))
        return found

    def estimate_confidence(
        self, decoded: Decoded, around: Tensor, cells0: Tensor, cells1: Tensor, geometry: Geometry
    ) -> Tensor:
        """Return logits (B, 2, H_0, W_0) of "the match is right" and "the point is occluded".

        The matches must be verified by ``bins``; for ``around`` see ``network.operators.subpixel.scores_around``.
        """
        if self.confidence is None:
            raise DeepMatchingError("This network has no confidence: train it with `deepmatching train confidence`.")
        evidence = gather_evidence(decoded, around, cells0, cells1, geometry, self.descriptor.patch)
        return self.confidence(evidence, decoded.points1, cells0, cells1, geometry)

    def first_scores(self, cells0: Tensor, cells1: Tensor, geometry: Geometry) -> Tensor:
        """Compute CORR and the level-0 power: S_0, (B, H_0, W_0, h_0, w_0)."""
        return power(correlation(cells0, cells1, geometry, self.descriptor.patch), self.exponent(0))

    def describe(self, image0: Tensor, image1: Tensor, geometry: Geometry) -> tuple[Tensor, Tensor]:
        """Compute D, the descriptors of both images: (B, C, h0, w0) and (B, C, h1, w1)."""
        if image0.is_cuda and image0.shape == image1.shape:  # one batch fills a GPU better than two
            return self.describe_image(torch.cat([image0, image1]), geometry.used0).chunk(2)  # type: ignore[return-value]
        return self.describe_image(image0, geometry.used0), self.describe_image(image1, geometry.used1)

    def describe_image(self, image: Tensor, used: tuple[int, int]) -> Tensor:
        """Compute D of the part of images (B, 1 or 3, H, W) that is used, ``Geometry.used0`` or ``used1``."""
        image = image[:, :, : used[0], : used[1]]
        colours = colours_of(image)
        cells = self.descriptor(colours)
        check_cells(cells, colours, self.descriptor)
        if not has_mask(image):
            return cells
        return mask_cells(cells, image[:, -1:], self.descriptor.stride, self.descriptor.patch)

    def at_radius(self, radius: int | None) -> "Network":
        """Return the same network with another radius; the two share their parameters."""
        other = copy(self)
        other.radius = radius
        return other

    def exponent(self, l: int) -> Tensor:
        """Return ν_l; levels beyond the last exponent share it."""
        return self.exponents[min(l, len(self.exponents) - 1)]

    def fine_to_coarse(
        self, S_0: Tensor, geometry: Geometry, visible: Visible | None = None
    ) -> tuple[list[Tensor], list[Any]]:
        """Run stage 1 of the paper: S_0 … S_L and the switches m_0 … m_{L−1}, or what else unpooling needs."""
        pooling, S, kept = self.pooling_component, [S_0], []
        for l in range(geometry.L):
            pooled, m = pooling.pool(S[l], geometry, l)
            mean = aggregation(pooled, geometry.grid(l + 1), geometry.links(l))
            del pooled
            S.append(weighed(power(mean, self.exponent(l + 1)), visible, geometry, l + 1))
            kept.append(m)
        return S, kept

    def coarse_to_fine(self, S: list[Tensor], kept: list[Any], geometry: Geometry) -> list[Tensor]:
        """Run stage 2 of the paper: Q_0 … Q_L, computed from Q_L = S_L down."""
        pooling, Q = self.pooling_component, [S[-1]]
        for l in reversed(range(geometry.L)):
            above = disaggregation(Q[0], geometry.grid(l), geometry.links(l))
            above = pooling.unpool(above, kept[l], S[l], geometry, l)
            Q.insert(0, summation(S[l], above))
        Q[0] = mask_off_image(Q[0] if geometry.L else Q[0].clone(), geometry)
        return Q


def check_descriptor(descriptor: Descriptor) -> None:
    """Raise unless a descriptor, perhaps a user's own, declares cells that a grid can have."""
    name = type(descriptor).__name__
    values: list[Any] = [getattr(descriptor, each, None) for each in ("stride", "patch", "channels")]
    if not all(isinstance(value, int) and value > 0 for value in values):
        found = "stride={}, patch={} and channels={}".format(*values)
        raise DeepMatchingError(f"The descriptor {name} must set whole numbers above 0, not {found}.")
    stride, patch, _ = values
    if stride & (stride - 1):
        helps = "resample its features, as Tokens in examples/extension does"
        raise DeepMatchingError(f"The stride of {name} must be a power of two, not {stride}: {helps}.")
    if patch > 1 and patch % 2:
        raise DeepMatchingError(f"The patch of {name} must be 1 or an even number of cells, not {patch}.")


def check_images(image0: Tensor, image1: Tensor) -> None:
    """Raise unless these are two batches of images that can be matched."""
    for name, image in (("image0", image0), ("image1", image1)):
        if image.ndim != 4 or image.shape[1] not in (1, 3):
            words = f"{name} must be a batch of images of shape (B, 1 or 3, H, W)"
            raise DeepMatchingError(f"{words}, not {tuple(image.shape)}.")
        if not image.is_floating_point():
            raise DeepMatchingError(f"{name} must hold floating-point values in [0, 1], not {image.dtype}.")
    kinds = [f"{image.dtype} on {image.device}" for image in (image0, image1)]
    if kinds[0] != kinds[1]:
        raise DeepMatchingError(f"The two batches must be of one type on one device, not {' and '.join(kinds)}.")
    if not len(image0):
        raise DeepMatchingError("The batches are empty: give at least one pair.")
    if len(image0) != len(image1):
        counts = f"{len(image0)} and {len(image1)}"
        raise DeepMatchingError(f"The two batches must have the same number of images, not {counts}.")


def check_cells(cells: Tensor, image: Tensor, descriptor: Descriptor) -> None:
    """Raise if a descriptor, perhaps a user's own, does not return what it declares."""
    name, stride, patch, channels = type(descriptor).__name__, descriptor.stride, descriptor.patch, descriptor.channels
    rows, columns = (side // stride + (patch == 1) for side in image.shape[2:])
    expected = (image.shape[0], channels, rows, columns)
    if tuple(cells.shape) != expected:
        words = f"The descriptor {name} gives {tuple(cells.shape)} for images {tuple(image.shape)}"
        why = f"{channels=}, {stride=} and {patch=}"
        raise DeepMatchingError(f"{words}, but with {why} that must be {expected}: change one of them.")
    if cells.device.type != "cpu" or torch.is_grad_enabled() or is_exporting():
        return  # looking at the values would wait for a GPU, and an export has none; training skips such steps
    if not cells.sum(dtype=torch.promote_types(cells.dtype, torch.float32)).isfinite():
        raise DeepMatchingError(f"The descriptor {name} gives values that are not finite: check its parameters.")
