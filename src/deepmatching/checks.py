"""Checks of user-given values. Each raises an error of one sentence that says what is wrong."""

from __future__ import annotations

import math
from collections.abc import Collection
from numbers import Integral, Real
from typing import Any

from deepmatching.defaults import FULL, LARGEST_RADIUS, LARGEST_SCALE, MOST_ROTATIONS, SMALLEST_SCALE
from deepmatching.errors import DeepMatchingError

_LONGEST_SHOWN = 60


def check_number(
    name: str,
    value: Any,
    *,
    least: float | None = None,
    most: float | None = None,
    above: float | None = None,
    below: float | None = None,
    whole: bool = False,
    also: Collection[str] = (),
) -> None:
    """Raise unless the value is a finite number in the range, or one of the words in ``also``."""
    if isinstance(value, str) and value in also:
        return
    is_number = isinstance(value, Integral if whole else Real) and not isinstance(value, bool)
    if (
        is_number
        and (isinstance(value, Integral) or math.isfinite(value))  # 400 digits are whole, but too many for isfinite
        and (least is None or value >= least)
        and (most is None or value <= most)
        and (above is None or value > above)
        and (below is None or value < below)
    ):
        return
    kind = "a whole number" if whole else "a number"
    bounds = [f"{word} {bound}" for word, bound in (("above", above), ("below", below)) if bound is not None]
    if least is not None and most is not None:
        bounds.insert(0, f"from {least} to {most}")
    elif least is not None or most is not None:
        bounds.insert(0, f"of at least {least}" if most is None else f"of at most {most}")
    range_ = f" {' and '.join(bounds)}" if bounds else ""
    words = "".join(f" or {word!r}" for word in also)
    raise DeepMatchingError(f"{name} must be {kind}{range_}{words}, not {shown(value)}.")


def shown(value: Any) -> str:
    """The value as an error message shows it: in at most 60 characters."""
    try:
        text = repr(value)
    except ValueError:  # Python writes numbers of up to 4300 digits only
        return "a number of thousands of digits"
    return text if len(text) <= _LONGEST_SHOWN else f"{text[: _LONGEST_SHOWN - 1]}…"


def check_choice(name: str, value: Any, allowed: Collection[str]) -> None:
    """Raise unless the value is one of the allowed words."""
    if value not in list(allowed):  # a list, since the value may not be hashable
        words = [repr(word) for word in allowed]
        raise DeepMatchingError(f"{name} must be {', '.join(words[:-1])} or {words[-1]}, not {shown(value)}.")


def rotations_in_degrees(rotations: Any, name: str = "rotations") -> tuple[float, ...]:
    """The rotations to try, in degrees: as they are given or, for a number, so many, evenly spaced from 0."""
    if isinstance(rotations, Integral) and not isinstance(rotations, bool):
        if not 1 <= int(rotations) <= MOST_ROTATIONS:
            raise DeepMatchingError(
                f"{name} must be a number of rotations from 1 to {MOST_ROTATIONS}, or a list of degrees with a comma "
                f"such as 0,90 or 90, and not {shown(rotations)}."
            )
        return tuple(360.0 * n / int(rotations) for n in range(int(rotations)))
    return _numbers(rotations, name, "a number of rotations or a list of degrees", -360.0, 360.0)


def scales_to_try(scales: Any, name: str = "scales") -> tuple[float, ...]:
    """The zooms of the second image to try."""
    return _numbers(scales, name, "a list of scales", SMALLEST_SCALE, LARGEST_SCALE)


def _numbers(values: Any, name: str, expected: str, least: float, most: float) -> tuple[float, ...]:
    if not isinstance(values, list | tuple) or not 1 <= len(values) <= MOST_ROTATIONS:
        raise DeepMatchingError(f"{name} must be {expected}, at most {MOST_ROTATIONS}, not {shown(values)}.")
    for value in values:
        check_number(f"Each of {name}", value, least=least, most=most)
    return tuple(dict.fromkeys(float(value) for value in values))


def radius_in_pixels(radius: Any, name: str = "The radius") -> int | None:
    """The radius in pixels; None, no limit, for ``"full"``."""
    if isinstance(radius, str) and radius == FULL:
        return None
    if not isinstance(radius, Integral) or isinstance(radius, bool) or radius <= 0:
        raise DeepMatchingError(f"{name} must be a positive number of pixels or '{FULL}', not {shown(radius)}.")
    if int(radius) > LARGEST_RADIUS:
        raise DeepMatchingError(f"{name} must be at most {LARGEST_RADIUS} pixels; use '{FULL}' for no limit.")
    return int(radius)


def check_frame_size(number: int, before: tuple[int, int], size: tuple[int, int]) -> None:
    """Raise unless a frame of a sequence has the size (rows, columns) of the one before."""
    if size != before:
        raise DeepMatchingError(
            f"Frame {number} is {size[1]}x{size[0]} pixels, but the one before is {before[1]}x{before[0]}: "
            "all frames of a sequence must be of one size."
        )
