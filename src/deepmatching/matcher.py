"""DeepMatcher: pictures in, matches or flow out."""

import os
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from functools import cache, partial
from itertools import pairwise
from typing import Any

import numpy as np
from torch import Tensor

from deepmatching.errors import (
    DeepMatchingError,
    check_iterable,
    check_number,
    check_size,
    check_type,
)
from deepmatching.flow.between import picture_between
from deepmatching.flow.edges import EdgesLike, is_edge_map
from deepmatching.flow.masking import masked_flow
from deepmatching.flow.matching import Frame, consecutive, flow_radius
from deepmatching.flow.pipeline import FlowGraphs, flow_between, matches_to_flow, searched_to_flow
from deepmatching.flow.points import PointMatches, points_through
from deepmatching.flow.result import FlowResult
from deepmatching.flow.settings import FlowSettings
from deepmatching.flow.settings import preset as settings_of
from deepmatching.flow.tracking import track_points
from deepmatching.geometry.discretization import Geometry
from deepmatching.io.images import ImageLike, colours_of, has_mask, shrunk_size, size_of
from deepmatching.io.masks import MaskLike, usable_share
from deepmatching.io.points import check_points
from deepmatching.matches import Matches
from deepmatching.matching import PairMatcher, unmasked_matches
from deepmatching.network.inspection import draw_scores
from deepmatching.network.memory import Plan
from deepmatching.network.operators.decoding import Decoded
from deepmatching.search import find
from deepmatching.settings import FULL, PRESET, Radius


