"""Compilation of the CPU kernels, and its announcement."""

from __future__ import annotations

import logging
from typing import Any

import pytest
import torch

from deepmatching.descriptors import HOG
from deepmatching.operators.cpu import compilation
from deepmatching.operators.cpu.hog import _describe_bands


def test_without_a_writable_cache_kernels_still_compile(monkeypatch: pytest.MonkeyPatch) -> None:
    original = compilation.njit

    def nowhere_to_write(**options: Any) -> Any:
        if options.get("cache"):
            raise RuntimeError("cannot cache function: no locator available for file")
        return original(**options)

    monkeypatch.setattr(compilation, "njit", nowhere_to_write)

    def double(x: int) -> int:
        return 2 * x

    assert compilation.kernel(double)(21) == 42


def test_compilation_is_announced_once_and_only_where_the_cache_holds_nothing(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    compilation.announce_compilation.cache_clear()
    monkeypatch.setattr(logging.getLogger("deepmatching"), "propagate", True)

    class Stored:
        found: Any = object()

        def load_overload(self, *_: Any) -> Any:
            return self.found

    stored = Stored()
    compilation._announce_misses(stored)
    with caplog.at_level("WARNING"):
        assert stored.load_overload("types", "target") is stored.found
        assert not caplog.messages
        stored.found = None
        for _ in range(2):
            assert stored.load_overload("types", "target") is None
    (message,) = caplog.messages
    assert message.startswith("compiling the kernels for this machine")


def test_what_has_run_is_on_disk() -> None:
    HOG()(torch.rand(1, 1, 16, 16))
    if not hasattr(_describe_bands._cache, "_cache_file"):
        pytest.skip("no folder for Numba's cache is writable here")
    assert _describe_bands._cache._cache_file._load_index()
