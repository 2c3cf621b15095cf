"""Apple's GPU, simulated: tensors that lie on the CPU, name another device, and refuse float64 and mixed devices."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

#: Stands for "mps", which PyTorch knows on a Mac only; no build of it has anything behind this name.
DEVICE = torch.device("lazy:0")


class _Tensor(Tensor):
    """A tensor on the simulated device. Like there, ``numpy()`` is refused and numbers can be read."""

    inner: Tensor

    @staticmethod
    def __new__(cls, inner: Tensor) -> "_Tensor":
        where = {"strides": inner.stride(), "storage_offset": inner.storage_offset(), "device": DEVICE}
        made = Tensor._make_wrapper_subclass(cls, inner.size(), dtype=inner.dtype, **where)  # type: ignore[attr-defined]
        made.inner = inner
        return made

    __torch_function__ = torch._C._disabled_torch_function_impl

    @classmethod
    def __torch_dispatch__(cls, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return _call(function, args, kwargs or {})

    def tolist(self) -> Any:
        return self.inner.tolist()

    def new_tensor(self, data: Any, **options: Any) -> Tensor:  # type: ignore[override]
        return self.inner.new_tensor(data, **options).to(DEVICE)

    def __format__(self, spec: str) -> str:
        return format(self.inner, spec)


class _Mode(TorchDispatchMode):
    """Make tensors on the simulated device, too."""

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return _call(function, args, kwargs or {})


def _call(function: Callable[..., Any], args: Any, kwargs: dict[str, Any]) -> Any:
    """Run an operator of PyTorch on the CPU; tensors come from the device, and the result goes to it."""
    given = [value for value in tree_leaves((args, kwargs)) if isinstance(value, Tensor)]
    there = {id(value.inner): value for value in given if isinstance(value, _Tensor)}
    name, target = str(function), kwargs.get("device")
    is_copy, is_index = name in ("aten._to_copy.default", "aten.copy_.default"), "index" in name
    if there and not is_copy and not is_index and any(v.dim() and not isinstance(v, _Tensor) for v in given):
        raise RuntimeError(f"{name}: tensors are on different devices")
    args, kwargs = tree_map(lambda value: value.inner if isinstance(value, _Tensor) else value, (args, kwargs))
    if target is not None:
        kwargs["device"] = torch.device("cpu")
    result = function(*args, **kwargs)
    if torch.device(target) != DEVICE if target is not None else not there:
        return result
    if any(isinstance(value, Tensor) and value.dtype == torch.float64 for value in tree_leaves(result)):
        raise TypeError(f"{name}: the device has no float64")
    return tree_map(lambda value: there.get(id(value), _Tensor(value)) if isinstance(value, Tensor) else value, result)


def simulate(monkeypatch: pytest.MonkeyPatch) -> TorchDispatchMode:
    """Let ``device="mps"`` name the simulated device; work on it inside the mode that is returned."""
    from deepmatching import matches, matching
    from deepmatching.flow import interpolation, pipeline

    def most_precise(device: torch.device) -> torch.dtype:
        return original(torch.device("mps") if device == DEVICE else device)

    def tensor(data: Any, device: Any = None, **options: Any) -> Tensor:
        made = make(data, **options)  # PyTorch makes it without an operator
        return made if device is None else made.to(device)

    original, make = interpolation.most_precise, torch.tensor
    for module in (matches, matching):
        monkeypatch.setattr(module, "choose_device", lambda name: DEVICE if name == "mps" else torch.device(name))
    for module in (interpolation, pipeline):
        monkeypatch.setattr(module, "most_precise", most_precise)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: True)
    monkeypatch.setattr(torch, "tensor", tensor)
    return _Mode()
