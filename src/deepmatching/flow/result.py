"""FlowResult, the result of ``DeepMatcher.flow``."""

from __future__ import annotations

import io
import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, TypeAlias, TypeVar

import cv2
import numpy as np
import torch
from torch import Tensor

from deepmatching.errors import DeepMatchingError, check_size, counted
from deepmatching.io.files import PathLike, check_suffix, signed, write_file
from deepmatching.io.flow import write_flow
from deepmatching.kernels.registry import has_kernels

if TYPE_CHECKING:
    from deepmatching.io.images import ImageLike

Value = TypeVar("Value")
NOTHING = "There are no matches, so there is nothing to interpolate; try an easier pair."  #: what to say without any


class FlowTensors(NamedTuple):
    """A flow on the device that computed it."""

    flow: Tensor  #: (H, W, 2) float32
    confidence: Tensor  #: (H, W) float32
    matches: Tensor  #: number of matches that passed the filters; 0: the others have no meaning
    agreement: Tensor  #: of the matches before the filters
    expected: Tensor  #: share of the reference points that are expected to have a right match; NaN if unknown
    occlusion: Tensor | None = None  #: (H, W) float32


Finish: TypeAlias = Callable[[str], None]  #: called with the name of each stage of a flow when it ends


def on_device(image: Tensor) -> bool:
    """Return whether the flow of an image is computed on its GPU, and its result stays there."""
    return image.is_cuda and has_kernels("cuda")


def ignore_stage(name: str) -> None:
    """Take no time."""


class Stopwatch:
    """Measure the stages of a flow, and make its result; on a GPU with kernels by events, and nothing waits for it.

    The first stage began at ``start``, by ``time.perf_counter``; None for now, as always on such a GPU. Within its
    context, the device of the image is the current one.
    """

    def __init__(self, image: Tensor, start: float | None = None) -> None:
        self.is_lazy, self._device = on_device(image), torch.cuda.device_of(image)
        self._start: Any = start
        self._ends: dict[str, Any] = {}

    def __enter__(self) -> Stopwatch:
        self._device.__enter__()
        self._start = self._now() if self.is_lazy or self._start is None else self._start
        return self

    def __exit__(self, *error: object) -> None:
        self._device.__exit__(*error)

    def finish(self, stage: str) -> None:
        """End a stage."""
        self._ends[stage] = self._now()

    def seconds(self) -> dict[str, float]:
        """Return the seconds of each stage; waits for the GPU."""
        times = [self._start, *self._ends.values()]
        if self.is_lazy:
            times[-1].synchronize()
            times = [self._start.elapsed_time(time) / 1000 for time in times]
        return {stage: end - begin for stage, (begin, end) in zip(self._ends, pairwise(times), strict=True)}

    def result(self, tensors: FlowTensors) -> FlowResult:
        """Return the result, in main memory unless it is on a GPU with kernels, and end the last stage."""
        result = FlowResult.on_device(tensors, self.seconds)
        if self.is_lazy:
            self.finish("dense flow")
            return result
        result.read()
        self.finish("refinement")
        return replace(result, tensors=None)

    def _now(self) -> Any:
        if not self.is_lazy:
            return time.perf_counter()
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event


class OnDemand(Generic[Value]):
    """A field of a dataclass: a value, or a function that is called for it when it is first read."""

    def __init__(self, *default: Value | Callable[[], Value]) -> None:
        self.default = default

    def __set_name__(self, owner: type, name: str) -> None:
        self.name = f"_{name}"

    def __get__(self, instance: object | None, owner: type) -> Value:
        if instance is None:  # the dataclass asks for the default
            if not self.default:
                raise AttributeError(self.name)
            return self.default[0]  # type: ignore[return-value]
        value = instance.__dict__[self.name]
        if callable(value):
            value = instance.__dict__[self.name] = value()
        return value  # type: ignore[no-any-return]

    def __set__(self, instance: object, value: Value | Callable[[], Value]) -> None:
        instance.__dict__[self.name] = value


