"""DeepMatcher: pictures in, matches or flow out."""

import os
import time
import warnings
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from torch import Tensor

from deepmatching.errors import (
    DeepMatchingError,
    OutOfMemoryError,
    check_number,
    check_size,
    check_type,
    failed_allocations,
)
from deepmatching.flow.edges import EdgesLike, is_edge_map
from deepmatching.flow.matching import Frame, Matching, consecutive, flow_radius
from deepmatching.flow.pipeline import FlowGraphs, check_pair, flow_between, matches_to_flow, searched_to_flow
from deepmatching.flow.result import FlowResult
from deepmatching.flow.settings import FlowSettings
from deepmatching.flow.settings import preset as settings_of
from deepmatching.geometry.discretization import Geometry
from deepmatching.geometry.strips import WHOLE, Tiling
from deepmatching.io.images import (
    ImageLike,
    OnError,
    batches_of_equal_sizes,
    load_image,
    shrink,
    shrunk_size,
    size_of,
    stacked,
)
from deepmatching.kernels.limits import release_freed
from deepmatching.kernels.registry import has_kernels
from deepmatching.matches import NO_MATCHES, Matches
from deepmatching.models import load_network, save_network
from deepmatching.network.inference import Decoding
from deepmatching.network.inspection import draw_scores
from deepmatching.network.memory import Plan, Size, Work, budget_for, plan_decoding, plan_flow
from deepmatching.network.network import Network
from deepmatching.network.operators.decoding import Decoded
from deepmatching.network.replay import GraphedDecode, GraphedDescribe
from deepmatching.search import doubt, expected_fraction, find, has_failed, search, wide
from deepmatching.settings import FULL, MIN_CONFIDENCE, MODEL, PRESET, Radius, Settings, choose_device

#: The warning of matches that are probably wrong; always the same, so that Python shows it once.
_PROBABLY_WRONG = "These matches are probably wrong: see their expected_correct and agreement, and docs/confidence.md."


