"""The results of a pair: matches, edges, flow, and the maps of single points."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from deepmatching.errors import DeepMatchingError, short_repr
from deepmatching.explorer.pictures import Pair
from deepmatching.flow import FlowResult, Frame
from deepmatching.flow.edges.detect import edges_of
from deepmatching.geometry.discretization import Geometry
from deepmatching.matcher import DeepMatcher
from deepmatching.matches import Matches, selected_mask
from deepmatching.network.inspection import Inspection, Trace, trace_bytes
from deepmatching.network.operators.decoding import Decoded
from deepmatching.settings import MIN_CONFIDENCE, MODEL, RADIUS, Settings

#: Most bytes of all traces of results that are kept; see ``deepmatching.network.inspection``.
MAX_TRACE_BYTES = 2**30

#: The stages of a run, each with its share of the time.
STAGES = {"model": 0.03, "descriptors": 0.17, "matches": 0.35, "edges": 0.1, "flow": 0.35}

#: Called with the name of each stage as it begins. What it raises ends the run.
Begin = Callable[[str], None]


@dataclass(frozen=True)
class RunSettings:
    """The settings of a run."""

    model: str = MODEL
    radius: int | str = RADIUS
    levels: int | None = None

    @classmethod
    def of(cls, values: Any, models: tuple[str, ...]) -> RunSettings:
        """Return the settings that the page sends; raise if they are wrong."""
        if not isinstance(values, Mapping) or not set(values) <= {"model", "radius", "levels"}:
            raise DeepMatchingError("Settings must be model, radius and levels.")
        settings = cls(**values)
        if settings.model not in models:
            raise DeepMatchingError(f"There is no model {short_repr(settings.model)} here: use {', '.join(models)}.")
        Settings(radius=settings.radius, levels=settings.levels)  # type: ignore[arg-type]
        return settings

    def matcher(self, device: str) -> DeepMatcher:
        """Return the matcher with these settings."""
        return DeepMatcher.from_pretrained(self.model, radius=self.radius, levels=self.levels, device=device)


@dataclass(eq=False)
class Result:
    """A matched pair."""

    pair: Pair
    settings: RunSettings
    matcher: DeepMatcher
    geometry: Geometry
    decoded: Decoded  #: on the CPU
    cells: tuple[Tensor, Tensor]
    matches: Matches
    edges: np.ndarray | None = None  #: (H, W)
    flow: FlowResult | None = None  #: None for images of different sizes, or if no match is usable
    no_flow: str = ""  #: why there is none
    seconds: dict[str, float] = field(default_factory=dict)
    trace: Trace | None = None
    lock: threading.Lock = field(default_factory=threading.Lock)

    @property
    def kept(self) -> np.ndarray:
        """The mask of reference points with a match, (H_0, W_0)."""
        return selected_mask(self.decoded, 0, MIN_CONFIDENCE).numpy()


@torch.no_grad()
def compute(pair: Pair, settings: RunSettings, device: str, begin: Begin) -> Result:
    """Match a pair and compute its flow."""
    seconds: dict[str, float] = {}
    running: list[tuple[str, float]] = []

    def stage(name: str) -> None:
        now = time.perf_counter()
        if running:
            before, start = running.pop()
            seconds[before] = now - start
        if name:
            running.append((name, now))
            begin(name)

    stage("model")
    matcher = settings.matcher(device)
    geometry = matcher.geometry(*pair.sizes)
    tiling = matcher.plan(*pair.sizes).tiling
    stage("descriptors")
    network = matcher.network
    on_device = [image.to(matcher.device) for image in pair.images]
    cells0 = network.describe_image(on_device[0][None], geometry.used0)
    cells1 = network.describe_image(on_device[1][None], geometry.used1)
    stage("matches")
    decoding = matcher.decoding(tiling)
    decoded = network.decode_descriptors(cells0, cells1, geometry, decoding)
    on_cpu = Decoded._make(None if tensor is None else tensor.cpu() for tensor in decoded)
    matches = matcher.matches_of(on_cpu, geometry)[0]
    result = Result(pair, settings, matcher, geometry, on_cpu, (cells0, cells1), matches, seconds=seconds)
    stage("edges")
    result.edges = edges_of(on_device[0])
    stage("flow")
    if pair.sizes[0] != pair.sizes[1]:
        result.no_flow = "Flow needs two images of one size."
    else:
        images = zip(pair.images, on_device, (cells0, cells1), pair.sizes, strict=True)
        first, second = (Frame(*image) for image in images)
        try:
            result.flow = matcher.flow_between(first, second, edges=result.edges, known=(geometry, decoded)).read()
        except DeepMatchingError as error:
            result.no_flow = str(error)
    stage("")
    return result


class Traces:
    """The inspection of points, with the traces of the results that were looked at last."""

    def __init__(self, max_bytes: int = MAX_TRACE_BYTES) -> None:
        self.max_bytes = max_bytes
        self._results: list[Result] = []
        self._lock = threading.Lock()

    def inspect(self, result: Result, row: int, column: int) -> Inspection:
        """Return the maps, the path and the quadtree of a reference point."""
        with result.lock:
            trace = result.trace  # another thread may drop it from the result at any time
            if trace is None:
                self._make_room(result)
                trace = result.trace = Trace(result.matcher.network, *result.cells, result.geometry)
            return trace.inspect(row, column)

    def _make_room(self, result: Result) -> None:
        with self._lock:
            self._results = [other for other in self._results if other is not result and other.trace is not None]
            needed = trace_bytes(result.geometry)
            while (
                self._results and needed + sum(trace_bytes(other.geometry) for other in self._results) > self.max_bytes
            ):
                self._results.pop(0).trace = None
            self._results.append(result)
