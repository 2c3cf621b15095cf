"""Copies many small arrays to the device at once."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import fields, is_dataclass
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor

#: A scene holds arrays when it is drawn, and tensors when it is rendered.
Numbers = TypeVar("Numbers", np.ndarray, Tensor)


def to_device(values: Any, device: torch.device) -> Any:
    """Return the same structure of dataclasses and tuples with tensors for arrays: float32, or int64 for integers.

    All arrays travel in one copy from pinned memory, without waiting for the device.
    """
    arrays: list[np.ndarray] = []
    _map_arrays(values, arrays.append)
    moved: dict[str, Iterator[Tensor]] = {}
    for kind, dtype in (("f", np.float32), ("i", np.int64)):
        parts = [array.ravel() for array in arrays if _kind(array) == kind]
        flat = torch.from_numpy(np.concatenate([np.zeros(0), *parts]).astype(dtype) if parts else np.zeros(0, dtype))
        flat = flat.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else flat.to(device)
        moved[kind] = iter(flat.split([part.size for part in parts]))
    return _map_arrays(values, lambda array: next(moved[_kind(array)]).view(array.shape))


def _kind(array: np.ndarray) -> str:
    return "f" if array.dtype.kind == "f" else "i"


def _map_arrays(value: Any, function: Callable[[np.ndarray], Any]) -> Any:
    """Return the same structure with the function's results in place of the arrays."""
    if isinstance(value, np.ndarray):
        return function(value)
    if is_dataclass(value) and not isinstance(value, type):
        return type(value)(*(_map_arrays(getattr(value, field.name), function) for field in fields(value)))
    return tuple(_map_arrays(child, function) for child in value) if isinstance(value, tuple) else value
