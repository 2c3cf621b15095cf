"""Which kernels stand behind the operators on this machine.

A kernel is a function of the same name and signature as the operator it replaces, in
``deepmatching.operators.cpu`` (Numba) or ``deepmatching.operators.gpu`` (Triton). Where there is none, or it
does not take the tensor's type, the plain PyTorch operator runs.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache
from importlib import import_module
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

_log = logging.getLogger("deepmatching")
_enabled = ContextVar(
    "kernels", default=os.environ.get("DEEPMATCHING_KERNELS", "on").lower() not in ("0", "off", "no", "false")
)


@contextmanager
def plain_operators() -> Iterator[None]:
    """Run the plain PyTorch definitions inside this block, whatever kernels there are."""
    token = _enabled.set(False)
    try:
        yield
    finally:
        _enabled.reset(token)


def kernel(name: str, tensor: Tensor) -> Callable[..., Any] | None:
    """The kernel for this operator and this tensor's device and type, or None."""
    half = tensor.dtype == torch.float16 and tensor.is_cuda  # scores may be stored in half precision there
    if not _enabled.get() or not (half or tensor.dtype == torch.float32):
        return None
    found = getattr(_kernels_on(tensor.device.type), name, None)
    if found:
        _announce_compilation(tensor.device.type)
    return found


def has_kernels(device: str) -> bool:
    """Whether inference runs on kernels on this type of device."""
    return _enabled.get() and _kernels_on(device) is not None


@cache
def _announce_compilation(device: str) -> None:
    """Say so, once, if the first call will have to wait for the compiler."""
    compiled = getattr(_kernels_on(device), "compiled", None)
    if compiled and not compiled():
        _log.warning("compiling the kernels for this machine: the first run takes longer, later ones start at once")


@cache
def _kernels_on(device: str) -> ModuleType | None:
    modules = {"cpu": "deepmatching.operators.cpu", "cuda": "deepmatching.operators.gpu"}
    try:
        return import_module(modules[device]) if device in modules else None
    except ImportError:
        return None
