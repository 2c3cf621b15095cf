"""DeepMatcher: pictures in, matches or flow out."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any, Literal, TypeAlias

import numpy as np
import torch
from torch import Tensor

from deepmatching.errors import DeepMatchingError, check_frame_size, check_number, failed_allocations
from deepmatching.flow import (
    EdgesLike,
    FlowResult,
    FlowSettings,
    Frame,
    Matching,
    check_pair,
    count_outside,
    flow_between,
    is_edge_map,
    matches_to_flow,
    most_levels,
    searched_to_flow,
)
from deepmatching.flow import preset as settings_of
from deepmatching.flow.pipeline import FlowGraphs
from deepmatching.geometry.discretization import Geometry
from deepmatching.geometry.strips import WHOLE, Tiling
from deepmatching.io.images import ImageLike, load_image, shrink, shrunk_size, size_of, stacked
from deepmatching.kernels.limits import release_freed
from deepmatching.kernels.registry import has_kernels
from deepmatching.matches import NO_MATCHES, Matches
from deepmatching.models import load_network, save_network
from deepmatching.network.inference import Decoding
from deepmatching.network.memory import Plan, Size, Work, budget_for, plan_decoding, plan_flow, require_pyramid
from deepmatching.network.network import Network
from deepmatching.network.operators.decoding import Decoded, decode
from deepmatching.network.replay import GraphedDecode, GraphedDescribe
from deepmatching.search import find, search
from deepmatching.settings import (
    FLOW_RADIUS,
    FULL,
    MIN_CONFIDENCE,
    MODEL,
    PRESET,
    RADIUS,
    Radius,
    Settings,
    choose_device,
    radius_in_pixels,
)

OnError: TypeAlias = Callable[[int, DeepMatchingError], object]
Purpose: TypeAlias = Literal["matches", "flow", "dense flow"]  #: what memory is planned for


class DeepMatcher:
    """Finds quasi-dense matches between two images, and the flow.

    >>> matcher = DeepMatcher.from_pretrained(radius=80)
    >>> matches = matcher.match("a.png", "b.png")

    Args:
        network: the U-shaped network; ``from_pretrained`` makes one.
        settings: see :class:`Settings`.
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
    def from_pretrained(cls, model: str | os.PathLike[str] = MODEL, **settings: Any) -> DeepMatcher:
        """The matcher of a model's name or file, with any of the :class:`Settings` by keyword."""
        checked = Settings.of(**settings)
        radius = radius_in_pixels(RADIUS if checked.radius is None else checked.radius)
        return cls(load_network(model, radius, checked.levels, checked.downscale, checked.pooling), checked)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the model to a ``.safetensors`` file that ``from_pretrained`` reads."""
        save_network(self.network, path)

    def describe(self) -> dict[str, Any]:
        """The settings that results depend on, as JSON can hold them; device and memory are not among them."""
        return self.settings.describe()

    def __repr__(self) -> str:
        radius = FULL if self.network.radius is None else f"{self.network.radius} px"
        return f"DeepMatcher({self.network.descriptor.__class__.__name__}, radius {radius}, on {self.device})"

    def to(self, device: str | torch.device) -> DeepMatcher:
        """Move this matcher to another device, in place, as modules do; returns it."""
        self.settings = replace(self.settings, device=device)
        self.device = choose_device(device)
        self.network.to(self.device)
        self._reset()
        return self

    def _reset(self) -> None:
        """Drop what can be made again: the recorded graphs, and the matchers for flow."""
        self._graphed_decode = GraphedDecode(self.network)
        self._flow_graphs = FlowGraphs(self.network)
        self._describe = GraphedDescribe(self.network)
        self._for_flow: dict[tuple[int | None, int | None, bool], DeepMatcher] = {}  # these share this network
        self._may_shrink_radius = False  # the user set no radius, so flow may choose a smaller one

    def __getstate__(self) -> dict[str, Any]:
        """What pickling and copying keep: CUDA graphs cannot be copied."""
        return {"settings": self.settings, "device": self.device, "network": self.network}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._reset()

    # ------------------------------------------------------------------ matching

    def __call__(self, image0: ImageLike, image1: ImageLike) -> Matches | list[Matches]:
        """As :meth:`match`. Two batches of images (B, C, H, W) give a list of B."""
        if not (isinstance(image0, Tensor) and isinstance(image1, Tensor) and image0.ndim == image1.ndim == 4):
            return self.match(image0, image1)
        if len(image0) != len(image1):
            raise DeepMatchingError(
                f"The two batches must have the same number of images, not {len(image0)} and {len(image1)}."
            )
        return list(self.match_pairs(zip(image0, image1, strict=True), batch_size=max(1, len(image0))))

    def match(self, image0: ImageLike, image1: ImageLike) -> Matches:
        """The matches between two images, in raster order of the first: those that are verified.

        If the model judges its matches and ``reciprocal`` is ``bins``, those that it believes in are matches, too.

        Args:
            image0, image1: path, PIL image, array (rows, columns[, channels]) or tensor (channels, rows, columns).
                Floating-point values are in [0, 1]. Sizes may differ.
        """
        return next(self.match_pairs([(image0, image1)]))

    def match_pairs(
        self, pairs: Iterable[tuple[ImageLike, ImageLike]], batch_size: int = 1, on_error: OnError | None = None
    ) -> Iterator[Matches]:
        """The matches of many pairs, one after the other. Consecutive pairs of equal sizes share a batch.

        The matches do not depend on ``batch_size``, except for rounding: PyTorch may sum the convolutions of a batch in
        another order, which moves matches of ``vgg`` and ``compact`` between cells by less than 0.001 px.

        Args:
            on_error: gets the number of a pair that cannot be read, counted from 0, and the error. The pair then has no
                matches, and the work goes on. Without ``on_error``, such an error ends the work.
        """
        check_number("batch_size", batch_size, minimum=1, whole=True)
        batch: list[tuple[Tensor, Tensor]] = []
        for number, pair in enumerate(pairs):
            try:
                if len(pair) != 2:
                    raise DeepMatchingError(f"A pair must be two images, not {len(pair)}.")
                image0, image1 = (self.load(image, f"image{i}") for i, image in enumerate(pair))
            except DeepMatchingError as error:
                if on_error is None:
                    raise
                if batch:
                    yield from self._match_batch(batch)
                    batch = []
                on_error(number, error)
                yield NO_MATCHES
                continue
            fits = not batch or (batch[0][0].shape, batch[0][1].shape) == (image0.shape, image1.shape)
            if batch and (len(batch) >= batch_size or not fits):
                yield from self._match_batch(batch)
                batch = []
            batch.append((image0, image1))
        if batch:
            yield from self._match_batch(batch)

    def _match_batch(self, batch: list[tuple[Tensor, Tensor]]) -> Iterator[Matches]:
        if self.settings.searches:
            return (yield from (self._search(*pair) for pair in batch))
        size0, size1 = (size_of(image) for image in batch[0])
        geometry = self.geometry(size0, size1)
        plan = self._plan(geometry, len(batch), (size0, size1))
        for start in range(0, len(batch), plan.batch):
            part = batch[start : start + plan.batch]
            image0, image1 = (stacked([self._shrunk(pair[i]) for pair in part]).to(self.device) for i in (0, 1))
            decoded = self._decode(image0, image1, geometry, plan)
            for matches in self.matches_of(decoded, geometry):
                yield matches.at_sizes(size0, size1)

    def _search(self, image0: Tensor, image1: Tensor) -> Matches:
        """The matches of a pair with the best of the settings' transformations at every point."""
        plain = DeepMatcher(self.network, self.settings.without_search())
        shrunk = self._shrunk(image0), self._shrunk(image1)
        found = search(*shrunk, self.network, plain.match, self.settings.transformations)
        return found.at_sizes(size_of(image0), size_of(image1))

    def decoding(self, tiling: Tiling = WHOLE) -> Decoding:
        """The options of inference among the settings, for scores that are held in these pieces."""
        settings = self.settings
        return Decoding(settings.reciprocal, settings.half, settings.subpixel, tiling, between_strips=release_freed)

    @torch.no_grad()
    @failed_allocations()
    def _decode(self, image0: Tensor, image1: Tensor, geometry: Geometry, plan: Plan) -> Decoded:
        """Decode a batch."""
        decoding = self.decoding(plan.tiling)
        if self.device.type != "cuda":
            cells0, cells1 = self._describe(image0, geometry.used0), self._describe(image1, geometry.used1)
            return self.network.decode_descriptors(cells0, cells1, geometry, decoding)
        return self._graphed_decode(image0, image1, geometry, decoding, plan.needed)

    @torch.no_grad()
    def decode_described(
        self, pairs: Sequence[tuple[Tensor, Tensor]], size0: tuple[int, int], size1: tuple[int, int]
    ) -> Iterator[Decoded]:
        """Yield the matches of pairs of equal sizes from their descriptors, as many pairs at once as memory allows.

        A GPU may still be working on them: nothing waits for it.

        Args:
            pairs: descriptors of the two images of each pair, (1, C, h, w), on this matcher's device.
            size0, size1: (rows, columns) of all first and all second images, before ``max_size`` reduces them.
        """
        geometry = self.geometry(size0, size1)
        plan = self._plan(geometry, len(pairs), (size0, size1))
        for start in range(0, len(pairs), plan.batch):
            part = pairs[start : start + plan.batch]
            cells0, cells1 = part[0] if len(part) == 1 else map(torch.cat, zip(*part, strict=True))
            with failed_allocations():
                decoding = self.decoding(plan.tiling)
                decoded = self._graphed_decode.of_descriptors(cells0, cells1, geometry, decoding, plan.needed)
            yield decoded

    def plan(self, size0: tuple[int, int], size1: tuple[int, int], batch: int = 1, flow: bool = False) -> Plan:
        """How images of these sizes (rows, columns) will be matched, or ``flow`` found by default, and the memory.

        Raises:
            OutOfMemoryError: if it cannot be done.
        """
        matcher = self.for_flow() if flow else self
        purpose: Purpose = "matches" if not flow else "flow" if matcher.network.dense is None else "dense flow"
        return matcher._plan(matcher.geometry(size0, size1), batch, (size0, size1), purpose)

    def geometry(self, size0: tuple[int, int], size1: tuple[int, int]) -> Geometry:
        """The geometry in which images of these sizes (rows, columns) are matched."""
        return self.network.geometry(*(shrunk_size(size, self.settings.max_size) for size in (size0, size1)))

    def load(self, image: ImageLike, name: str = "image") -> Tensor:
        """The image as (channels, rows, columns) float32 in [0, 1], at its own size."""
        return load_image(image, name, self.settings.bit_depth)

    def _shrunk(self, image: Tensor) -> Tensor:
        return shrink(image, self.settings.max_size)

    def _plan(self, geometry: Geometry, batch: int, sizes: tuple[Size, Size], purpose: Purpose = "matches") -> Plan:
        work = Work.of(self.network, geometry, self.device.type)
        budget = budget_for(self.device, self.settings.memory)
        if purpose != "matches":
            return plan_flow(work, budget, sizes, purpose == "dense flow")
        return plan_decoding(work, batch, budget, sizes)

    def match_sequence(self, frames: Iterable[ImageLike]) -> Iterator[Matches]:
        """The matches of every frame with the next one. Each frame is described once.

        Frames must be of one size. They are read one at a time, so they may come from a generator.
        """
        if self.settings.searches:
            return (yield from self.match_pairs(pairwise(frames)))
        loaded = (self.load(image, f"frame {number}") for number, image in enumerate(frames))
        for first, second, matching in self._consecutive(loaded):
            with failed_allocations():
                decoded = matching.decode(first, second)
            yield self.matches_of(decoded, matching.geometry)[0].at_sizes(first.size, second.size)

    def _consecutive(
        self, images: Iterable[Tensor], purpose: Purpose = "matches"
    ) -> Iterator[tuple[Frame, Frame, Matching]]:
        """Yield every frame with the next one, each described once, and how they are matched: the first one decides."""
        previous: Frame | None = None
        matching: Matching | None = None
        for number, image in enumerate(images):
            size = size_of(image)
            if previous is not None:
                check_frame_size(number, previous.size, size)
            matching = matching or self._matching(size, size, purpose)
            frame = self._frame(image, matching.geometry)
            if previous is not None:
                yield previous, frame, matching
            previous = frame

    def _matching(self, size0: Size, size1: Size, purpose: Purpose) -> Matching:
        """Return how two images of these sizes are matched."""
        geometry = self.geometry(size0, size1)
        decoding = self.decoding(self._plan(geometry, 1, (size0, size1), purpose).tiling)
        return Matching(self.network, geometry, decoding, self._may_shrink_radius)

    @torch.no_grad()
    @failed_allocations()
    def _frame(self, image: Tensor, geometry: Geometry) -> Frame:
        """Describe a frame."""
        shrunk = self._shrunk(image)
        on_device = shrunk.to(self.device)
        return Frame(shrunk, on_device, self._describe(on_device[None], geometry.used0), size_of(image))

    def matches_of(self, decoded: Decoded, geometry: Geometry) -> list[Matches]:
        """The matches of each pair of a batch that are given out; see :meth:`match`."""
        least = MIN_CONFIDENCE if self.settings.reciprocal == "bins" else 0.0
        return Matches.from_decoded(decoded, geometry.size0, geometry.size1, least)

    # ------------------------------------------------------------------ flow

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
        """The motion of every pixel: matches, interpolated along edges and refined.

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
        start = time.perf_counter()
        if matches is None and self.settings.searches:  # at all levels, as the preset "classic" does
            chosen, shrunk = self.for_flow(radius, "classic"), (self._shrunk(first), self._shrunk(second))
            if models := find(*shrunk, chosen.network, self.settings.transformations):
                match = DeepMatcher(chosen.network, chosen.settings.without_search()).match
                return searched_to_flow(*shrunk, models, match, settings, edges, self.device, start).at_size(size)
        if matches is None:  # images that are upright have the flow that they have without a search
            return next(self._flow_of_frames((first, second), settings, radius, edges, start))
        given = matches if isinstance(matches, Matches) else Matches.load(matches)
        count_outside(given, size)
        return matches_to_flow(given, first.to(self.device), second.to(self.device), settings, edges)

    def flow_sequence(
        self,
        frames: Iterable[ImageLike],
        preset: str | FlowSettings = PRESET,
        *,
        radius: Radius | None = None,
        edges: EdgesLike = None,
    ) -> Iterator[FlowResult]:
        """The flow from every frame to the next one, as :meth:`flow` gives it. Each frame is described once.

        Frames must be of one size. They are read one at a time, so they may come from a generator. ``edges`` is
        None, ``"gradient"`` or a function of the frame.
        """
        if is_edge_map(edges):
            raise DeepMatchingError(
                "One edge map cannot serve all frames: give edges as None, 'gradient' or a function of the frame."
            )
        loaded = (self.load(image, f"frame {number}") for number, image in enumerate(frames))
        if self.settings.searches:
            return (self.flow(*pair, preset, radius=radius, edges=edges) for pair in pairwise(loaded))
        return self._flow_of_frames(loaded, settings_of(preset), radius, edges)

    def _flow_of_frames(
        self, images: Iterable[Tensor], settings: FlowSettings, radius: Radius | None, edges: EdgesLike, now: float = 0
    ) -> Iterator[FlowResult]:
        matcher, start = self.for_flow(radius, settings), now or time.perf_counter()
        purpose = matcher._flow_purpose(settings)
        for first, second, matching in matcher._consecutive(images, purpose):
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
        """The flow between two images that are described already, at this matcher's radius.

        Args:
            first, second: both described by this matcher's network.
            preset, edges: as for :meth:`flow`.
            known: matches between them, of pair 0, and their geometry; they serve if flow has the same geometry.
        """
        settings = settings_of(preset)
        matcher = self.for_flow(FULL if self.network.radius is None else self.network.radius, settings)
        matching = matcher._matching(first.size, second.size, matcher._flow_purpose(settings))
        decoded = known[1] if known is not None and known[0] == matching.geometry else None
        found = flow_between(first, second, settings, matching, edges, decoded, matcher._flow_graphs)
        return found.at_size(first.size)

    def _flow_purpose(self, settings: FlowSettings) -> Purpose:
        return "dense flow" if settings.dense and self.network.dense is not None else "flow"

    def for_flow(self, radius: Radius | None = None, preset: str | FlowSettings = PRESET) -> DeepMatcher:
        """The matcher of the same network at the radius and with the levels that flow uses; see :meth:`flow`."""
        chosen = self.settings.radius if radius is None else radius
        may_shrink = chosen is None or (radius is None and self._may_shrink_radius)
        pixels, levels = radius_in_pixels(FLOW_RADIUS if chosen is None else chosen), most_levels(preset, self.network)
        if (pixels, levels) == (self.network.radius, self.network.most_levels):
            return self
        if (key := (pixels, levels, may_shrink)) not in self._for_flow:
            settings = replace(self.settings, radius=FULL if pixels is None else pixels)
            self._for_flow[key] = DeepMatcher(self.network.at_radius(pixels, levels), settings)
            self._for_flow[key]._may_shrink_radius = may_shrink
        return self._for_flow[key]

    # ------------------------------------------------------------------ looking inside

    @torch.no_grad()
    def draw_scores(
        self,
        image0: ImageLike,
        image1: ImageLike,
        points: tuple[float, float] | Sequence[tuple[float, float]],
        path: str | os.PathLike[str] | None = None,
    ) -> np.ndarray:
        """A figure of both images and the score maps S_0 … S_L and Q_L … Q_0 of one point (x, y) or several.

        The maps are those of the reference points nearest to them; this is Fig. 1 of the paper.

        Returns:
            (rows, columns, 3) uint8 RGB; also written to ``path`` if given.
        """
        from deepmatching.drawing import draw_scores_of_points, points_in, to_uint8_rgb, write_image

        loaded = [self.load(image, name) for image, name in ((image0, "image0"), (image1, "image1"))]
        first, second = (self._shrunk(image)[None].to(self.device) for image in loaded)
        geometry = self.network.geometry_of(first, second)
        chosen = points_in(np.asarray(points, float).reshape(-1, 2), size_of(loaded[0]), size_of(first[0]))
        require_pyramid(self.network, geometry, 1, self.device, self.settings.memory)
        pyramid = self.network(first, second)
        matches = decode(pyramid.Q[0], geometry, "none").points1[0]
        images = to_uint8_rgb(first[0]), to_uint8_rgb(second[0])
        picture = draw_scores_of_points(images, chosen, pyramid.S, pyramid.Q, matches, geometry)
        if path is not None:
            write_image(path, picture)
        return picture
