"""The results of a pair: matches, edges, flow, and the maps of single points."""

import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from deepmatching.errors import DeepMatchingError, short_repr
from deepmatching.explorer.pictures import Pair
from deepmatching.flow import FlowResult, Frame
from deepmatching.flow.edges import edges_of
from deepmatching.flow.masking import masked_flow
from deepmatching.geometry.discretization import Geometry
from deepmatching.io.images import colours_of
from deepmatching.io.masks import is_usable
from deepmatching.matcher import DeepMatcher
from deepmatching.matches import Matches, selected_mask
from deepmatching.matching import unmasked_matches
from deepmatching.network.inspection import Inspection, Trace, trace_bytes
from deepmatching.network.operators.decoding import Decoded
from deepmatching.search import doubt, has_failed
from deepmatching.settings import MIN_CONFIDENCE, MODEL, PRESET, RADIUS, Radius, Settings

MAX_TRACE_BYTES = 2**30  #: Most bytes of all traces of results that are kept; see ``deepmatching.network.inspection``.
#: The stages of a run, each with its share of the time.
STAGES = {"model": 0.03, "descriptors": 0.17, "matches": 0.35, "edges": 0.1, "flow": 0.35}

Begin = Callable[[str], None]  #: Called with the name of each stage as it begins. What it raises ends the run.


@dataclass(frozen=True)
class RunSettings:
    """The settings of a run. Without a radius, a search follows a match that has failed, see ``Settings.auto``."""

    model: str = MODEL
    radius: Radius | None = None
    levels: int | None = None
    search: bool = False

    @classmethod
    def of(cls, values: Any, models: tuple[str, ...]) -> "RunSettings":
        """Return the settings that the page sends; raise if they are wrong."""
        if not isinstance(values, Mapping) or not set(values) <= asdict(cls()).keys():
            raise DeepMatchingError("Settings must be model, radius, levels and search.")
        settings = cls(**values)
        if settings.model not in models:
            raise DeepMatchingError(f"There is no model {short_repr(settings.model)} here: use {', '.join(models)}.")
        Settings(radius=settings.radius, levels=settings.levels, search=settings.search)
        return settings

    def matcher(self, device: str) -> DeepMatcher:
        """Return the matcher with these settings."""
        return DeepMatcher.from_pretrained(**asdict(self), device=device)


@dataclass(eq=False)
class Result:
    """A matched pair.

    After a search, there are no maps: the matches are those of a second image that was turned. With masks, there are
    none either: a trace knows nothing of them.
    """

    pair: Pair
    settings: RunSettings
    matcher: DeepMatcher
    geometry: Geometry
    decoded: Decoded  #: on the CPU
    cells: tuple[Tensor, Tensor]
    matches: Matches
    notes: list[str]  #: what was done without being asked
    warning: str = ""  #: why the matches are probably wrong, and what to do
    edges: np.ndarray | None = None  #: (H, W)
    flow: FlowResult | None = None  #: None if no match is usable
    no_flow: str = ""  #: why there is none
    seconds: dict[str, float] = field(default_factory=dict)
    trace: Trace | None = None
    lock: threading.Lock = field(default_factory=threading.Lock)

    @property
    def is_searched(self) -> bool:
        """Whether the matches are those of a search."""
        return self.settings.search or self.matches.transformation is not None

    @property
    def no_maps(self) -> str:
        """Why there are no score maps; an empty text if there are."""
        if self.is_searched:
            return "A search has no score maps: set a radius, and no search, to see those of a plain match."
        if self.pair.has_masks:
            return "Pictures with masks have no score maps: take the masks away to see those of the whole pictures."
        return ""

    @property
    def kept(self) -> np.ndarray:
        """The mask of reference points with a match, (H_0, W_0)."""
        return selected_mask(self.decoded, 0, MIN_CONFIDENCE).numpy()


