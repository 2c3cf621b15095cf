"""When a match has failed: which settings find more, see ``Settings.auto``."""

from dataclasses import replace

from deepmatching.matches import Matches
from deepmatching.settings import AUTO_SIZE, FULL, MIN_AGREEMENT, MIN_EXPECTED, Settings


def doubt(matches: Matches) -> str:
    """Return why the matches are probably wrong; an empty text if they are not."""
    if matches.confidence is None and matches.agreement < MIN_AGREEMENT:
        return f"only {matches.agreement:.0%} of the reference points have a match that agrees with its neighbours"
    if matches.expected_fraction < MIN_EXPECTED:
        return f"the model expects a right match at only {matches.expected_fraction:.0%} of the reference points"
    return ""


def has_failed(settings: Settings, expected: float) -> bool:
    """Return whether so few matches are right that other settings should be tried, and the settings allow it."""
    return settings.leaves_choice and expected < MIN_EXPECTED


def wide(settings: Settings) -> Settings:
    """Return the settings of a search without a limit on the displacement, at a reduced size."""
    return replace(settings, radius=FULL, search=True, max_size=min(AUTO_SIZE, settings.max_size or AUTO_SIZE))
