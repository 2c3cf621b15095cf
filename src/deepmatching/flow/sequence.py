"""The flows of a sequence of frames: computed one by one into a folder that a later run can complete, and drawn."""

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from deepmatching.drawing.flow import Style, draw_frame, flow_range
from deepmatching.drawing.pictures import range_of, write_image
from deepmatching.errors import DeepMatchingError
from deepmatching.flow.result import FlowResult
from deepmatching.io.files import make_folder
from deepmatching.io.flow import read_flow, write_flow
from deepmatching.io.store import Store
from deepmatching.io.video import CODECS, Frames, write_video
from deepmatching.settings import MIN_AGREEMENT

MANIFEST = "flow.json"


@dataclass
class _Flows:
    """The content of the manifest."""

    settings: dict[str, Any]
    finished: dict[str, list[str]] = field(default_factory=dict)  #: the origins that each flow was made from
    sizes: dict[str, int] = field(default_factory=dict)  #: of the files, in bytes; not in older manifests


class FlowFolder:
    """Flow files of one source, all made with the same settings. ``flow.json`` beside them is their manifest.

    A flow is finished once its file is complete and its name is in the manifest. The file is written first, so a run
    may end at any moment. A flow is outdated once its frames have changed. The folder must be reserved (``io.store``).

    Args:
        settings: everything that the flows depend on, JSON-serializable.
        origins: for each flow, in order, the stamps of the files that its frames come from. Files with these names are
            not replaced unless an earlier run made them.
        restart: forget what an earlier run has finished.
    """

    def __init__(
        self, path: Path, suffix: str, settings: dict[str, Any], origins: Mapping[str, list[str]], restart: bool = False
    ) -> None:
        make_folder(path)
        self.path, self.suffix, self.origins = path, suffix, dict(origins)
        self._store, self._flows = self.store(path), _Flows({"suffix": suffix, **settings})
        if not restart:
            self._flows = self._store.resume(self._flows)
        if not self._store.exists and (foreign := [name for name in origins if self.file(name).exists()]):
            name = self.file(foreign[0]).name
            raise DeepMatchingError(f"'{name}' in '{path}' was not made by an earlier run: give another folder.")
        self._store.write(vars(self._flows))

    @staticmethod
    def store(path: Path) -> Store:
        """Return the store of the flows in a folder."""
        return Store(path, MANIFEST, "flows")

    def __contains__(self, name: str) -> bool:
        return self._exists(name) and self._flows.finished[name] == self.origins.get(name)

    @property
    def missing(self) -> list[int]:
        """Return the indices of the flows that are still to be computed."""
        return [index for index, name in enumerate(self.origins) if name not in self]

    @property
    def outdated(self) -> list[str]:
        """Return the finished flows whose frames have changed or are gone."""
        return [name for name in self._flows.finished if self._exists(name) and name not in self]

    def _exists(self, name: str) -> bool:
        """Return whether the file is recorded, there, and neither cut short nor replaced by one of another size."""
        try:
            size = self.file(name).stat().st_size
        except OSError:
            return False
        return name in self._flows.finished and 0 < size == self._flows.sizes.get(name, size)

    def file(self, name: str) -> Path:
        """Return the file of the flow that starts at the frame of this name."""
        return self.path / f"{name}{self.suffix}"

    def write(self, name: str, result: np.ndarray) -> None:
        """Write a flow (H, W, 2)."""
        write_flow(self.file(name), result)

    def add(self, name: str, flow: np.ndarray) -> None:
        """Write a flow (H, W, 2), then record it as finished."""
        self.write(name, flow)
        self._flows.finished[name] = self.origins[name]
        self._flows.sizes[name] = self.file(name).stat().st_size
        self._store.write(vars(self._flows))


def compute_flows(
    frames: Frames,
    folder: FlowFolder,
    flow_sequence: Callable[[Iterable[Tensor]], Iterable[FlowResult]],
    on_flow: Callable[[], None],
    confidence: Path | None = None,
) -> list[str]:
    """Compute the flows that the folder lacks; return the names of those that are probably wrong.

    ``on_flow`` is called after each. The folder ``confidence`` gets its confidence before the flow counts as finished.
    """
    doubtful = []
    for first, end in ranges(folder.missing):
        results = flow_sequence(frames.between(first, end + 1))
        for name, result in zip(frames.names[first:end], results, strict=True):
            if confidence is not None:
                result.save_confidence(confidence_file(confidence, name))
            folder.add(name, result.flow)
            if result.agreement < MIN_AGREEMENT:
                doubtful.append(name)
            on_flow()
    return doubtful


def confidence_file(folder: Path, name: str) -> Path:
    """Return the file for the confidence of the flow that starts at the frame of this name."""
    return folder / f"{name}.png"


def ranges(numbers: list[int]) -> Iterator[tuple[int, int]]:
    """Yield ascending numbers as ranges (first, end): 1 2 3 7 8 are (1, 4) and (7, 9)."""
    for _, group in groupby(enumerate(numbers), lambda entry: entry[1] - entry[0]):
        run = [number for _, number in group]
        yield run[0], run[-1] + 1


def drawn_flows(
    frames: Frames,
    flow_sequence: Callable[[Iterable[Tensor]], Iterable[FlowResult]],
    style: Style,
    on_flow: Callable[[FlowResult], None],
) -> Iterator[np.ndarray]:
    """Yield a picture of each frame and its flow, while the frames are read and matched one by one.

    The colour scale grows when a motion exceeds it. ``on_flow`` is called with each flow.
    """
    waiting, max_norm = deque[Tensor](), 1.0

    def read() -> Iterator[Tensor]:
        for frame in frames.between(0, len(frames)):
            waiting.append(frame)
            yield frame

    for result in flow_sequence(read()):
        max_norm = max(max_norm, flow_range(result.flow))
        yield draw_frame(waiting.popleft(), result.flow, max_norm, style, result.confidence)
        on_flow(result)


def draw_flows(frames: Frames, folder: FlowFolder, target: Path, style: Style = "above") -> None:
    """Draw each frame and its flow, with one colour scale for all: a video, or pictures in a folder."""
    names = list(folder.origins)
    norms = np.array([flow_range(read_flow(folder.file(name))) for name in names])
    max_norm = range_of(np.stack([norms, np.zeros_like(norms)], axis=1))
    both = zip(names, frames.between(0, len(names)), strict=True)
    pictures = (draw_frame(image, read_flow(folder.file(name)), max_norm, style) for name, image in both)
    if target.suffix.lower() in CODECS:
        write_video(target, pictures, frames.rate)
    else:
        for name, picture in zip(names, pictures, strict=True):
            write_image(target / f"{name}.png", picture)
