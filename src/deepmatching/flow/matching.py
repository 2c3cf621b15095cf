"""The radius by confidence: a pair is matched at a small radius first, and at a larger one if something is missing."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import torch.nn.functional as F

from deepmatching.flow.settings import FlowSettings
from deepmatching.geometry.discretization import Geometry
from deepmatching.geometry.targets import Decoded
from deepmatching.network.inference import Frame
from deepmatching.network.network import Network
from deepmatching.settings import RADIUS

#: Something is missing if a window of this many points along each side is visible and unmatched with this probability.
WINDOW, MISSING = 5, 0.6

#: A match is near the limit beyond this fraction of the radius. Something is missing if so many of the points have one.
NEAR_LIMIT, AT_LIMIT = 0.85, 0.001


def decode_near_first(
    decode: Callable[[Frame, Frame], Decoded],
    first: Frame,
    second: Frame,
    settings: FlowSettings,
    network: Network,
) -> Decoded:
    """The matches from one frame to the next: those of the radius of ``match``, unless they lack something.

    Not if the settings do not trust the confidence of matches, and not for images that are matched piece by piece.

    Args:
        decode: matches two frames in the geometry of the first.
        settings: of the flow that the matches are for.
        network: whose matches they are.
    """
    near = replace(first.geometry, radius=RADIUS)
    if trusts_confidence(settings, network) and not first.tiling.is_split(first.geometry):
        decoded = decode(replace(first, geometry=near), second)
        if not lacks_matches(decoded, near):
            return decoded
    return decode(first, second)


def trusts_confidence(settings: FlowSettings, network: Network) -> bool:
    """Whether the confidence of this network's matches decides which of them the flow uses."""
    return network.confidence is not None and settings.interpolation.confidence > 0


def lacks_matches(decoded: Decoded, geometry: Geometry) -> bool:
    """Whether a larger radius may find more in pair 0: points are visible and unmatched, or matches reach the limit."""
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