@torch.no_grad()
def compute(pair: Pair, settings: RunSettings, device: str, begin: Begin) -> Result:
    """Match a pair and compute its flow."""
    seconds: dict[str, float] = {}

    @contextmanager
    def stage(name: str) -> Iterator[None]:
        begin(name)
        start = time.perf_counter()
        yield
        seconds[name] = time.perf_counter() - start

    with stage("model"):
        matcher = settings.matcher(device)
        geometry, tiling = matcher.geometry(*pair.sizes), matcher.plan(*pair.sizes).tiling
    with stage("descriptors"):
        network = matcher.network
        on_device = [image.to(matcher.device) for image in pair.matched]
        used = geometry.used0, geometry.used1
        cells0, cells1 = (network.describe_image(i[None], size) for i, size in zip(on_device, used, strict=True))
    with stage("matches"):
        decoded, on_cpu = None, None
        if settings.search:
            first_found = matcher.searched(*pair.matched)
        else:
            decoded = network.decode_descriptors(cells0, cells1, geometry, matcher.decoding(tiling, pair.has_masks))
            on_cpu = without_masked(Decoded._make(None if t is None else t.cpu() for t in decoded), *pair.matched)
            first_found = unmasked_matches(matcher.matches_of(on_cpu, geometry)[0], *pair.matched)
        matches = matcher.or_wide(first_found, *pair.matched)
        if on_cpu is None or matches is not first_found:
            on_cpu = on_grid(matches, geometry)
    about = _notes(matches, settings), _warning(matches, matcher.settings)
    result = Result(pair, settings, matcher, geometry, on_cpu, (cells0, cells1), matches, *about, seconds=seconds)
    with stage("edges"):
        result.edges = edges_of(colours_of(on_device[0]))
    with stage("flow"):
        try:
            if decoded is None or result.is_searched:
                result.flow = matcher.flow(*pair.matched, edges=result.edges, matches=matches).read()
            else:
                images = [map(colours_of, own) for own in (pair.matched, on_device)]
                first, second = map(Frame, *images, (cells0, cells1), pair.sizes)
                found = matcher.flow_between(first, second, PRESET, result.edges, (geometry, decoded), pair.has_masks)
                result.flow = masked_flow(found.read(), *pair.matched)
        except DeepMatchingError as error:
            result.no_flow = str(error)
    return result


def without_masked(decoded: Decoded, image0: Tensor, image1: Tensor) -> Decoded:
    """Return the matches of pair 0; those that start or end in the mask of a loaded image become unverified."""
    starts, ends = decoded.at_pixel_centres(0)
    usable = is_usable(image0, starts.reshape(-1, 2)) & is_usable(image1, ends.reshape(-1, 2))
    usable = usable.view(decoded.verified.shape)
    confidence = None if decoded.confidence is None else decoded.confidence * usable
    return decoded._replace(verified=decoded.verified & usable, confidence=confidence)


def on_grid(matches: Matches, geometry: Geometry) -> Decoded:
    """Return the matches of a search as if they had been decoded, each at the reference point nearest to its start."""
    points = [axis + 0.0 for axis in geometry.reference_points(0)]
    starts, ends = matches.keypoints0.cpu() + 0.5, matches.keypoints1.cpu() + 0.5
    row, column = (
        ((start - axis[0]) / geometry.alpha).round().long().clamp(0, len(axis) - 1)
        for start, axis in zip((starts[:, 1], starts[:, 0]), points, strict=True)
    )
    points0 = torch.stack(torch.meshgrid(*points, indexing="ij")[::-1], dim=-1)
    points1 = points0[None].clone()
    scores = torch.full(points1.shape[:3], -torch.inf)
    points0[row, column], points1[0, row, column], scores[0, row, column] = starts, ends, matches.scores.cpu()
    confidence = torch.zeros_like(scores)
    confidence[0, row, column] = matches.certainty.cpu()
    return Decoded(points0, points1, scores, torch.zeros_like(scores).long(), scores.isfinite(), confidence)


def _notes(matches: Matches, settings: RunSettings) -> list[str]:
    """Return what was done without being asked."""
    if settings.search or matches.transformation is None:
        return []
    return [f"Few matches were right within {RADIUS} px, so a search found these; set a radius to forbid it."]


def _warning(matches: Matches, settings: Settings) -> str:
    """Return why the matches are probably wrong, and what to do; an empty text if they are not."""
    if not (reason := doubt(matches)):
        return ""
    advice = "try a larger radius; " if matches.confidence is None else "try a search; "
    advice *= not (settings.search or has_failed(settings, matches.expected_fraction))  # which has been tried
    return f"This is probably wrong, since {reason}: {advice}unrelated pictures cannot be matched."


class Traces:
    """The inspection of points, with the traces of the results that were looked at last."""

    def __init__(self, max_bytes: int = MAX_TRACE_BYTES) -> None:
        self.max_bytes = max_bytes
        self._results: list[Result] = []
        self._lock = threading.Lock()

    def inspect(self, result: Result, row: int, column: int) -> Inspection:
        """Return the maps, the path and the quadtree of a reference point."""
        if result.no_maps:
            raise DeepMatchingError(result.no_maps)
        with result.lock:
            trace = result.trace  # another thread may drop it from the result at any time
            if trace is None:
                self._make_room(result)
                trace = result.trace = Trace(result.matcher.network, *result.cells, result.geometry)
            return trace.inspect(row, column)

    def _make_room(self, result: Result) -> None:
        with self._lock:
            self._results = [other for other in self._results if other is not result and other.trace is not None]
            room = self.max_bytes - trace_bytes(result.geometry)
            while self._results and sum(trace_bytes(other.geometry) for other in self._results) > room:
                self._results.pop(0).trace = None
            self._results.append(result)
