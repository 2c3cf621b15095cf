"""Points through the frames of a sequence: by the flow from the first frame and from the one before."""

from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

import numpy as np

from deepmatching.flow.points import PointMatches, points_through
from deepmatching.flow.result import FlowResult

Frame = TypeVar("Frame")

COLUMNS = ("frame", "point", "x", "y", "confidence", "visible")  #: of a file of tracks

SURE = 0.5  #: a point is lost if the flow from the frame before is right with less than this probability
FOUND = 0.7  #: a point is found from the first frame if the flow from there is right with at least this probability


def track_points(
    frames: Iterable[Frame], points: np.ndarray, flow: Callable[[Frame, Frame], FlowResult]
) -> Iterator[PointMatches]:
    """Yield where points (N, 2) of the first frame are in each frame, in the first one, too.

    A point is where the flow from the first frame takes it, if that is sure enough: so errors do not add up, and a
    point that was hidden is found again. Otherwise it moves with the flow from the frame before. It is lost where that
    says that it is hidden, or is not sure; until it is found again, it then moves as what is around it.
    """
    start = points.astype(np.float32)
    first: Frame | None = None
    before: Frame | None = None
    for frame in frames:
        if first is None or before is None:
            first, now = frame, PointMatches(start, start, np.ones(len(start), np.float32), np.ones(len(start), bool))
        else:
            step = points_through(flow(before, frame), now.points.astype(np.float64))
            visible = now.visible & step.visible & (step.confidence >= SURE)
            direct = step if before is first else points_through(flow(first, frame), points)
            found = direct.visible & (direct.confidence >= FOUND)
            places = np.where(found[:, None], direct.points, step.points)
            now = PointMatches(start, places, np.where(found, direct.confidence, step.confidence), visible | found)
        before = frame
        yield now


def rows_of(number: int, found: PointMatches) -> Iterator[tuple[float, ...]]:
    """Yield the :data:`COLUMNS` of a file of tracks for each point of the frame of this number."""
    for point, ((x, y), sure, seen) in enumerate(zip(found.points, found.confidence, found.visible, strict=True)):
        yield number, point, x, y, sure, seen
