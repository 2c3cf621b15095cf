"""Many small arrays to the device in one copy."""

from __future__ import annotations

from dataclasses import fields, is_dataclass
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor

#: What a scene is made of: arrays when it is drawn, tensors when it is rendered.
Numbers = TypeVar("Numbers", np.ndarray, Tensor)


def to_device(values: Any, device: torch.device) -> Any:
    """The same structure of dataclasses and tuples with every array a tensor: float32, or int64 for integers.

    All arrays travel together, from pinned memory and without waiting for the device.
    """
    arrays: list[np.ndarray] = []
    _collect(values, arrays)
    moved: dict[str, Tensor] = {}
    for kind, dtype in (("f", np.float32), ("i", np.int64)):
        parts = [array.ravel() for array in arrays if _kind(array) == kind]
        flat = torch.from_numpy(np.concatenate([np.zeros(0), *parts]).astype(dtype) if parts else np.zeros(0, dtype))
        moved[kind] = flat.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else flat.to(device)
    return _rebuild(values, moved, {"f": 0, "i": 0})


def _kind(array: np.ndarray) -> str:
    return "f" if array.dtype.kind == "f" else "i"


def _collect(value: Any, arrays: list[np.ndarray]) -> None:
    if isinstance(value, np.ndarray):
        arrays.append(value)
    else:
        for child in _children(value):
            _collect(child, arrays)


def _children(value: Any) -> list[Any]:
    if is_dataclass(value) and not isinstance(value, type):
        return [getattr(value, field.name) for field in fields(value)]
    return list(value) if isinstance(value, tuple) else []


def _rebuild(value: Any, moved: dict[str, Tensor], used: dict[str, int]) -> Any:
    if isinstance(value, np.ndarray):
        kind = _kind(value)
        start, used[kind] = used[kind], used[kind] + value.size
        return moved[kind][start : used[kind]].view(value.shape)
    children = [_rebuild(child, moved, used) for child in _children(value)]
    if is_dataclass(value) and not isinstance(value, type):
        return type(value)(*children)
    if isinstance(value, tuple):
        return tuple(children)
    return value
