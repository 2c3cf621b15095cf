"""When a match has failed: which settings find more, see ``Settings.auto``."""

import math
from dataclasses import replace

from deepmatching.geometry.discretization import Geometry
from deepmatching.matches import Matches
from deepmatching.settings import AUTO_SIZE, FULL, MIN_AGREEMENT, MIN_EXPECTED, Settings


def expected_fraction(matches: Matches, geometry: Geometry) -> float:
    """Return the fraction of the reference points in view with a right match, by the confidence; NaN without it."""
    if matches.confidence is None:
        return math.nan
    rows, columns = geometry.grid(0)
    return float(matches.confidence.sum()) / (rows * columns * matches.in_view)


def doubt(matches: Matches, geometry: Geometry) -> str:
    """Return why the matches are probably wrong; an empty text if they are not."""
    if matches.confidence is None and matches.agreement < MIN_AGREEMENT:
        return f"only {matches.agreement:.0%} of the reference points have a match that agrees with its neighbours"
    if (expected := expected_fraction(matches, geometry)) < MIN_EXPECTED:
        return f"the model expects a right match at only {expected:.0%} of the reference points"
    return ""


def has_failed(settings: Settings, expected: float) -> bool:
    """Return whether so few matches are right that others are worth a try, and the settings leave the choice."""
    return settings.auto and settings.radius is None and expected < MIN_EXPECTED


def wide(settings: Settings) -> Settings:
    """Return the settings of a search without a limit on the displacement, at a reduced size."""
    return replace(settings, radius=FULL, search=True, max_size=min(AUTO_SIZE, settings.max_size or AUTO_SIZE))
