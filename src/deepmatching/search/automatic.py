"""When a match has failed: which settings find more, see ``Settings.auto``."""

from __future__ import annotations

import math
from dataclasses import replace

from deepmatching.geometry.discretization import Geometry
from deepmatching.matches import Matches
from deepmatching.settings import AUTO_SIZE, FULL, MIN_EXPECTED, Settings


def expected_fraction(matches: Matches, geometry: Geometry) -> float:
    """Return the fraction of the reference points in view with a right match, by the confidence; NaN without it."""
    if matches.confidence is None:
        return math.nan
    rows, columns = geometry.grid(0)
    return float(matches.confidence.sum()) / (rows * columns * matches.in_view)


def has_failed(settings: Settings, expected: float) -> bool:
    """Return whether so few matches are right that others are worth a try, and the settings leave the choice."""
    return settings.auto and settings.radius is None and expected < MIN_EXPECTED


def wide(settings: Settings) -> Settings:
    """Return the settings of a search without a limit on the displacement, at a reduced size."""
    return replace(settings, radius=FULL, search=True, max_size=min(AUTO_SIZE, settings.max_size or AUTO_SIZE))
