"""How two frames are matched for their flow: at which radius, with how many levels, and in which directions."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace

import torch
import torch.nn.functional as F
from torch import Tensor

from deepmatching.errors import check_frame_size
from deepmatching.flow.settings import FlowSettings
from deepmatching.geometry.discretization import Geometry
from deepmatching.geometry.targets import Decoded
from deepmatching.network.inference import Decoding
from deepmatching.network.memory import Size
from deepmatching.network.network import Network
from deepmatching.settings import FLOW_RADIUS, RADIUS, Radius, radius_in_pixels

#: Side of the windows that are searched for missing matches, in reference points.
WINDOW = 5

#: A match is missing if a whole window is visible and unmatched with this probability.
MISSING = 0.6

#: A match is near the limit beyond this fraction of the radius.
NEAR_LIMIT = 0.85

#: If more than this fraction of the points have a match near the limit, the radius is too small.
AT_LIMIT = 0.001


@dataclass(frozen=True, eq=False)
class Frame:
    """An image and its descriptors, which serve in all of its pairs."""

    image: Tensor  #: (C, H, W), where it was loaded
    on_device: Tensor  #: (C, H, W), on the matcher's device
    cells: Tensor  #: (1, C, h, w)
    size: tuple[int, int]  #: (rows, columns) of the image as it was given


@dataclass(frozen=True, eq=False)
class Matching:
    """How two frames are matched."""

    network: Network
    geometry: Geometry
    decoding: Decoding = field(default_factory=Decoding)  #: the options, with the pieces that memory asks for
    may_shrink_radius: bool = False  #: no radius was asked for, so a smaller one will do if nothing is missing there

    def decode(self, first: Frame, second: Frame) -> Decoded:
        """Return the matches from one frame to the other."""
        return self.network.decode_descriptors(first.cells, second.cells, self.geometry, self.decoding)

    def with_fewer_levels(self, settings: FlowSettings) -> Matching | None:
        """Return how the frames are matched a second time, with few levels; None if they are matched once."""
        few = settings.fewer_levels
        if few is None or self.network.levels is not None or not relies_on_confidence(settings, self.network):
            return None
        return replace(self, geometry=replace(self.geometry, levels=few)) if few < self.geometry.L else None

    def decode_for_flow(
        self, first: Frame, second: Frame, settings: FlowSettings, known: Decoded | None = None
    ) -> Decoded:
        """Return the matches for flow: at each point the more confident one, with all levels or with fewer.

        They are those at the radius of ``match``, if that may be and none is missing there. Only the confidence of
        matches tells what is missing. Frames that are matched in strips are matched at the whole radius at once.

        Args:
            known: matches that :meth:`decode` has found.
        """
        is_split = self.decoding.tiling.is_split(self.geometry)
        if known is None and self.may_shrink_radius and relies_on_confidence(settings, self.network) and not is_split:
            near = replace(self, geometry=replace(self.geometry, radius=RADIUS), may_shrink_radius=False)
            decoded = near.decode_for_flow(first, second, settings)
            if not lacks_matches(decoded, near.geometry):
                return decoded
        decoded = self.decode(first, second) if known is None else known
        fewer = self.with_fewer_levels(settings)
        return decoded if fewer is None else more_confident(decoded, fewer.decode(first, second))


def consecutive(
    images: Iterable[Tensor],
    plan: Callable[[Size, Size], Matching],
    describe: Callable[[Tensor, Matching], Frame],
) -> Iterator[tuple[Frame, Frame, Matching]]:
    """Yield every frame of a sequence with the next one, and how they are matched. Each frame is described once.

    Args:
        images: (C, H, W), all of one size; taken one at a time.
        plan: from the sizes of the first frames to how all are matched.
        describe: from an image to its frame.
    """
    previous: Frame | None = None
    matching: Matching | None = None
    for number, image in enumerate(images):
        size = image.shape[1], image.shape[2]
        if previous is not None:
            check_frame_size(number, previous.size, size)
        matching = matching or plan(size, size)
        frame = describe(image, matching)
        if previous is not None:
            yield previous, frame, matching
        previous = frame


def flow_radius(asked: Radius | None) -> int | None:
    """Return the radius of flow in pixels, None without a limit, if this was asked for, or nothing."""
    return radius_in_pixels(FLOW_RADIUS if asked is None else asked)


def more_confident(decoded: Decoded, other: Decoded) -> Decoded:
    """Return, at each reference point, the match with the higher confidence; the first one of equals."""
    assert decoded.confidence is not None and other.confidence is not None
    better = other.confidence > decoded.confidence
    pairs = zip(decoded[1:], other[1:], strict=True)
    chosen = [
        None if a is None or b is None else torch.where(better.reshape(better.shape + (1,) * (a.ndim - 3)), b, a)
        for a, b in pairs
    ]
    return Decoded(decoded.points0, *chosen)  # type: ignore[arg-type]


def relies_on_confidence(settings: FlowSettings, network: Network) -> bool:
    """Return whether the confidence of this network's matches decides which of them the flow uses."""
    return network.confidence is not None and settings.interpolation.confidence > 0


def needs_backward(settings: FlowSettings, network: Network) -> bool:
    """Return whether the flow needs the matches back to the first frame, too."""
    is_corrected = settings.dense and network.dense is not None
    return settings.interpolation.backward > 0 and not is_corrected and not relies_on_confidence(settings, network)


def lacks_matches(decoded: Decoded, geometry: Geometry) -> bool:
    """Return whether a larger radius may find more in pair 0: visible points are unmatched, or matches at the limit."""
    assert decoded.confidence is not None and decoded.occluded is not None
    right, occluded = decoded.confidence[0], decoded.occluded[0]
    unmatched = ((1 - right) * (1 - occluded))[None, None]
    window = min(WINDOW, *unmatched.shape[2:])
    if F.avg_pool2d(unmatched, window, stride=1).max() > MISSING:
        return True
    assert geometry.radius is not None
    farthest = (decoded.points1[0] - decoded.points0).abs().amax(dim=-1)
    at_limit = (farthest > NEAR_LIMIT * geometry.radius) & (right > 0.5)
    return bool(at_limit.float().mean() > AT_LIMIT)
