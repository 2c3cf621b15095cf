"""How two frames are matched for their flow: at which radius, with how many levels, and in which directions."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import TypeAlias

import torch.nn.functional as F
from torch import Tensor

from deepmatching.flow.settings import FlowSettings
from deepmatching.geometry.discretization import Geometry
from deepmatching.geometry.targets import Decoded
from deepmatching.io.images import size_of
from deepmatching.network.inference import Decoding, more_confident
from deepmatching.network.memory import Size
from deepmatching.network.network import Network
from deepmatching.settings import FLOW_RADIUS, RADIUS, Radius, radius_in_pixels

#: From the descriptors of two frames to their matches.
Decode: TypeAlias = Callable[[Tensor, Tensor, Geometry, Decoding], Decoded]

WINDOW = 5  #: side of the windows that are searched for missing matches, in reference points
MISSING = 0.6  #: a match is missing if a whole window is visible and unmatched with this probability
NEAR_LIMIT = 0.85  #: a match is near the limit beyond this fraction of the radius
AT_LIMIT = 0.001  #: if more than this fraction of the points have a match near the limit, the radius is too small


@dataclass(frozen=True, eq=False)
class Frame:
    """An image and its descriptors, which serve in all of its pairs."""

    image: Tensor  #: (C, H, W), where it was loaded
    on_device: Tensor  #: (C, H, W), on the matcher's device
    cells: Tensor  #: (1, C, h, w)
    size: tuple[int, int]  #: (rows, columns) of the image as it was given

    @property
    def sizes(self) -> tuple[Size, Size]:
        """The size in which it is matched, and as it was given."""
        return size_of(self.image), self.size


@dataclass(frozen=True, eq=False)
class Matching:
    """How two frames are matched."""

    network: Network
    geometry: Geometry
    decoding: Decoding = field(default_factory=Decoding)  #: the options, with the pieces that memory asks for
    may_shrink_radius: bool = False  #: no radius was asked for, so a smaller one will do if nothing is missing there
    replayed: Decode | None = None  #: replays the network's ``decode_descriptors``

    def decode(self, first: Frame, second: Frame) -> Decoded:
        """Return the matches from one frame to the other."""
        decode = self.replayed or self.network.decode_descriptors
        return decode(first.cells, second.cells, self.geometry, self.decoding)

    @property
    def backward(self) -> "Matching":
        """How the second frame is matched with the first."""
        return replace(self, geometry=self.network.geometry(self.geometry.size1, self.geometry.size0))

    def fewer_levels(self, settings: FlowSettings) -> int | None:
        """Return with how many levels the frames are matched a second time; None if they are matched once."""
        few = settings.fewer_levels
        if few is None or self.network.levels is not None or not relies_on_confidence(settings, self.network):
            return None
        return few if few < self.geometry.L else None

    def decode_for_flow(
        self, first: Frame, second: Frame, settings: FlowSettings, known: Decoded | None = None
    ) -> Decoded:
        """Return the matches for flow: at each point the more confident one, with all levels or with fewer.

        They are those at the radius of ``match``, if that may be and none is missing there. Only the confidence of
        matches tells what is missing. Frames that are matched in strips are matched at the whole radius at once.
        ``known`` are matches that :meth:`decode` has found.
        """
        few, is_split = self.fewer_levels(settings), self.decoding.tiling.is_split(self.geometry)
        if known is not None:
            again = None if few is None else replace(self, geometry=replace(self.geometry, levels=few))
            return known if again is None else more_confident(known, again.decode(first, second))
        if self.may_shrink_radius and relies_on_confidence(settings, self.network) and not is_split:
            near = replace(self, geometry=replace(self.geometry, radius=RADIUS), may_shrink_radius=False)
            decoded = near.decode_for_flow(first, second, settings)
            if not lacks_matches(decoded, near.geometry):
                return decoded
        return replace(self, decoding=replace(self.decoding, fewer_levels=few)).decode(first, second)


def consecutive(
    images: Iterable[Tensor], plan: Callable[[Size, Size], Matching], describe: Callable[[Tensor, Matching], Frame]
) -> Iterator[tuple[Frame, Frame, Matching]]:
    """Yield every frame of a sequence with the next one, and how they are matched. Each frame is described once.

    The images (C, H, W), all of one size, are taken one at a time. ``plan`` says how two of this size are matched.
    """
    previous: Frame | None = None
    matching: Matching | None = None
    for image in images:
        size = image.shape[1], image.shape[2]
        matching = matching or plan(size, size)
        frame = describe(image, matching)
        if previous is not None:
            yield previous, frame, matching
        previous = frame


def flow_radius(asked: Radius | None) -> int | None:
    """Return the radius of flow in pixels, None without a limit, if this was asked for, or nothing."""
    return radius_in_pixels(FLOW_RADIUS if asked is None else asked)


def relies_on_confidence(settings: FlowSettings, network: Network) -> bool:
    """Return whether the confidence of this network's matches decides which of them the flow uses."""
    return network.confidence is not None and settings.interpolation.confidence > 0


def needs_backward(settings: FlowSettings, network: Network) -> bool:
    """Return whether the flow needs the matches back to the first frame, too."""
    return settings.interpolation.backward > 0 and not relies_on_confidence(settings, network)


def lacks_matches(decoded: Decoded, geometry: Geometry) -> bool:
    """Return whether a larger radius may find more in pair 0: visible points are unmatched, or matches at the limit."""
    unmatched = decoded.unmatched(0)
    assert decoded.confidence is not None and unmatched is not None
    window = min(WINDOW, *unmatched.shape)
    if F.avg_pool2d(unmatched[None], window, stride=1).max() > MISSING:
        return True
    assert geometry.radius is not None
    farthest = (decoded.points1[0] - decoded.points0).abs().amax(dim=-1)
    at_limit = (farthest > NEAR_LIMIT * geometry.radius) & (decoded.confidence[0] > 0.5)
    return bool(at_limit.float().mean() > AT_LIMIT)
