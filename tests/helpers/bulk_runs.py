"""Runs of made-up matches."""

from __future__ import annotations

from collections.abc import Callable

from deepmatching.bulk_matching import RunFolder

#: The fixture that writes a run of given pairs.
MakeRun = Callable[..., RunFolder]
