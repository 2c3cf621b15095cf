"""Matching pictures by a network: one pair, many pairs, or the frames of a sequence."""

import os
import warnings
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import pairwise
from typing import Any, Self

import torch
from torch import Tensor

from deepmatching.errors import (
    DeepMatchingError,
    OutOfMemoryError,
    check_frame_size,
    check_iterable,
    check_number,
    check_type,
    failed_allocations,
)
from deepmatching.flow.matching import Frame, Matching, consecutive
from deepmatching.flow.settings import FlowSettings
from deepmatching.geometry.cycles import cycle_errors
from deepmatching.geometry.discretization import Geometry
from deepmatching.geometry.strips import WHOLE, Tiling
from deepmatching.io.images import (
    ImageLike,
    OnError,
    PairLike,
    batches_of_equal_sizes,
    colours_of,
    has_mask,
    load_image,
    shrink,
    shrunk_size,
    size_of,
    stacked,
)
from deepmatching.io.masks import MaskLike, is_usable, remember_alpha, usable_share, with_alpha, with_mask
from deepmatching.kernels.limits import release_freed
from deepmatching.kernels.registry import has_kernels
from deepmatching.matches import NO_MATCHES, Matches
from deepmatching.models import load_network, save_network
from deepmatching.network.inference import Decoding
from deepmatching.network.memory import Plan, Size, Work, budget_for, plan_decoding, plan_flow
from deepmatching.network.network import Network
from deepmatching.network.operators.decoding import Decoded
from deepmatching.network.replay import GraphedDecode, GraphedDescribe
from deepmatching.search import doubt, has_failed, search, wide
from deepmatching.settings import FULL, MIN_CONFIDENCE, MODEL, Settings, choose_device

#: The warning of matches that are probably wrong; always the same, so that Python shows it once.
_PROBABLY_WRONG = "These matches are probably wrong: see their expected_correct and agreement, and docs/confidence.md."