class DeepMatcher:
    """Finds quasi-dense matches between two images, and the flow.

    >>> matcher = DeepMatcher.from_pretrained(radius=80)
    >>> matches = matcher.match("a.png", "b.png")
    """

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
    def from_pretrained(cls, model: str | os.PathLike[str] = MODEL, **settings: Any) -> "DeepMatcher":
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
        return f"DeepMatcher({self.network.descriptor.__class__.__name__}, radius {radius}, on {self.device})"

    def to(self, device: str | torch.device) -> "DeepMatcher":
        """Move this matcher to another device, in place, as modules do, and return it."""
        self.settings = replace(self.settings, device=device)
        self.device = choose_device(device)
        self.network.to(self.device)
        self._reset()
        return self

    def _reset(self) -> None:
        """Drop what can be made again: the recorded graphs, and the matchers for flow."""
        self._decode = GraphedDecode(self.network)
        self._flow_graphs = FlowGraphs(self.network)
        self._describe = GraphedDescribe(self.network)
        self._for_flow: dict[tuple[int | None, bool], DeepMatcher] = {}  # these share this network
        self._may_shrink_radius = False  # the user set no radius, so flow may choose a smaller one

    def __reduce__(self) -> "tuple[type[DeepMatcher], tuple[Network, Settings]]":
        """Return what pickling and copying keep: CUDA graphs cannot be copied."""
        return DeepMatcher, (self.network, self.settings)

    def __call__(self, image0: ImageLike, image1: ImageLike) -> Matches | list[Matches]:
        """Match as :meth:`match` does. Two batches of images (B, C, H, W) give a list of B."""
        if not (isinstance(image0, Tensor) and isinstance(image1, Tensor) and image0.ndim == image1.ndim == 4):
            return self.match(image0, image1)
        if len(image0) != len(image1):
            raise DeepMatchingError(f"The batches must have equal numbers of images: {len(image0)}, {len(image1)}.")
        return list(self.match_pairs(zip(image0, image1, strict=True), batch_size=max(1, len(image0))))

    def match(self, image0: ImageLike, image1: ImageLike) -> Matches:
        """Return the matches between two images, in raster order of the first: those that are verified.

        If the model judges its matches and ``reciprocal`` is ``bins``, unverified ones with a confidence of at least
        ``deepmatching.settings.MIN_CONFIDENCE`` are kept as well. If few are right, see ``Settings.auto``.

        An image is a path, a PIL image, an array (rows, columns[, channels]) or a tensor (channels, rows, columns)
        with floating-point values in [0, 1]. Sizes may differ.
        """
        return next(self.match_pairs([(image0, image1)]))

    def match_pairs(
        self, pairs: Iterable[tuple[ImageLike, ImageLike]], batch_size: int = 1, on_error: OnError | None = None
    ) -> Iterator[Matches]:
        """Yield the matches of many pairs, one after the other. Consecutive pairs of equal sizes share a batch.

        The matches do not depend on ``batch_size``, except for rounding: PyTorch may sum the convolutions of a batch in
        another order, which moves matches of ``vgg`` and ``compact`` between cells by less than 0.001 px.

        ``on_error`` gets the number of a pair that cannot be read, counted from 0, and the error. The pair then has no
        matches, and the work goes on. Without ``on_error``, such an error ends the work.
        """
        check_number("batch_size", batch_size, minimum=1, whole=True)
        check_type("pairs", pairs, Iterable)
        for batch in batches_of_equal_sizes(pairs, self.load, batch_size, on_error):
            if batch is None:
                yield NO_MATCHES
                continue
            geometry = self.geometry(*map(size_of, batch[0]))
            for matches, pair in zip(self._match_batch(batch, geometry), batch, strict=True):
                found = self.or_wide(matches, geometry, *pair)
                if doubt(*found):
                    warnings.warn(_PROBABLY_WRONG, stacklevel=2)
                yield found[0]

    def _match_batch(self, batch: list[tuple[Tensor, Tensor]], geometry: Geometry) -> Iterator[Matches]:
        """Yield the matches of loaded pairs of equal sizes, however few are right."""
        if self.settings.searches:
            return (yield from (self._search(*pair) for pair in batch))
        size0, size1 = (size_of(image) for image in batch[0])
        plan = self._plan(geometry, len(batch), (size0, size1))
        for start in range(0, len(batch), plan.batch):
            part = batch[start : start + plan.batch]
            image0, image1 = (stacked([self._shrunk(pair[i]) for pair in part]).to(self.device) for i in (0, 1))
            with failed_allocations():
                decoded = self._decode(image0, image1, geometry, self.decoding(plan.tiling), plan.needed)
            yield from (matches.at_sizes(size0, size1) for matches in self.matches_of(decoded, geometry))

    def _plain_match(self, image0: Tensor, image1: Tensor, network: Network | None = None) -> Matches:
        """Match two loaded images, by another network if one is given, without a search and without a warning."""
        plain = DeepMatcher(network or self.network, self.settings.without_search())
        return next(plain._match_batch([(image0, image1)], plain.geometry(size_of(image0), size_of(image1))))

    def or_wide(self, matches: Matches, geometry: Geometry, *images: Tensor) -> tuple[Matches, Geometry]:
        """Return these matches of two images and their geometry; or, if few are right, a wide search's."""
        if has_failed(self.settings, expected := expected_fraction(matches, geometry)):
            other = DeepMatcher(self.network.at_radius(None), wide(self.settings))
            with suppress(OutOfMemoryError):
                found, grid = other._search(*images), other.geometry(*map(size_of, images))
                return (found, grid) if expected_fraction(found, grid) > expected else (matches, geometry)
        return matches, geometry

    def _search(self, image0: Tensor, image1: Tensor) -> Matches:
        """Return the matches of a pair with the best of the settings' transformations at every point."""
        shrunk = self._shrunk(image0), self._shrunk(image1)
        found = search(*shrunk, self.network, self._plain_match, self.settings.transformations)
        return found.at_sizes(size_of(image0), size_of(image1))

    def decoding(self, tiling: Tiling = WHOLE) -> Decoding:
        """Return the options of inference among the settings, for scores that are held in these pieces."""
        own = self.settings
        return Decoding(own.reciprocal, own.half, own.subpixel, tiling, between_strips=release_freed)

    @torch.no_grad()
    def decode_described(
        self, pairs: Sequence[tuple[Tensor, Tensor]], size0: tuple[int, int], size1: tuple[int, int]
    ) -> Iterator[Decoded]:
        """Yield the matches of pairs from their descriptors, as many at once as memory allows, not waiting for a GPU.

        The descriptors, (1, C, h, w), are on this matcher's device; the sizes (rows, columns) are those of all first
        and all second images, before ``max_size`` reduces them.
        """
        geometry = self.geometry(size0, size1)
        plan = self._plan(geometry, len(pairs), (size0, size1))
        for start in range(0, len(pairs), plan.batch):
            part = pairs[start : start + plan.batch]
            cells0, cells1 = part[0] if len(part) == 1 else map(torch.cat, zip(*part, strict=True))
            with failed_allocations():
                decoded = self._decode.of_descriptors(cells0, cells1, geometry, self.decoding(plan.tiling), plan.needed)
            yield decoded

    def plan(self, size0: tuple[int, int], size1: tuple[int, int], batch: int = 1, flow: bool = False) -> Plan:
        """Plan the memory in which images of these sizes (rows, columns) are matched, or default ``flow`` is found."""
        size0, size1 = check_size("size0", size0), check_size("size1", size1)
        check_number("batch", batch, minimum=1, maximum=2**31, whole=True)
        check_type("flow", flow, bool)
        matcher, settings = (self.for_flow(), settings_of(PRESET)) if flow else (self, None)
        return matcher._plan(matcher.geometry(size0, size1), batch, (size0, size1), settings)

    def geometry(self, size0: tuple[int, int], size1: tuple[int, int]) -> Geometry:
        """Return the geometry in which images of these sizes (rows, columns) are matched."""
        return self.network.geometry(*(shrunk_size(size, self.settings.max_size) for size in (size0, size1)))

    def load(self, image: ImageLike, name: str = "image") -> Tensor:
        """Return the image as (channels, rows, columns) float32 in [0, 1], at its own size."""
        return load_image(image, name, self.settings.bit_depth)

    def _shrunk(self, image: Tensor) -> Tensor:
        return shrink(image, self.settings.max_size)

    def _plan(self, geometry: Geometry, batch: int, sizes: tuple[Size, Size], flow: FlowSettings | None = None) -> Plan:
        """Plan matching, and what follows for a ``flow`` of these settings, within the memory that may be used."""
        work, budget = Work.of(self.network, geometry, self.device.type), budget_for(self.device, self.settings.memory)
        if flow is None:
            return plan_decoding(work, batch, budget, sizes)
        work = replace(work, fewer_levels=flow.fewer_levels)
        return plan_flow(work, budget, sizes, flow.dense and self.network.dense is not None)

    def match_sequence(self, frames: Iterable[ImageLike]) -> Iterator[Matches]:
        """Yield the matches of every frame with the next one. Each frame is described once.

        Frames must be of one size. They are read one at a time, so they may come from a generator.
        """
        check_type("frames", frames, Iterable)
        if self.settings.searches:
            return (yield from self.match_pairs(pairwise(frames)))
        loaded = (self.load(image, f"frame {number}") for number, image in enumerate(frames))
        for first, second, matching in consecutive(loaded, self._matching, self._frame):
            with failed_allocations():
                decoded = matching.decode(first, second)
            yield self.matches_of(decoded, matching.geometry)[0].at_sizes(first.size, second.size)

    def _matching(self, size0: Size, size1: Size, flow: FlowSettings | None = None) -> Matching:
        """Return how two images of these sizes are matched, or matched for a ``flow`` of these settings."""
        geometry = self.geometry(size0, size1)
        decoding = self.decoding(self._plan(geometry, 1, (size0, size1), flow).tiling)
        return Matching(self.network, geometry, decoding, self._may_shrink_radius)

    @torch.no_grad()
    @failed_allocations()
    def _frame(self, image: Tensor, matching: Matching) -> Frame:
        shrunk = self._shrunk(image)
        there = shrunk.to(self.device)
        return Frame(shrunk, there, self._describe(there[None], matching.geometry.used0), size_of(image))

    def matches_of(self, decoded: Decoded, geometry: Geometry) -> list[Matches]:
        """Return the matches of each pair of a batch that are given out; see :meth:`match`."""
        least = MIN_CONFIDENCE if self.settings.reciprocal == "bins" else 0.0
        return Matches.from_decoded(decoded, geometry.size0, geometry.size1, least)

    def flow(
        self,
        image0: ImageLike,
        image1: ImageLike,
        preset: str | FlowSettings = PRESET,
        *,
        radius: Radius | None = None,
        edges: EdgesLike = None,
        matches: Matches | str | os.PathLike[str] | None = None,
    ) -> FlowResult:
        """Return the motion of every pixel: matches, interpolated along edges and refined.

        >>> result = matcher.flow("a.png", "b.png")
        >>> result.flow, result.confidence  # arrays (H, W, 2) and (H, W)

        Args:
            image0, image1: as for :meth:`match`, but of one size.
            preset: a name from ``deepmatching.flow.PRESETS``, or settings. ``default`` is best on most pairs.
            radius: largest displacement along each axis in pixels, or ``"full"``. None for this matcher's own radius if
                one was set, else ``deepmatching.settings.FLOW_RADIUS`` at most. Not together with ``matches``.
            edges: of the first image: None (network), ``"gradient"``, a file, an array (H, W), or a function to one.
            matches: matches of any matcher, or their file, to interpolate instead of this matcher's own.
        """
        settings = settings_of(preset)
        if matches is not None and radius is not None:
            raise DeepMatchingError("radius has no effect on given matches: leave one of them out.")
        if not isinstance(matches, Matches | str | os.PathLike | None):
            raise DeepMatchingError(f"matches must be Matches or the path of their file, not {type(matches).__name__}.")
        first, second = self.load(image0, "image0"), self.load(image1, "image1")
        size = check_pair(first, second)
        if is_edge_map(edges) and matches is None and shrunk_size(size, self.settings.max_size) != size:
            raise DeepMatchingError("An edge map is for images of the original size: leave max_size out.")
        if matches is not None:
            given = matches if isinstance(matches, Matches) else Matches.load(matches)
            return matches_to_flow(given, first.to(self.device), second.to(self.device), settings, edges)
        start = time.perf_counter()
        if self.settings.searches:
            own, shrunk = self.for_flow(radius), (self._shrunk(first), self._shrunk(second))
            if found := find(*shrunk, own.network, self.settings.transformations):
                flow = searched_to_flow(*shrunk, found, own._plain_match, settings, edges, self.device, start)
                return flow.at_size(size)
        # Images that are upright have the flow that they have without a search.
        return next(self._flow_of_frames((first, second), settings, radius, edges, start))

    def flow_sequence(
        self,
        frames: Iterable[ImageLike],
        preset: str | FlowSettings = PRESET,
        *,
        radius: Radius | None = None,
        edges: EdgesLike = None,
    ) -> Iterator[FlowResult]:
        """Return the flow from every frame to the next one, as :meth:`flow` gives it. Each frame is described once.

        Frames must be of one size. They are read one at a time, so they may come from a generator. ``edges`` is
        None, ``"gradient"`` or a function of the frame.
        """
        check_type("frames", frames, Iterable)
        if is_edge_map(edges):
            raise DeepMatchingError("One edge map cannot serve all frames: give None, 'gradient' or a function.")
        loaded = (self.load(image, f"frame {number}") for number, image in enumerate(frames))
        if self.settings.searches:
            return (self.flow(*pair, preset, radius=radius, edges=edges) for pair in pairwise(loaded))
        return self._flow_of_frames(loaded, settings_of(preset), radius, edges)

    def _flow_of_frames(
        self, images: Iterable[Tensor], settings: FlowSettings, radius: Radius | None, edges: EdgesLike, now: float = 0
    ) -> Iterator[FlowResult]:
        matcher, start = self.for_flow(radius), now or time.perf_counter()
        for first, second, matching in consecutive(images, partial(matcher._matching, flow=settings), matcher._frame):
            graphs = matcher._flow_graphs
            yield flow_between(first, second, settings, matching, edges, None, graphs, start).at_size(first.size)
            start = time.perf_counter()

    def flow_between(
        self,
        first: Frame,
        second: Frame,
        preset: str | FlowSettings = PRESET,
        edges: EdgesLike = None,
        known: tuple[Geometry, Decoded] | None = None,
    ) -> FlowResult:
        """Return the flow between two images that this matcher has described, at its radius; see :meth:`flow`.

        Known matches between them, of pair 0, and their geometry serve if flow has the same geometry.
        """
        matcher, settings = self.for_flow(self.network.radius or FULL), settings_of(preset)
        matching = matcher._matching(first.size, second.size, settings)
        decoded = known[1] if known is not None and known[0] == matching.geometry else None
        found = flow_between(first, second, settings, matching, edges, decoded, matcher._flow_graphs)
        return found.at_size(first.size)

    def for_flow(self, radius: Radius | None = None) -> "DeepMatcher":
        """Return the matcher of the same network at the radius that flow uses; see :meth:`flow`."""
        chosen = self.settings.radius if radius is None else radius
        may_shrink = chosen is None or (radius is None and self._may_shrink_radius)
        if (pixels := flow_radius(chosen)) == self.network.radius:
            return self
        if (key := (pixels, may_shrink)) not in self._for_flow:
            settings = replace(self.settings, radius=pixels or FULL)
            self._for_flow[key] = DeepMatcher(self.network.at_radius(pixels), settings)
            self._for_flow[key]._may_shrink_radius = may_shrink
        return self._for_flow[key]

    def draw_scores(
        self,
        image0: ImageLike,
        image1: ImageLike,
        points: tuple[float, float] | Sequence[tuple[float, float]],
        path: str | os.PathLike[str] | None = None,
    ) -> np.ndarray:
        """Draw both images and the score maps S_0 … S_L and Q_L … Q_0 of one point (x, y) or several: Fig. 1.

        The maps are those of the reference points nearest to them. The picture, (rows, columns, 3) uint8 RGB, is also
        written to ``path`` if given.
        """
        from deepmatching.drawing import points_in, write_image

        loaded = self.load(image0, "image0"), self.load(image1, "image1")
        first, second = (self._shrunk(image).to(self.device) for image in loaded)
        chosen = points_in(points, size_of(loaded[0]), size_of(first))
        picture = draw_scores(self.network, first, second, chosen, self.settings.memory)
        if path is not None:
            write_image(path, picture)
        return picture
