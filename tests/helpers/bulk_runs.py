"""Runs of made-up matches."""

from collections.abc import Callable

from deepmatching.bulk_matching import RunFolder

#: The fixture that writes a run of given pairs.
MakeRun = Callable[..., RunFolder]