@dataclass(frozen=True, eq=False)
class FlowResult:
    """The motion of every pixel of the first image."""

    #: (H, W, 2) float32, displacement (x, y) in pixels; pixel (x, y) of the first image is at
    #: (x + flow[y, x, 0], y + flow[y, x, 1]) in the second. Never NaN.
    flow: OnDemand[np.ndarray] = OnDemand()
    #: (H, W) float32 in [0, 1], the estimated probability that the displacement is less than 3 pixels off
    confidence: OnDemand[np.ndarray] = OnDemand()
    matches: OnDemand[int] = OnDemand(0)  #: number of matches that the flow was interpolated from, after the filters
    seconds: OnDemand[Mapping[str, float]] = OnDemand(dict)  #: time of each stage
    agreement: OnDemand[float] = OnDemand(math.nan)  #: of the matches before the filters; NaN for those of others
    #: The same on the GPU that computed them, else None. The other fields are copied from there when they are first
    #: read; until then, nothing waits for the GPU.
    tensors: FlowTensors | None = None
    #: (H, W) float32 in [0, 1], the estimated probability that a pixel is not visible in the second image; None if the
    #: matches have no confidence, or came through the transformations of a search. With a mask of the second image, it
    #: is then 1 where the flow ends in the mask, else 0.
    occlusion: OnDemand[np.ndarray | None] = OnDemand(None)
    #: The share of the reference points that are expected to have a right match; NaN if unknown.
    expected_fraction: OnDemand[float] = OnDemand(math.nan)
    is_searched: bool = False  #: whether the matches come from a search

    @classmethod
    def on_device(cls, tensors: FlowTensors, seconds: Callable[[], Mapping[str, float]]) -> FlowResult:
        """Return a flow that stays on its device until it is read; reading it raises an error without any match."""

        def array(tensor: Tensor | None) -> Any:
            if tensor is not None and not tensors.matches:
                raise DeepMatchingError(NOTHING)
            return None if tensor is None else tensor.cpu().numpy()

        own = (tensors.flow, tensors.confidence, tensors.occlusion)
        flow, confidence, occlusion = (partial(array, tensor) for tensor in own)
        matches, agreement = partial(int, tensors.matches), partial(float, tensors.agreement)
        expected = partial(float, tensors.expected)
        return cls(flow, confidence, matches, seconds, agreement, tensors, occlusion, expected)

    def read(self) -> FlowResult:
        """Wait for the GPU, if one computes the flow, and copy the flow and the confidence; returns this result."""
        assert self.flow.shape[:2] == self.confidence.shape
        return self

    def __repr__(self) -> str:
        rows, columns = self.flow.shape[:2]
        length = np.hypot(self.flow[..., 0], self.flow[..., 1])
        return (
            f"<flow of {columns}x{rows} pixels from {counted(self.matches, 'match')}; "
            f"motion {np.median(length):.1f} px (median), {length.max():.1f} px (largest); "
            f"confidence {self.confidence.mean():.2f} (mean)>"
        )

    def _repr_html_(self) -> str:
        """Return the same for notebooks, above a small picture of the flow."""
        from deepmatching.drawing.flow import draw_flow
        from deepmatching.drawing.pictures import html_picture

        return html_picture(repr(self), draw_flow(self.flow))

    def save(self, path: PathLike) -> None:
        """Write the flow as ``.flo``, ``.png`` (KITTI), ``.pfm`` or ``.npy``, depending on the suffix."""
        write_flow(path, self.flow)

    def save_confidence(self, path: PathLike) -> None:
        """Write the confidence as ``.npy`` (float32) or ``.png`` (16 bits, white is 1), depending on the suffix."""
        stream = io.BytesIO()
        if check_confidence_suffix(path) == ".npy":
            np.save(stream, self.confidence, allow_pickle=False)
        else:
            levels = np.rint(self.confidence * np.float32(65535)).astype(np.uint16)
            stream.write(signed(cv2.imencode(".png", levels)[1].tobytes()))
        write_file(path, stream.getvalue())

    def at_size(
        self, size: tuple[int, int], second: tuple[tuple[int, int], tuple[int, int]] | None = None
    ) -> FlowResult:
        """Return the flow and confidence of images that were resized, the first to this size (H, W).

        ``second`` is the old and the new size of the second image; None if they are those of the first.
        """
        height, width = self.flow.shape[:2] if self.tensors is None else self.tensors.flow.shape[:2]
        old1, new1 = second or ((height, width), size)
        if (height, width) == check_size("The size", size) and old1 == new1:
            return self
        resized = partial(cv2.resize, dsize=(size[1], size[0]), interpolation=cv2.INTER_LINEAR)
        scale0, scale1 = np.divide(size[::-1], (width, height)), np.divide(new1[::-1], old1[::-1])
        flow = resized(self.flow) * scale1.astype(np.float32)
        if (scale0 != scale1).any():  # a pixel that stayed where it was moves now
            flow += ((np.indices(size).transpose(1, 2, 0)[..., ::-1] + 0.5) * (scale1 / scale0 - 1)).astype(np.float32)
        occlusion = None if self.occlusion is None else resized(self.occlusion)
        return replace(self, flow=flow, confidence=resized(self.confidence), occlusion=occlusion, tensors=None)

    def warp(self, image1: ImageLike) -> np.ndarray:
        """Return the second image as the first one would show it, uint8 RGBA (H, W, 4).

        Pixels that leave the second image, or are probably hidden there, are grey and transparent.
        """
        from deepmatching.drawing.warping import warp
        from deepmatching.io.images import load_image

        return warp(load_image(image1, "image1"), self.flow, self._hidden())

    def _hidden(self) -> np.ndarray | None:
        """Return which pixels the second image probably hides, (H, W) bool."""
        from deepmatching.drawing.warping import HIDDEN

        return None if self.occlusion is None else self.occlusion >= HIDDEN

    def draw(
        self, image0: ImageLike | None = None, image1: ImageLike | None = None, path: PathLike | None = None
    ) -> np.ndarray:
        """Return a picture of the flow, uint8 RGB (rows, columns, 3); also written to ``path`` if given.

        With the first image, it shows that image and the confidence, too; with both, also the second image warped by
        the flow, which looks like the first where the flow is right. It is grey where pixels are probably hidden.
        """
        from deepmatching.drawing.flow import draw_flow, draw_flow_figure
        from deepmatching.drawing.pictures import write_image
        from deepmatching.io.images import load_image

        if image0 is None:
            picture = draw_flow(self.flow)
        else:
            second = None if image1 is None else load_image(image1, "image1")
            first = load_image(image0, "image0")
            picture = draw_flow_figure(first, self.flow, self.confidence, second, self._hidden())
        if path is not None:
            write_image(path, picture)
        return picture


def check_confidence_suffix(path: PathLike) -> str:
    """Return the suffix in lower case; raises unless it names a format for confidence maps."""
    return check_suffix(path, (".npy", ".png"), "confidence")
