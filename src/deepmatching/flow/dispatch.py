"""The kernels behind the functions of this package."""

from __future__ import annotations

import logging
from functools import cache
from importlib import import_module
from types import ModuleType

from deepmatching.operators.kernels import has_kernels

_log = logging.getLogger("deepmatching")
_MODULES = ("geodesic", "local_models", "linear_system", "relaxation")


def kernels(module: str) -> ModuleType | None:
    """The module of ``operators/cpu`` whose functions replace those of the same name here, or None."""
    if not has_kernels("cpu"):
        return None
    _announce_compilation()
    return import_module(f"deepmatching.operators.cpu.{module}")


@cache
def _announce_compilation() -> None:
    """Say so, once, if the first call will have to wait for the compiler."""
    modules = [import_module(f"deepmatching.operators.cpu.{module}") for module in _MODULES]
    caches = [getattr(value, "_cache", None) for module in modules for value in vars(module).values()]
    files = [file for file in (getattr(cache, "_cache_file", None) for cache in caches) if file is not None]
    try:
        ready = bool(files) and all(file._load_index() for file in files)
    except (AttributeError, OSError):
        ready = False
    if not ready:
        _log.warning("compiling the flow's kernels for this machine: the first run takes longer")