class PairMatcher:
    """Finds quasi-dense matches between two images."""

    def __init__(self, network: Network, settings: Settings | None = None) -> None:
        self.settings = settings or Settings()
        if self.settings.half and network.pooling != "hard":
            raise DeepMatchingError("Half precision is for hard pooling: leave it off, or set pooling to 'hard'.")
        self.device = choose_device(self.settings.device)
        if self.settings.half and not (self.device.type == "cuda" and has_kernels("cuda")):
            raise DeepMatchingError("Half precision needs a CUDA device and Triton: leave it off.")
        self.network = network.to(self.device).eval()
        self._reset()

    @classmethod
    def from_pretrained(cls, model: str | os.PathLike[str] = MODEL, **settings: Any) -> Self:
        """Return the matcher of a model's name or file, with any of the :class:`Settings` by keyword."""
        own = Settings.of(**settings)
        return cls(load_network(model, own.matching_radius, own.levels, own.downscale, own.pooling), own)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the model to a ``.safetensors`` file that ``from_pretrained`` reads."""
        save_network(self.network, path)

    def describe(self) -> dict[str, Any]:
        """Return the settings that results depend on, JSON-serializable."""
        return self.settings.describe()

    def __repr__(self) -> str:
        radius = FULL if self.network.radius is None else f"{self.network.radius} px"
        return f"{type(self).__name__}({self.network.descriptor.__class__.__name__}, radius {radius}, on {self.device})"

    def to(self, device: str | torch.device) -> Self:
        """Move this matcher to another device, in place, as modules do, and return it."""
        self.settings = replace(self.settings, device=device)
        self.device = choose_device(device)
        self.network.to(self.device)
        self._reset()
        return self

    def _reset(self) -> None:
        """Drop what can be made again: the recorded graphs, and the matcher of a second attempt."""
        self._decode = GraphedDecode(self.network)
        self._describe = GraphedDescribe(self.network)
        self._wide: PairMatcher | None = None
        self._may_shrink_radius = False  # the user set no radius, so flow may choose a smaller one

    def __reduce__(self) -> "tuple[type[Self], tuple[Network, Settings]]":
        """Return what pickling and copying keep: CUDA graphs cannot be copied."""
        return type(self), (self.network, self.settings)

    def __call__(self, image0: ImageLike, image1: ImageLike) -> Matches | list[Matches]:
        """Match as :meth:`match` does. Two batches of images (B, C, H, W) give a list of B."""
        if not (isinstance(image0, Tensor) and isinstance(image1, Tensor) and image0.ndim == image1.ndim == 4):
            return self.match(image0, image1)
        if len(image0) != len(image1):
            raise DeepMatchingError(f"The batches must have equal numbers of images: {len(image0)}, {len(image1)}.")
        return list(self.match_pairs(zip(image0, image1, strict=True), batch_size=max(1, len(image0))))

    def match(
        self,
        image0: ImageLike,
        image1: ImageLike,
        *,
        mask0: MaskLike = None,
        mask1: MaskLike = None,
        both: bool = False,
    ) -> Matches:
        """Return the matches between two images, in raster order of the first: those that are verified.

        If the model judges its matches and ``reciprocal`` is ``bins``, unverified ones with a confidence of at least
        ``deepmatching.settings.MIN_CONFIDENCE`` are kept as well. If few are right, see ``Settings.auto``.

        An image is a path, a PIL image, an array (rows, columns[, channels]) or a tensor (channels, rows, columns)
        with floating-point values in [0, 1]. Sizes may differ.

        A mask is a picture of its image's size, or an array or tensor (rows, columns): no match starts or ends where it
        is False or 0, and these pixels do not vote for other matches. See docs/masks.md.

        With ``both``, the second image is matched to the first as well, which takes twice the time, and the matches
        have a ``cycle_error``: how far from its start the way forward and back ends. See ``Matches.filter``.
        """
        check_type("both", both, bool)
        if not both:
            return next(self.match_pairs([(image0, image1, mask0, mask1)]))
        first, second = self.load_pair((image0, image1, mask0, mask1))
        forward, back = self.match_pairs([(first, second), (second, first)])
        ways = *forward.numpy()[:2], *back.numpy()[:2], back.certainty.detach().cpu().numpy()
        return replace(forward, cycle_error=torch.from_numpy(cycle_errors(*ways)).to(forward.scores))

    def match_pairs(
        self, pairs: Iterable[PairLike], batch_size: int = 1, on_error: OnError | None = None
    ) -> Iterator[Matches]:
        """Yield the matches of many pairs, one after the other. Consecutive pairs of equal sizes share a batch.

        A pair is ``(image0, image1)`` or, with masks, ``(image0, image1, mask0, mask1)``; a mask may be None.

        The matches do not depend on ``batch_size``, except for rounding: PyTorch may sum the convolutions of a batch in
        another order, which moves matches between cells by less than 0.001 px.

        ``on_error`` gets the number of a pair that cannot be read, counted from 0, and the error. The pair then has no
        matches, and the work goes on. Without ``on_error``, such an error ends the work.
        """
        check_number("batch_size", batch_size, minimum=1, whole=True)
        check_iterable("pairs", pairs)
        for batch in batches_of_equal_sizes(pairs, self.load_pair, batch_size, on_error):
            if batch is None:
                yield NO_MATCHES
                continue
            geometry = self.geometry(*map(size_of, batch[0]))
            for matches, pair in zip(self._match_batch(batch, geometry), batch, strict=True):
                found = self.or_wide(matches, *pair)
                if doubt(found):
                    warnings.warn(_PROBABLY_WRONG, stacklevel=2)
                yield found

    def _match_batch(self, batch: list[tuple[Tensor, Tensor]], geometry: Geometry) -> Iterator[Matches]:
        """Yield the matches of loaded pairs of equal sizes, however few are right."""
        if self.settings.searches:
            return (yield from (self.searched(*pair) for pair in batch))
        size0, size1 = (size_of(image) for image in batch[0])
        plan = self._plan(geometry, len(batch), (size0, size1))
        decoding = self.decoding(plan.tiling, any(map(has_mask, batch[0])))
        for start in range(0, len(batch), plan.batch):
            part = batch[start : start + plan.batch]
            image0, image1 = (stacked([self._shrunk(pair[i]) for pair in part]).to(self.device) for i in (0, 1))
            with failed_allocations():
                decoded = self._decode(image0, image1, geometry, decoding, plan.needed)
            for matches, pair in zip(self.matches_of(decoded, geometry), part, strict=True):
                yield unmasked_matches(matches.at_sizes(size0, size1), *pair)

    def _plain_match(self, image0: Tensor, image1: Tensor, network: Network | None = None) -> Matches:
        """Match two loaded images, by another network if one is given, without a search and without a warning."""
        plain = PairMatcher(network or self.network, self.settings.without_search())
        return next(plain._match_batch([(image0, image1)], plain.geometry(size_of(image0), size_of(image1))))

    def or_wide(self, matches: Matches, image0: Tensor, image1: Tensor) -> Matches:
        """Return these matches of two loaded images; or, if few are right, those of a wide search, if they are more."""
        return self.wide_matches(image0, image1, matches.expected_fraction) or matches

    def wide_matches(self, image0: Tensor, image1: Tensor, expected: float) -> Matches | None:
        """Return what a wide search finds in two loaded images where this fraction of the points has a right match.

        None if that is not so few that the settings ask for one, if it finds no more, or if memory is short.
        """
        if has_failed(self.settings, expected):
            with suppress(OutOfMemoryError):
                found = self._wide_matcher().searched(image0, image1)
                return found if found.expected_fraction > expected else None
        return None

    def _wide_matcher(self) -> "PairMatcher":
        """Return the matcher of a wide search; its model is the one for photographs if this is the default one."""
        if self._wide is None:
            own, other = self.settings, self.network.other_model
            network = self.network.at_radius(None)
            if other is not None:
                network = load_network(other, None, own.levels, own.downscale, own.pooling)
            self._wide = PairMatcher(network, wide(own))
        return self._wide

    def searched(self, image0: Tensor, image1: Tensor) -> Matches:
        """Return the matches of a pair with the best of the settings' transformations at every point."""
        shrunk = self._shrunk(image0), self._shrunk(image1)
        tried = self.settings.transformations
        found = search(*shrunk, self.network, self._plain_match, tried, (image0, image1))
        return unmasked_matches(found.at_sizes(size_of(image0), size_of(image1)), image0, image1)

    def decoding(self, tiling: Tiling = WHOLE, masked: bool = False) -> Decoding:
        """Return the options of inference among the settings, for scores in these pieces, and images with masks."""
        own = self.settings
        return Decoding(own.reciprocal, own.half, own.subpixel, tiling, masked=masked, between_strips=release_freed)

    @torch.no_grad()
    def decode_described(
        self,
        pairs: Sequence[tuple[Tensor, Tensor]],
        size0: tuple[int, int],
        size1: tuple[int, int],
        masked: bool = False,
    ) -> Iterator[Decoded]:
        """Yield the matches of pairs from their descriptors, as many at once as memory allows, not waiting for a GPU.

        The descriptors, (1, C, h, w), are on this matcher's device; the sizes (rows, columns) are those of all first
        and all second images, before ``max_size`` reduces them. ``masked`` says that some images may have masks.
        """
        geometry = self.geometry(size0, size1)
        plan = self._plan(geometry, len(pairs), (size0, size1))
        decoding = self.decoding(plan.tiling, masked)
        for start in range(0, len(pairs), plan.batch):
            part = pairs[start : start + plan.batch]
            cells0, cells1 = part[0] if len(part) == 1 else map(torch.cat, zip(*part, strict=True))
            with failed_allocations():
                decoded = self._decode.of_descriptors(cells0, cells1, geometry, decoding, plan.needed)
            yield decoded

    def geometry(self, size0: tuple[int, int], size1: tuple[int, int]) -> Geometry:
        """Return the geometry in which images of these sizes (rows, columns) are matched."""
        return self.network.geometry(*(shrunk_size(size, self.settings.max_size) for size in (size0, size1)))

    def load(self, image: ImageLike, name: str = "image") -> Tensor:
        """Return the image as (channels, rows, columns) float32 in [0, 1], at its own size."""
        loaded = load_image(image, name, self.settings.bit_depth)
        return remember_alpha(loaded, image, name) if self.settings.use_alpha else loaded

    def load_pair(self, pair: PairLike) -> tuple[Tensor, Tensor]:
        """Load two images and, if there are any, their masks, which then become one more channel of each."""
        images = [self.load(image, f"image{i}") for i, image in enumerate(pair[:2])]
        images = [with_alpha(image) for image in images] if self.settings.use_alpha else images
        masks = pair[2:] or (None, None)
        first, second = (with_mask(images[i], mask, f"mask{i}") for i, mask in enumerate(masks))
        return first, second

    def _shrunk(self, image: Tensor) -> Tensor:
        return shrink(image, self.settings.max_size)

    def _plan(self, geometry: Geometry, batch: int, sizes: tuple[Size, Size], flow: FlowSettings | None = None) -> Plan:
        """Plan matching, and what follows for a ``flow`` of these settings, within the memory that may be used."""
        work, budget = Work.of(self.network, geometry, self.device.type), budget_for(self.device, self.settings.memory)
        if flow is None:
            return plan_decoding(work, batch, budget, sizes)
        work = replace(work, fewer_levels=flow.fewer_levels)
        return plan_flow(work, budget, sizes)

    def match_sequence(self, frames: Iterable[ImageLike]) -> Iterator[Matches]:
        """Yield the matches of every frame with the next one. Each frame is described once.

        Frames must be of one size. They are read one at a time, so they may come from a generator.
        """
        check_iterable("frames", frames)
        loaded = self._frames(frames)
        if self.settings.searches or self.settings.use_alpha:
            return (yield from self._without_auto().match_pairs(pairwise(loaded)))
        for first, second, matching in consecutive(loaded, self._matching, self._frame):
            with failed_allocations():
                decoded = matching.decode(first, second)
            yield self.matches_of(decoded, matching.geometry)[0].at_sizes(first.size, second.size)

    def _frames(self, frames: Iterable[ImageLike]) -> Iterator[Tensor]:
        """Load the frames of a sequence one at a time; raise unless they are of one size."""
        size: Size | None = None
        for number, image in enumerate(frames):
            frame = self.load(image, f"frame {number}")
            size = check_frame_size(number, size, size_of(frame))
            yield frame

    def _without_auto(self) -> Self:
        """Return a matcher of the same network that does not search where matches fail; see ``Settings.auto``."""
        return type(self)(self.network, replace(self.settings, auto=False))

    def _matching(self, size0: Size, size1: Size, flow: FlowSettings | None = None, masked: bool = False) -> Matching:
        """Return how two images of these sizes are matched, or matched for a ``flow`` of these settings."""
        geometry = self.geometry(size0, size1)
        decoding = self.decoding(self._plan(geometry, 1, (size0, size1), flow).tiling, masked)
        return Matching(self.network, geometry, decoding, self._may_shrink_radius)

    @torch.no_grad()
    @failed_allocations()
    def _frame(self, image: Tensor, matching: Matching) -> Frame:
        shrunk = self._shrunk(image)
        there, used = shrunk.to(self.device), matching.geometry.used(size_of(shrunk))
        cells = self._describe(there[None], used)
        return Frame(colours_of(shrunk), colours_of(there), cells, size_of(image))

    def matches_of(self, decoded: Decoded, geometry: Geometry) -> list[Matches]:
        """Return the matches of each pair of a batch that are given out; see :meth:`match`."""
        least = MIN_CONFIDENCE if self.settings.reciprocal == "bins" else 0.0
        return Matches.from_decoded(decoded, geometry.size0, geometry.size1, least)


def unmasked_matches(matches: Matches, image0: Tensor, image1: Tensor) -> Matches:
    """Return the matches that neither start nor end where loaded images of these sizes are masked."""
    if not (has_mask(image0) or has_mask(image1)):
        return matches
    kept = matches[is_usable(image0, matches.keypoints0) & is_usable(image1, matches.keypoints1)]
    if matches.transformations is not None or matches.reference_points is None:  # a search has counted them
        return kept
    expected = round(matches.reference_points * usable_share(image0, image1))  # the grid need not share evenly
    return replace(kept, reference_points=max(len(kept), expected))