class DeepMatcher(PairMatcher):
    """Finds quasi-dense matches between two images, and the flow.

    >>> matcher = DeepMatcher.from_pretrained(radius=80)
    >>> matches = matcher.match("a.png", "b.png")
    """

    def _reset(self) -> None:
        super()._reset()
        self._flow_graphs = FlowGraphs(self.network)
        self._for_flow: dict[tuple[int | None, bool], DeepMatcher] = {}  # these share this network

    def plan(self, size0: tuple[int, int], size1: tuple[int, int], batch: int = 1, flow: bool = False) -> Plan:
        """Plan the memory in which images of these sizes (rows, columns) are matched, or default ``flow`` is found."""
        size0, size1 = check_size("size0", size0), check_size("size1", size1)
        check_number("batch", batch, minimum=1, maximum=2**31, whole=True)
        check_type("flow", flow, bool)
        matcher, settings = (self.for_flow(), settings_of(PRESET)) if flow else (self, None)
        return matcher._plan(matcher.geometry(size0, size1), batch, (size0, size1), settings)

    def flow(
        self,
        image0: ImageLike,
        image1: ImageLike,
        preset: str | FlowSettings = PRESET,
        *,
        radius: Radius | None = None,
        edges: EdgesLike = None,
        matches: Matches | str | os.PathLike[str] | None = None,
        mask0: MaskLike = None,
        mask1: MaskLike = None,
    ) -> FlowResult:
        """Return the motion of every pixel: matches, interpolated along edges and refined.

        >>> result = matcher.flow("a.png", "b.png")
        >>> result.flow, result.confidence  # arrays (H, W, 2) and (H, W)

        Args:
            image0, image1: as for :meth:`match`.
            preset: a name from ``deepmatching.flow.PRESETS``, or settings. ``default`` is best on most pairs.
            radius: largest displacement along each axis in pixels, or ``"full"``. None for this matcher's own radius if
                one was set, else ``deepmatching.settings.FLOW_RADIUS`` at most. Not together with ``matches``.
            edges: of the first image: None (network), ``"gradient"``, a file, an array (H, W), or a function to one.
            matches: matches of any matcher, or their file, to interpolate instead of this matcher's own.
            mask0, mask1: as for :meth:`match`. Where the flow starts or ends in one, it is interpolated from outside,
                and its confidence is 0.
        """
        settings = settings_of(preset)
        if matches is not None and radius is not None:
            raise DeepMatchingError("radius has no effect on given matches: leave one of them out.")
        if not isinstance(matches, Matches | str | os.PathLike | None):
            raise DeepMatchingError(f"matches must be Matches or the path of their file, not {type(matches).__name__}.")
        first, second = self.load_pair((image0, image1, mask0, mask1))
        if not usable_share(first, second):
            raise DeepMatchingError("A mask is False or 0 everywhere, so nothing may be matched: check the masks.")
        result = self._flow_of_pair(first, second, settings, radius, edges, matches)
        return masked_flow(result, first, second)

    def _flow_of_pair(
        self,
        first: Tensor,
        second: Tensor,
        settings: FlowSettings,
        radius: Radius | None,
        edges: EdgesLike,
        matches: Matches | str | os.PathLike[str] | None,
    ) -> FlowResult:
        """Return the flow between two loaded images; see :meth:`flow`."""
        size = size_of(first)
        if is_edge_map(edges) and matches is None and shrunk_size(size, self.settings.max_size) != size:
            raise DeepMatchingError("An edge map is for images of the original size: leave max_size out.")
        if matches is not None:
            given = matches if isinstance(matches, Matches) else Matches.load(matches)
            given = unmasked_matches(given, first, second)
            image0, image1 = (colours_of(image).to(self.device) for image in (first, second))
            return matches_to_flow(given, image0, image1, settings, edges)
        start = time.perf_counter()
        if self.settings.searches:
            own, shrunk = self.for_flow(radius), (self._shrunk(first), self._shrunk(second))
            if models := find(*shrunk, own.network, self.settings.transformations, (first, second)):
                flow = searched_to_flow(*shrunk, models, own._plain_match, settings, edges, self.device, start)
                return flow.at_size(size, (size_of(shrunk[1]), size_of(second)))
        # Images that are upright have the flow that they have without a search.
        matcher = self.for_flow(radius)
        matching = matcher._matching(size, size_of(second), settings, has_mask(first) or has_mask(second))
        one, two = matcher._frame(first, matching), matcher._frame(second, matching)
        found = flow_between(one, two, settings, matching, edges, None, matcher._flow_graphs, start)
        found = found.at_size(size, two.sizes)
        if radius is not None or not self.settings.leaves_choice:
            return found
        searched = self.wide_matches(first, second, found.expected_fraction / usable_share(first, second))
        if searched is None:
            return found
        searching = time.perf_counter() - start
        found = self.flow_of_searched(searched, first, second, settings, edges)
        return replace(found, seconds={"matching": searching, **found.seconds})

    def flow_of_searched(
        self,
        searched: Matches,
        first: Tensor,
        second: Tensor,
        preset: str | FlowSettings = PRESET,
        edges: EdgesLike = None,
    ) -> FlowResult:
        """Return the flow between two loaded images from :meth:`wide_matches`, computed within ``max_size``."""
        shrunk0, shrunk1 = self._shrunk(first), self._shrunk(second)
        given = searched.at_sizes(size_of(shrunk0), size_of(shrunk1))
        image0, image1 = (colours_of(image).to(self.device) for image in (shrunk0, shrunk1))
        found = matches_to_flow(given, image0, image1, settings_of(preset), edges)
        return found.at_size(size_of(first), (size_of(shrunk1), size_of(second)))

    def match_points(
        self,
        image0: ImageLike,
        image1: ImageLike,
        points: Any,
        *,
        mask0: MaskLike = None,
        mask1: MaskLike = None,
    ) -> PointMatches:
        """Return where points of the first image are in the second, with confidence and visibility, through the flow.

        >>> found = matcher.match_points("a.png", "b.png", [(320.5, 240), (17, 99.25)])
        >>> found.points, found.confidence, found.visible  # arrays (N, 2), (N,) and (N,)

        The points (N, 2), x and y in pixels, may lie anywhere in the image. The images may differ in size. Masks are as
        for :meth:`flow`: a point that starts or ends in one has a confidence of 0, and one that ends there is hidden.
        """
        first, second = self.load_pair((image0, image1, mask0, mask1))
        places = check_points(points, size_of(first))
        return points_through(self.flow(first, second), places, size_of(second))

    def track(self, frames: Iterable[ImageLike], points: Any) -> Iterator[PointMatches]:
        """Yield where points (N, 2) of the first frame are in each frame, the first one included; see :meth:`flow`.

        >>> for found in matcher.track(frames, [(320.5, 240), (17, 99.25)]):
        ...     found.points, found.confidence, found.visible  # arrays (N, 2), (N,) and (N,)

        Points go with the flow from the first frame where that is sure, else with that from the frame before; so a
        point that was hidden is found again. Frames are read one at a time, so they may come from a generator.
        """
        check_iterable("frames", frames)
        places, matcher = check_points(points), self.for_flow()

        def loaded() -> Iterator[Tensor]:
            for number, frame in enumerate(self._frames(frames)):
                if number == 0:
                    check_points(places, size_of(frame))
                yield frame

        if self.settings.searches or self.settings.use_alpha:
            return track_points(loaded(), places, self._without_auto().flow)
        matching = partial(matcher._matching, flow=settings_of(PRESET))
        described = (matcher._frame(frame, matching(size_of(frame), size_of(frame))) for frame in loaded())
        return track_points(described, places, matcher.flow_between)

    def flow_sequence(
        self,
        frames: Iterable[ImageLike],
        preset: str | FlowSettings = PRESET,
        *,
        radius: Radius | None = None,
        edges: EdgesLike = None,
    ) -> Iterator[FlowResult]:
        """Return the flow from every frame to the next one, as :meth:`flow` gives it. Each frame is described once.

        Frames must be of one size. They are read one at a time, so they may come from a generator. Where matches fail,
        no search follows by itself, as it does in :meth:`flow`. ``edges`` is None, ``"gradient"`` or a function of the
        frame.
        """
        check_iterable("frames", frames)
        if is_edge_map(edges):
            raise DeepMatchingError("One edge map cannot serve all frames: give None, 'gradient' or a function.")
        loaded = self._frames(frames)
        if self.settings.searches or self.settings.use_alpha:
            flow = partial(self._without_auto().flow, preset=preset, radius=radius, edges=edges)
            return (flow(*pair) for pair in pairwise(loaded))
        return self._flow_of_frames(loaded, settings_of(preset), radius, edges)

    def _flow_of_frames(
        self, images: Iterable[Tensor], settings: FlowSettings, radius: Radius | None, edges: EdgesLike
    ) -> Iterator[FlowResult]:
        matcher, start = self.for_flow(radius), time.perf_counter()
        for first, second, matching in consecutive(images, partial(matcher._matching, flow=settings), matcher._frame):
            graphs = matcher._flow_graphs
            yield flow_between(first, second, settings, matching, edges, None, graphs, start).at_size(
                first.size, second.sizes
            )
            start = time.perf_counter()

    def flow_between(
        self,
        first: Frame,
        second: Frame,
        preset: str | FlowSettings = PRESET,
        edges: EdgesLike = None,
        known: tuple[Geometry, Decoded] | None = None,
        masked: bool = False,
    ) -> FlowResult:
        """Return the flow between two images that this matcher has described, at its radius; see :meth:`flow`.

        Known matches between them, of pair 0, and their geometry serve if flow has the same geometry. ``masked`` says
        that the images may have masks.
        """
        matcher, settings = self.for_flow(self.network.radius or FULL), settings_of(preset)
        matching = matcher._matching(first.size, second.size, settings, masked)
        decoded = known[1] if known is not None and known[0] == matching.geometry else None
        found = flow_between(first, second, settings, matching, edges, decoded, matcher._flow_graphs)
        return found.at_size(first.size, second.sizes)

    def between(self, image0: ImageLike, image1: ImageLike, t: float = 0.5) -> np.ndarray:
        """Return the picture at time t, from 0 to 1, between two frames of one size: uint8 RGB (H, W, 3).

        It takes the flow both ways; see ``deepmatching.flow.picture_between``.
        """
        check_number("t", t, minimum=0, maximum=1)
        first, second = self.load(image0, "image0"), self.load(image1, "image1")
        return picture_between(first, second, *self.flow_both_ways(first, second), t)

    def flow_both_ways(self, image0: ImageLike, image1: ImageLike) -> tuple[FlowResult, FlowResult]:
        """Return the :meth:`flow` from one frame to another of its size, and that back."""
        first, second = self.load(image0, "image0"), self.load(image1, "image1")
        if (before := size_of(first)) != (after := size_of(second)):
            sizes = f"{before[1]}x{before[0]} and {after[1]}x{after[0]}"
            raise DeepMatchingError(f"The frames must be of one size, but they have {sizes} pixels: resize one.")
        return self.flow(first, second), self.flow(second, first)

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


@cache
def default_matcher() -> DeepMatcher:
    """Return the default matcher, which a process loads once."""
    return DeepMatcher.from_pretrained()


def match(image0: ImageLike, image1: ImageLike) -> Matches:
    """Match two images with the default model and settings; see :meth:`DeepMatcher.match`."""
    return default_matcher().match(image0, image1)


def flow(image0: ImageLike, image1: ImageLike) -> FlowResult:
    """Return the flow of two images with the default model and settings; see :meth:`DeepMatcher.flow`."""
    return default_matcher().flow(image0, image1)
